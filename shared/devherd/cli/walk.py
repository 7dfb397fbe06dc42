"""The main job, walked once: every step really happens, is timed, and is checked from the kubelet's side.

What a step claims is read from the kubelet (its own clock, its pods, what its containers were created with),
never from the plugin that is being shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devherd.cli.asking import Down
from devherd.cli.link import Link
from devherd.cli.place import Place, read_settings
from devherd.cli.simview import back, reregistered, settled
from devherd.cli.steps import Step, StepFailed, Steps
from devherd.cli.walk_checks import Checks
from devherd.cli.walk_faults import break_and_heal, hang_probe
from devherd.cli.words import count, listing, millis
from devherd.run.instance import Instance, Wish

Json = dict[str, Any]
LIMIT = 30.0
"""Seconds for what takes milliseconds, before the walk gives up: the machine may be busy."""
PODS = 3
"""Pods, each on a resource of its own."""
QUICK: dict[str, dict[str, Any]] = {
    "health": {"recover": 0.5, "debounce": 0.5},
    "probe": {"deadline": 1.0, "scan_interval": 2.0, "check_interval": 1.0},
    "snapshots": {"grace": 30.0},
}
"""Waiting times that are minutes on a node and would only make the walk long."""


@dataclass
class Walk:
    """One walk over one node. `real`: the node is this machine, whose devices are never broken."""

    instance: Instance
    steps: Steps
    real: bool = False
    resources: Json = field(default_factory=dict)
    reregistered_ms: dict[str, float | None] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    leftover: list[str] = field(default_factory=list)
    failed: str = ""
    interrupted: bool = False
    last_words: str = ""
    mine: list[Step] = field(default_factory=list)
    _link: Link | None = None
    _place: Place | None = None

    @property
    def link(self) -> Link:
        """The instance's sockets."""
        if self._link is None:
            self._link = Link(Path(self.instance.layout.folder))
        return self._link

    @property
    def place(self) -> Place:
        """The instance, as the other commands see it."""
        if self._place is None:
            config = self.instance.layout.config
            self._place = Place(read_settings(config), config, Path(self.instance.layout.folder))
        return self._place

    def run(self) -> None:
        """All steps in order; always stops the instance, whatever happens before."""
        begun = len(self.steps.done)
        try:
            for step in self._plan():
                step()
        except StepFailed as error:
            self.failed, self.last_words = str(error), self._last_words()
        except KeyboardInterrupt:
            self.failed, self.interrupted = "interrupted", True
        finally:
            if self._link is not None:
                self._link.close()
            self._stop()
            self.mine = self.steps.done[begun:]

    def as_json(self) -> Json:
        """This walk in the document."""
        return {
            "node": "this machine's own device nodes" if self.real else "simulated",
            "ok": not self.failed,
            "error": self.failed,
            "log": self.last_words.splitlines(),
            "resources": self.resources,
            "reregistered_ms": self.reregistered_ms,
            "pods_lost": len(self.lost),
            "recovered": not self.failed and not self.lost,
            "leftover": len(self.leftover),
            "leftover_what": self.leftover,
            "steps": [step.as_json() for step in self.mine],
        }

    def _plan(self) -> list[Callable[[], None]]:
        return [
            self._start,
            self._register,
            self._allocate,
            self._restart_kubelet,
            self._reboot,
            lambda: break_and_heal(self),
            lambda: hang_probe(self),
        ]

    # The steps

    def _start(self) -> None:
        with self.steps.step("start", "starting supervisord, the plugin, the watcher and a kubelet") as step:
            _guarded(lambda: self.instance.start())
            step.text = "supervisord, the generic plugin, the watcher and a kubelet run"

    def _register(self) -> None:
        with self.steps.step("register", "waiting for the resources") as step:
            began = time.monotonic()
            names = self._served(began + LIMIT)
            node = self.await_back(names)
            step.ms = (time.monotonic() - began) * 1000
            self.note_resources(node)
            devices = sum(item["allocatable"] for item in node["resources"].values())
            step.text = f"the kubelet has {count(len(names), 'resource')} with {count(devices, 'device')}"
            step.details = [f"{n}: {r['allocatable']} of {r['capacity']}" for n, r in node["resources"].items()]

    def _allocate(self) -> None:
        with self.steps.step("allocate", "giving devices to pods") as step:
            chosen = [n for n, item in self.link.node()["resources"].items() if item["allocatable"]][:PODS]
            times = []
            for number, resource in enumerate(chosen, 1):
                times.append(self.run_pod(f"pod-{number}", resource))
                step.details.append(f"pod-{number} runs with {resource}, Allocate {millis(times[-1])}")
            step.ms = max(times, default=0.0)
            step.text = f"{count(len(chosen), 'pod')} run, each with the device the kubelet chose"
            Checks(self).pods_right()

    def _restart_kubelet(self) -> None:
        with self.steps.step("kubelet restart", "killing the kubelet and bringing it back") as step:
            names, pods = list(self.link.node()["resources"]), self.running()
            self.link.runner("kubelet", action="kill")
            self.link.runner("kubelet", action="start")
            node = self.await_back(names)
            self.await_pods(pods)
            self.reregistered_ms = reregistered(node)
            self._tell_back(step, node, pods, "killed and back")

    def _reboot(self) -> None:
        with self.steps.step("reboot", "power cut and boot") as step:
            names, pods = list(self.link.node()["resources"]), self.running()
            began = time.monotonic()
            self.link.runner("reboot")
            node = self.await_back(names)
            self.await_pods(pods)
            step.facts["boot_ms"] = round((time.monotonic() - began) * 1000, 1)
            self._tell_back(step, node, pods, "all processes and containers gone and back")

    def _tell_back(self, step: Step, node: Json, pods: Sequence[str], what: str) -> None:
        """The common end of restart and reboot: all resources again, no pod lost, each with its device."""
        self.note_resources(node)
        times = reregistered(node)
        step.ms = max((ms for ms in times.values() if ms is not None), default=None)
        step.facts["reregistered_ms"] = times
        if (margin := self._margin()) is not None:
            step.facts["margin_ms"] = margin
        step.details = [f"{name} allocatable after {millis(ms)}" for name, ms in times.items()]
        step.details += [f"the first pod was admitted {margin:.0f} ms after the last of them"] if margin else []
        lost = self.lost_of(pods)
        step.text = f"{what}: {count(len(times), 'resource')} again, {count(len(lost), 'pod')} of {len(pods)} lost"
        if lost:
            raise StepFailed(f"{step.text}: {listing(lost)}; {self.why_lost(lost[0])}")
        Checks(self).pods_right()

    def _last_words(self) -> str:
        """The ends of the logs, taken before they are removed."""
        try:
            return self.instance.supervisor.last_words()
        except OSError:
            return ""

    def _margin(self) -> float | None:
        """Milliseconds between the last resource's first list and the first pod's admission; negative: too late."""
        firsts: dict[str, float] = {}
        pods = []
        for event in self.link.kubelet("log")["events"]:
            if event["what"] == "list":
                firsts.setdefault(event["resource"], event["t"])
            elif event["what"] in ("pod-admitted", "pod-rejected", "allocate"):
                pods.append(event["t"])
        return round((min(pods) - max(firsts.values())) * 1000, 1) if pods and firsts else None

    def _stop(self) -> None:
        with self.steps.step("stop", "stopping") as step:
            left = self.instance.stop()
            self.leftover = [f"process {pid} {command}" for pid, command in left.processes]
            self.leftover += [f"socket {path}" for path in left.sockets]
            step.details = list(self.leftover)
            step.ok = not self.leftover
            step.text = "nothing left behind" if step.ok else f"{count(len(left), 'thing')} left behind"
        if self.leftover and not self.failed:
            self.failed = f"left behind: {listing(self.leftover)}"

    # What several steps need

    def ask(self, op: str, timeout: float = 5.0, **fields: Any) -> list[Json]:
        """The fronts' replies to a request. Raises StepFailed when one gives none."""
        from devherd.cli.asking import ask_fronts

        answers = ask_fronts(self.place, {"op": op, **fields}, timeout=timeout)
        if answers.down or not answers.replies:
            raise StepFailed(f"{_silent(answers.down)} to {op!r}")
        return list(answers.replies)

    def await_back(self, names: Sequence[str]) -> Json:
        """The node once the kubelet has all these resources. Raises StepFailed."""
        node: Json | None = self.until(lambda: self._node_with(names), LIMIT)
        if node is not None:
            return node
        missing = [name for name in names if not back(self.link.node(), [name])]
        raise StepFailed(f"not back within {LIMIT:g} s: {listing(missing)}")

    def await_pods(self, names: Sequence[str]) -> None:
        """Wait until this kubelet runs these pods or has given up on them."""
        self.until(lambda: all(settled(pod) for pod in self.link.pods() if pod["name"] in names), LIMIT)

    def until(self, found: Callable[[], Any], seconds: float) -> Any:
        """What `found` returns once it is true, or None when the time is up."""
        deadline = time.monotonic() + seconds
        while not (result := found()):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        return result

    def run_pod(self, name: str, resource: str, number: int = 1) -> float:
        """Run a pod on a resource; how long the kubelet waited for Allocate, in milliseconds."""
        made = self.link.kubelet("pod-add", within=LIMIT, name=name, requests={resource: number}, wait=LIMIT - 5)
        if made["phase"] != "Running":
            raise StepFailed(f"pod {name} does not run: {made['reason'] or made['phase']}: {made['message']}")
        events = self.link.kubelet("log")["events"]
        at = {event["what"]: event["t"] for event in events if event.get("pod") == name}
        if "allocate" not in at or "allocated" not in at:
            raise StepFailed(f"pod {name} runs, but the kubelet logged no Allocate for it")
        return float(at["allocated"] - at["allocate"]) * 1000

    def running(self) -> list[str]:
        """Names of the pods that run."""
        return sorted(self.phases(("Running",)))

    def phases(self, phases: Sequence[str]) -> set[str]:
        """Names of the pods in one of these phases."""
        return {str(pod["name"]) for pod in self.link.pods() if pod["phase"] in phases}

    def lost_of(self, names: Sequence[str]) -> list[str]:
        """Those of the pods that do not run any more; they are counted."""
        lost = sorted(set(names) - self.phases(("Running",)))
        self.lost |= set(lost)
        return lost

    def why_lost(self, name: str) -> str:
        """What the kubelet says about a pod."""
        found = [pod for pod in self.link.pods() if pod["name"] == name]
        return f"{found[0]['reason']}: {found[0]['message']}" if found else "it is gone"

    def note_resources(self, node: Json) -> None:
        """Keep the resources as the kubelet sees them, for the document."""
        self.resources = {
            name: {"capacity": item["capacity"], "allocatable": item["allocatable"]}
            for name, item in node["resources"].items()
        }

    def _node_with(self, names: Sequence[str]) -> Json | None:
        node = self.link.node()
        return node if back(node, names) else None

    def _served(self, deadline: float) -> list[str]:
        """Names of the resources the plugin serves, once its first scan is done."""
        while True:
            try:
                replies = self.ask("status")
            except StepFailed:
                if time.monotonic() > deadline:
                    raise
                replies = []
            names = [str(item["name"]) for reply in replies for item in reply.get("resources", ())]
            if names:
                return sorted(names)
            if time.monotonic() > deadline:
                raise StepFailed(f"no plugin offers a resource after {LIMIT:g} s")
            time.sleep(0.02)


def wish_for(real: bool, plugin_configs: dict[str, str] | None = None, node: str = "workshop") -> Wish:
    """The instance a walk needs."""
    wanted = None if real else node
    return Wish(node=wanted, plugin_configs=plugin_configs, settings=QUICK)


def _guarded(start: Callable[[], None]) -> None:
    from devherd.run.supervisor import StartFailed

    try:
        start()
    except StartFailed as error:
        raise StepFailed(str(error)) from error


def _silent(down: Sequence[Down]) -> str:
    return "; ".join(f"{item.plugin} gives no answer: {item.why}" for item in down) or "no plugin answers"
