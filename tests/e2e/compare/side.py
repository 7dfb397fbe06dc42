"""What a scenario can do to a node and ask of it, whichever kubelet it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Ctr:
    """A container: its name and its limits."""

    name: str = "c"
    requests: Mapping[str, int] = field(default_factory=dict)
    sidecar: bool = False


@dataclass(frozen=True)
class PodSpec:
    """A static pod. `misplaced`: it selects a node that this one is not."""

    name: str
    containers: Sequence[Ctr]
    init: Sequence[Ctr] = ()
    misplaced: bool = False


@dataclass(frozen=True)
class View:
    """A pod as its status says. `containers`: name -> {state, reason, message, restarts, health}."""

    uid: str
    phase: str
    reason: str
    message: str
    containers: Mapping[str, Mapping[str, Any]]


class Side(Protocol):
    """One kubelet. `kind` is `simulated` or `real`; `line` is what it is or plays, (1, 37)."""

    kind: str
    line: tuple[int, int]
    device_plugins: str
    registry: str
    pod_resources: str

    def begin(self, options: Mapping[str, Any]) -> None:
        """A kubelet runs, with no pods, and with these options (topology policy; what only the simulation has)."""

    def end(self) -> None:
        """Take away what the scenario left."""

    def alive(self) -> bool:
        """Whether the kubelet runs."""

    def stop(self, *, kill: bool = True) -> None:
        """Stop the kubelet; containers go on."""

    def start(self, *, wait: bool = True) -> None:
        """Start it; with `wait` until it has taken its pods."""

    def start_with_pods_late(self, before_pods: Callable[[], None]) -> None:
        """Start it; it is told of its pods when `before_pods` is done. Returns at once then."""

    def lose_containers(self) -> None:
        """What a reboot does to containers; the kubelet is down."""

    def freeze(self) -> None:
        """The kubelet stops, its sockets open."""

    def thaw(self) -> None:
        """It goes on."""

    def add(self, pod: PodSpec) -> None:
        """Put a pod on the node."""

    def remove(self, name: str) -> None:
        """Take it away; returns when the kubelet forgot it."""

    def view(self, name: str) -> View | None:
        """A pod's status."""

    def kill_container(self, pod: str, container: str) -> None:
        """Its process ends, whether a kubelet runs or not."""

    def got(self, pod: str, container: str) -> dict[str, Any]:
        """What a running container was given: env, nodes, mounts, annotations."""

    def counts(self) -> dict[str, tuple[int, int]]:
        """Resource -> (capacity, allocatable)."""
