"""Kubelet restarts and reboots in a row: no pod lost, no wrong device, nothing that grows.

The cycle counts are those the project promises. They can be lowered for a quick look (DEVHERD_SOAK_RESTARTS,
DEVHERD_SOAK_REBOOTS); what was run is printed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.run import leftovers
from devherd.run.instance import Instance, Wish
from devherd.sim.node import Node
from support.usage import Usage, usage

RESTARTS = int(os.environ.get("DEVHERD_SOAK_RESTARTS", "200"))
REBOOTS = int(os.environ.get("DEVHERD_SOAK_REBOOTS", "50"))
PODS = {
    "example.com/accelerator": (2, 8),
    "example.com/serial": (2, 4),
    "example.com/kvm": (3, 10),
}
MEGABYTE = 1024


@pytest.fixture(params=["subfolder", "top"])
def instance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    # The timing of the simulated kubelet is that of every simulation.
    wish = Wish(settings={"kubelet": {"layout": request.param}})
    with Instance(wish, "s") as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)


def start_pods(instance: Instance) -> dict[str, Any]:
    for resource, (_, total) in PODS.items():
        instance.kubelet.client.wait_resource(resource, allocatable=total, timeout=20)
    for number, (resource, (count, _)) in enumerate(PODS.items()):
        pod = instance.kubelet.client.pod_add(f"pod{number}", {resource: count}, wait=10)
        assert pod["phase"] == "Running", pod
    return holdings(instance)


def holdings(instance: Instance) -> dict[str, Any]:
    """Each pod's phase, ids, and for each node it got the physical thing that is really behind it."""
    found = {}
    for pod in instance.kubelet.client.pods():
        container = pod["containers"][0]
        nodes = {given["host_path"]: given["thing"] for given in (container["record"] or {"nodes": []})["nodes"]}
        found[pod["name"]] = (pod["phase"], container["devices"], nodes)
    return found


def check(instance: Instance, before: dict[str, Any], what: str) -> None:
    for resource, (_, total) in PODS.items():
        instance.kubelet.client.wait_resource(resource, allocatable=total, capacity=total, timeout=20)
    end = time.monotonic() + 10
    while (now := holdings(instance)) != before:
        # A pod counts as Running from before the reboot until its containers are there again: only asking tells.
        failed = any(phase == "Failed" for phase, _, _ in now.values())
        if failed or time.monotonic() > end:
            raise AssertionError(f"after {what}: {now} instead of {before}\n{story(instance)}")
        time.sleep(0.005)
    assert instance.node is not None
    node = Node.open(instance.node.root)
    for _, _, nodes in now.values():
        for path, thing in nodes.items():
            assert thing == node.thing(path), f"after {what}: {path} leads to {node.thing(path)}, not {thing}"


def story(instance: Instance) -> str:
    """What a person would look at first: why pods failed, and the last lines of each log."""
    pods = [(pod["name"], pod["phase"], pod["reason"], pod["message"]) for pod in instance.kubelet.client.pods()]
    events = instance.kubelet.client.events()[:60]
    logs = [f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in Path(instance.layout.log).iterdir()]
    return "\n".join([str(pods), *map(str, events), *logs])


def margin(instance: Instance) -> float:
    """Milliseconds between the last resource's first list and the first pod's admission in this kubelet's life."""
    events = instance.kubelet.client.events()
    first = {event["resource"]: event["t"] for event in reversed(events) if event["what"] == "list"}
    admitted = min(event["t"] for event in events if event["what"] == "pods-known")
    return float(admitted - max(first[resource] for resource in PODS)) * 1000


def summary(values: list[float]) -> str:
    ordered = sorted(values)
    return f"min {ordered[0]:.1f}, median {ordered[len(ordered) // 2]:.1f}, max {ordered[-1]:.1f}"


def used(instance: Instance) -> dict[int, Usage]:
    """Every process of the instance that outlives a kubelet restart; the watcher's short-lived children are none."""
    found = {}
    for pid in leftovers.marked(instance.layout.folder):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if pid != instance.kubelet.pid:
                found[pid] = usage(pid)
    return found


def our_sockets(instance: Instance) -> list[str]:
    """Not those that a killed kubelet left in its own folder."""
    found = leftovers.find(instance.layout.folder).sockets
    return [path for path in found if not path.startswith(os.path.dirname(instance.layout.pod_resources))]


def command(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode()


@pytest.mark.timeout(900)
def test_restarts_cost_no_pod_and_nothing_grows(instance: Instance) -> None:
    before = start_pods(instance)
    half: dict[int, Usage] = {}
    sockets: list[str] = []
    for cycle in range(RESTARTS):
        instance.kubelet.restart(hard=bool(cycle % 2))
        check(instance, before, f"restart {cycle}")
        if cycle == RESTARTS // 2 - 1:
            half, sockets = used(instance), our_sockets(instance)
    end = used(instance)
    print(f"{RESTARTS} restarts; second half, private KiB per process:")
    lasting = {pid: now for pid, now in end.items() if pid in half}
    commands = " ".join(map(command, lasting))
    for program in ("supervisord", "devherd_watcher", "devherd.front", "devherd.probe", "devherd.sim.zygote"):
        assert program in commands, f"{program} was replaced"
    for pid, now in lasting.items():
        print(f"  {half[pid].private:7} -> {now.private:7}  {command(pid)[:150]}")
        assert now.private - half[pid].private <= MEGABYTE, f"{command(pid)}: {half[pid]} -> {now}"
        # gRPC's own pool keeps eight to ten.
        assert abs(now.threads - half[pid].threads) <= 2, f"{command(pid)}: {half[pid]} -> {now}"
        assert abs(now.descriptors - half[pid].descriptors) <= 2, f"{command(pid)}: {half[pid]} -> {now}"
    assert our_sockets(instance) == sockets


@pytest.mark.timeout(900)
def test_reboots_cost_no_pod(instance: Instance) -> None:
    before = start_pods(instance)
    margins = []
    for cycle in range(REBOOTS):
        instance.reboot()
        check(instance, before, f"reboot {cycle}")
        margins.append(margin(instance))
    print(f"{REBOOTS} reboots, no pod lost; last list before first admission, ms: {summary(margins)}")
