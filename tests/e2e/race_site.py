"""Where the race is run: a real node, devherd with some plugins, pods on every resource, and what disturbs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from devherd.run.supervisor import Supervisor

from e2e import pods as shapes
from e2e import sandbox
from e2e.chaos_memory import MemoryGroup
from e2e.node import NAME, RealNode
from e2e.pods import PodView
from e2e.programs import wait
from e2e.suite import GENERIC, Devices, Suite, rule

DEVICES = 8
"""Devices of each resource."""
# Programs and how many resources each serves.
SETUPS: Mapping[str, tuple[int, ...]] = {
    "one plugin, one resource": (1,),
    "four plugins, six resources": (2, 2, 1, 1),
    "nine plugins, 20 resources": (3, 3, 2, 2, 2, 2, 2, 2, 2),
}
ONE, FOUR, NINE = SETUPS
_SPARE = 4 << 20


def plan(setup: str) -> dict[str, list[str]]:
    """Program -> families of devices it serves."""
    names = [GENERIC, *(f"plugin{n}" for n in range(2, 1 + len(SETUPS[setup])))]
    return {name: [f"{name}-{n}" for n in range(count)] for name, count in zip(names, SETUPS[setup], strict=True)}


def resource(family: str) -> str:
    """Its name for pods."""
    return f"example.com/{family}"


class Site:
    """One node with devherd on it. Use as a context manager."""

    def __init__(self, node: RealNode, setup: str, memory: MemoryGroup | None = None) -> None:
        self.node = node
        self.plan = plan(setup)
        self.families = [family for families in self.plan.values() for family in families]
        self.resources = [resource(family) for family in self.families]
        self.devices = Devices(dict.fromkeys(self.families, DEVICES))
        self.suite = _Housed({name: [rule(one, one) for one in ones] for name, ones in self.plan.items()}, memory)
        self._memory = memory
        self.pods: dict[str, frozenset[str]] = {}
        """Pod's name -> resources it must have a device of."""
        self._inside: dict[str, set[str]] = {}
        self._got: dict[str, frozenset[str]] = {}

    def __enter__(self) -> Site:
        self.node.fresh()
        with _private_library(self.node.base, self._memory):
            self.suite.start()
        self.suite.wait_registered(*self.resources)
        return self

    def __exit__(self, *_: object) -> None:
        self.suite.stop()
        for family in self.families:
            shutil.rmtree(f"/dev/{family}", ignore_errors=True)

    # Pods

    def pod_on_each(self, api: bool = False) -> None:
        """One running pod with a device of each resource."""
        for one in self.families:
            self._pod(one, [shapes.container("c", {resource(one): 1})], api)
        self.wait_settled()

    def pods_in_every_state(self) -> None:
        """Four pods, each with a device of every resource: running, crash-looping, its image missing, its init over."""
        wants = dict.fromkeys(self.resources, 1)
        self._pod("runs", [shapes.container("c", wants)])
        self._pod("crashes", [shapes.container("c", wants, command="exit 1")])
        self._pod("imageless", [shapes.container("c", wants, image="localhost/missing:1")])
        self._pod("started", [shapes.container("c")], init=[shapes.container("i", wants, command="exit 0")])
        self.wait_settled()

    def bystanders(self, count: int) -> None:
        """Pods that want no device, all of them running."""
        before = dict(self.pods)
        for n in range(count):
            self._pod(f"other{n:03d}", [shapes.container("c", command="sleep 1000000")])
            self.pods[f"other{n:03d}-{NAME}"] = frozenset()
        self.wait_settled(timeout=600)
        self.pods = before

    def _pod(self, name: str, containers: list[dict[str, Any]], api: bool = False, **more: Any) -> None:
        document = shapes.manifest(name, containers, **more)
        parts = [*containers, *more.get("init", [])]
        wanted = frozenset(one for part in parts for one in part["resources"]["limits"])
        name_there = name if api else f"{name}-{NAME}"
        self.pods[name_there] = wanted
        self._inside[name_there] = set(containers[0]["resources"]["limits"])
        if api:
            assert self.node.cluster is not None
            document["spec"]["nodeName"] = NAME
            self.node.cluster.apply(document)
        else:
            self.node.static_document(document)

    def wait_settled(self, timeout: float = 180.0) -> None:
        """Wait until the kubelet has decided about each pod, and each is as it should be or lost."""
        wait(lambda: all(self._settled(self.node.pods().get(name)) for name in self.pods), timeout, "pods settle", 0.2)

    @staticmethod
    def _settled(pod: PodView | None) -> bool:
        if pod is None:
            return False
        own = [one for one in pod.containers.values() if not one.init]
        return (
            pod.failed
            or pod.running
            or any(one.restarts or one.waiting.startswith(("Crash", "Err", "Image")) for one in own)
        )

    def lost(self) -> list[str]:
        """Pods that the kubelet refused, or that run without a device or with another one than before; with reasons."""
        views = self.node.pods()
        entries = self.node.checkpoint().get("PodDeviceEntries") or []
        problems = []
        for name, wanted in self.pods.items():
            pod = views.get(name)
            if pod is None or pod.failed:
                problems.append(f"{name}: {pod.reason + ': ' + pod.message if pod else 'gone'}")
                continue
            held = {
                (entry["ResourceName"], id)
                for entry in entries
                if entry["PodUID"] in (pod.uid, _config_hash(pod))
                for ids in entry["DeviceIDs"].values()
                for id in ids
            }
            if {one for one, _ in held} != wanted:
                problems.append(f"{name}: has devices of {sorted({one for one, _ in held})}, not of {sorted(wanted)}")
            if self._got.setdefault(name, frozenset(f"{one} {id}" for one, id in held)) != frozenset(
                f"{one} {id}" for one, id in held
            ):
                problems.append(f"{name}: has other devices than before")
        return problems

    def look_inside(self, name: str) -> list[str]:
        """What is wrong with the device nodes in a running pod's container; an init container's are no longer there."""
        nodes = self.node.look(name).nodes
        mine = {path: number for path, number in nodes.items() if path.split("/")[2] in self.families}
        wrong = [f"{name}: {path} is {number}" for path, number in mine.items() if number != self.devices.number(path)]
        seen = {resource(path.split("/")[2]) for path in mine}
        return wrong + ([f"{name}: sees devices of {sorted(seen)}"] if seen != self._inside[name] else [])

    # What disturbs

    def squeeze(self) -> None:
        """Memory ran out a moment ago: what the kernel could take from devherd, it has taken."""
        assert self._memory is not None
        self._memory.squeeze(_SPARE, 1)

    def processes(self) -> dict[str, int]:
        """Program -> its front's pid, and the watcher's and supervisord's."""
        pids = {name: int(self.suite.front(name)["pid"]) for name in self.plan}
        watcher = self.suite.watcher()
        return {**pids, "watcher": int(watcher["pid"]), "supervisord": self.suite.supervisor.pid or 0}


def _config_hash(pod: PodView) -> str:
    """The kubelet's own uid of a static pod, which its device manager goes by."""
    return str(pod.raw.get("metadata", {}).get("annotations", {}).get("kubernetes.io/config.hash", ""))


class _Housed(Suite):
    """devherd, in a memory group where one is given."""

    def __init__(self, plugins: Mapping[str, Any], memory: MemoryGroup | None) -> None:
        super().__init__(plugins, {}, "race")
        if memory is not None:
            self.supervisor = _HousedSupervisor(self.layout, memory)


class _HousedSupervisor(Supervisor):
    """Started inside a memory group, with all that it starts."""

    def __init__(self, layout: Any, memory: MemoryGroup) -> None:
        super().__init__(layout)
        self._memory = memory

    def start(self, timeout: float = 30.0) -> None:
        """Start and wait for READY=1."""
        with self._memory.entered():
            super().start(timeout)


@contextlib.contextmanager
def _private_library(folder: Path, memory: MemoryGroup | None) -> Iterator[None]:
    """Have gRPC's library, the biggest part of a front, in a copy whose pages belong to the memory group.

    Pages that others on this machine use too would stay whatever happens to the group.
    """
    if memory is not None:
        for library in Path(grpc.__file__).parent.glob("_cython/*.so"):
            copy = folder / library.name
            with memory.entered():
                shutil.copyfile(library, copy)
                os.sync()
            subprocess.run(["mount", "--bind", str(copy), str(library)], check=True)
    yield


class Hogs:
    """One process for each processor that never rests, at the usual priority. Use as a context manager."""

    def __enter__(self) -> Hogs:
        count = os.cpu_count() or 1
        self._all = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._all:
            one.kill()
            one.wait()


class Others:
    """How much of the machine is used by processes outside this sandbox, which are only seen in the machine's total."""

    def __init__(self) -> None:
        self._start = self._now()

    def share(self) -> float:
        """Of all processors, 0 to 1, since this object was made."""
        busy, ours, at = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return min(1.0, max(0.0, (busy - ours) / (at * (os.cpu_count() or 1))))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        ours = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                ours += sum(int(field) for field in file.read().rpartition(")")[2].split()[11:15])
        return (sum(fields) - fields[3] - fields[4]) / tick, ours / tick, time.monotonic()


assert sandbox  # the module of which every part of this one needs the inside
