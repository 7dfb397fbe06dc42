"""The steps of a walk in which something breaks: a device, and the process that touches hardware."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from devherd.cli.exits import Fault
from devherd.cli.steps import Step, StepFailed
from devherd.cli.walk_checks import Checks
from devherd.cli.words import millis, span

if TYPE_CHECKING:
    from devherd.cli.walk import Walk

Json = dict[str, Any]
LIMIT = 30.0


def break_and_heal(walk: Walk) -> None:
    """A free device falls off the bus and comes back; the kubelet is told both times."""
    with walk.steps.step("break, heal", "breaking a device") as step:
        if walk.real:
            step.skipped, step.text = True, "not with the machine's own devices"
            return
        device = _free_device(walk)
        resource, path = str(device["resource"]), str(device["nodes"][0]["host_path"])
        before = walk.link.node()["resources"][resource]["allocatable"]
        told = _change(walk, "break", path, resource, before - 1)
        step.details.append(f"{path} broken: the kubelet offers {before - 1} of {resource} after {millis(told)}")
        again = _change(walk, "heal", path, resource, before)
        step.details.append(f"{path} back: the kubelet offers {before} again after {millis(again)}")
        step.facts |= {"device": path, "broken_ms": round(told, 1), "healed_ms": round(again, 1)}
        step.ms, step.text = told, f"{path} lost, told to the kubelet; healthy again after {span(again / 1000)}"
        if lost := walk.lost_of(walk.running()):
            raise StepFailed(f"pods lost: {lost}")
        Checks(walk).pods_right()


def hang_probe(walk: Walk) -> None:
    """The probe stops in the middle of a scan; a pod is admitted meanwhile; the probe is replaced."""
    with walk.steps.step("hung probe", "stopping the probe in the middle of a scan") as step:
        plugin = walk.ask("status")[0]
        probe = int(plugin["probe"]["pid"])
        replaced = int(plugin["probe"]["replaced"])
        os.kill(probe, signal.SIGSTOP)
        try:
            _allocate_meanwhile(walk, step)
            _await_replacement(walk, step, probe, replaced)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(probe, signal.SIGCONT)
        if lost := walk.lost_of(walk.running()):
            raise StepFailed(f"pods lost: {lost}")
        Checks(walk).pods_right()


def _allocate_meanwhile(walk: Walk, step: Step) -> None:
    with contextlib.suppress(Fault, StepFailed):
        walk.ask("rescan", timeout=0.5)
    resource = _free_resource(walk)
    step.ms = walk.run_pod("during-hang", resource)
    step.facts["allocate_ms"] = round(step.ms, 2)
    step.details.append(f"a pod got {resource} while the probe hung, Allocate {millis(step.ms)}")


def _await_replacement(walk: Walk, step: Step, probe: int, replaced: int) -> None:
    began = time.monotonic()

    def fresh() -> Json | None:
        state: Json = walk.ask("status")[0]["probe"]
        return state if state["pid"] != probe and state["replaced"] > replaced and state["state"] == "idle" else None

    state = walk.until(fresh, LIMIT)
    if state is None:
        raise StepFailed(f"the hung probe (pid {probe}) was not replaced within {LIMIT:g} s")
    took = time.monotonic() - began
    step.facts |= {"replaced_ms": round(took * 1000, 1), "abandoned": state["abandoned"]}
    step.details.append(f"the hung probe was given up and replaced after {span(took)}")
    step.text = f"a pod was given its device in {millis(step.ms)} meanwhile; the probe was replaced"


def _change(walk: Walk, op: str, path: str, resource: str, allocatable: int) -> float:
    """Break or heal a device; milliseconds until the kubelet offers this many."""
    began = time.monotonic()
    walk.link.runner(op, device=path)
    reply = walk.link.kubelet("wait", within=LIMIT + 5, timeout=LIMIT, resource=resource, allocatable=allocatable)
    if not reply["met"]:
        raise StepFailed(f"{op} {path}: the kubelet does not offer {allocatable} of {resource} within {LIMIT:g} s")
    return (time.monotonic() - began) * 1000


def _free_device(walk: Walk) -> Json:
    """A device nobody holds whose node belongs to it alone."""
    devices = [d for reply in walk.ask("devices") for d in reply["devices"] if d["nodes"]]
    held = {i for item in walk.link.node()["resources"].values() for i in item["held"]}
    paths = [node["host_path"] for d in devices for node in d["nodes"]]
    for device in devices:
        path = device["nodes"][0]["host_path"]
        if device["healthy"] and device["id"] not in held and paths.count(path) == 1:
            return dict(device)
    raise StepFailed("there is no free device to break")


def _free_resource(walk: Walk) -> str:
    for name, item in walk.link.node()["resources"].items():
        if item["allocatable"] > item["allocated"]:
            return str(name)
    raise StepFailed("no resource has a free device left")
