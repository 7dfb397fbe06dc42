"""What a test holds in its hands: a fresh node, devherd on it, devices that come and go, and what the kubelet says."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from e2e import podresources
from e2e.node import RealNode
from e2e.pods import PodView
from e2e.programs import wait
from e2e.suite import GENERIC, Devices, Suite, rule

DOMAIN = "example.com"
QUICK = {"health": {"recover": 1.0}, "snapshots": {"grace": 3.0}, "probe": {"scan_interval": 5.0}}
"""Pauses that only make a test longer."""


def name(family: str) -> str:
    """A family's resource."""
    return f"{DOMAIN}/{family}"


class Rig:
    """A node and the devherd on it. Use as a context manager."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self.suite: Suite | None = None
        self._families: list[str] = []
        self._devices: Devices | None = None

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        if self.suite is not None:
            self.suite.stop()
        for family in self._families:
            shutil.rmtree(f"/dev/{family}", ignore_errors=True)

    def devherd(
        self,
        families: Mapping[str, int],
        settings: Mapping[str, Any] | None = None,
        rules: Mapping[str, Mapping[str, Any]] | None = None,
        plugins: Mapping[str, Sequence[str]] | None = None,
    ) -> Suite:
        """Make device nodes (family -> how many), start devherd with a resource for each, wait for registration.

        `rules` has more for a family's rule; `plugins` says which program serves which families, if not the one.
        """
        self._families = list(families)
        self._devices = Devices(families)
        served = plugins or {GENERIC: list(families)}
        made = {program: [self._rule(one, rules or {}) for one in ones] for program, ones in served.items()}
        self.suite = Suite(made, {**QUICK, **(settings or {})})
        self.suite.start()
        if self.node.kubelet.running:
            self.suite.wait_registered(*map(name, families))
        return self.suite

    @staticmethod
    def _rule(family: str, more: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {**rule(family, family), **more.get(family, {})}

    @property
    def devices(self) -> Devices:
        """The device nodes."""
        assert self._devices is not None
        return self._devices

    def lose(self, family: str, n: int) -> None:
        """A device is unplugged."""
        self.devices.vanish(self.devices.path(family, n))

    def find(self, family: str, n: int) -> None:
        """A device is plugged in again."""
        self.devices.appear(self.devices.path(family, n))

    @staticmethod
    def calm(timeout: float = 60.0) -> None:
        """Wait until this machine has a processor to spare: a kubelet's first pods come tens of milliseconds after it.

        How a loaded machine fares is measured by `make bench-race`; other programs' load must not turn a test red.
        """
        end, quiet = time.monotonic() + timeout, 0
        while quiet < 5 and time.monotonic() < end:
            wall, own = time.monotonic(), time.process_time()
            while time.process_time() - own < 0.02:
                pass
            quiet = quiet + 1 if time.monotonic() - wall < 0.024 else 0
            time.sleep(0.1)

    # What pods have

    def got(self, pod: str, container: str = "c") -> list[str]:
        """Paths of our device nodes that a container really has, each checked to be the right device."""
        nodes = self.node.look(pod, container).nodes
        mine = {path: number for path, number in nodes.items() if path.split("/")[2] in self._families}
        for path, number in mine.items():
            assert number == self.devices.number(path), f"{pod}: {path} is device {number}"
        return sorted(mine)

    def holds(self, pod: str, container: str = "c", family: str = "") -> set[str]:
        """Ids that PodResources says a container has, each once; none while it does not answer."""
        found: list[str] = []
        held: podresources.Held = {}
        with contextlib.suppress(grpc.RpcError):
            held = podresources.held()
        for resource, ids in held.items():
            if family in ("", resource.rpartition("/")[2]):
                found += [one for one, owners in ids.items() for owner in owners if owner == f"{pod}/{container}"]
        assert len(found) == len(set(found)), f"listed twice: {found}"
        return set(found)

    # What the kubelet knows

    def allocatable(self, family: str) -> int:
        """Devices that a pod could be given, or has, by PodResources; -1 while the kubelet does not answer."""
        try:
            return len(podresources.allocatable().get(name(family), ()))
        except grpc.RpcError:
            return -1

    def wait_allocatable(self, family: str, count: int, timeout: float = 30.0) -> None:
        """Wait for it."""
        wait(lambda: self.allocatable(family) == count, timeout, f"{count} allocatable {family}")

    def wait_counts(self, family: str, capacity: int, allocatable: int, timeout: float = 60.0) -> None:
        """Wait until the node object shows these two (needs a control plane)."""
        seen: dict[str, tuple[int, int]] = {}

        def look() -> bool:
            seen.clear()
            seen.update(self.node.resources())
            return seen.get(name(family), (0, 0)) == (capacity, allocatable)

        try:
            wait(look, timeout, "", every=0.3)
        except AssertionError:
            said = f"{family}: {capacity}/{allocatable} expected, the node says {seen.get(name(family))}"
            raise AssertionError(f"{said} after {timeout:g} s") from None

    def health(self, pod: str, family: str, container: str = "c") -> set[str]:
        """Health words in allocatedResourcesStatus."""
        view = self.node.pod(pod)
        ids: Mapping[str, str] = {}
        if view is not None and container in view.containers:
            ids = view.containers[container].health.get(name(family), {})
        return set(ids.values())

    def wait_lost(self, pod: str, text: str = "", timeout: float = 60.0) -> PodView:
        """Wait until a pod was rejected, and check why."""
        view = self.node.wait_pod(pod, "Failed", timeout)
        assert view.reason == "UnexpectedAdmissionError", view
        assert text in view.message, view.message
        return view

    def ids(self, family: str) -> set[str]:
        """The ids devherd lists, as the kubelet has them now."""
        with contextlib.suppress(grpc.RpcError):
            return podresources.allocatable().get(name(family), set())
        return set()
