"""Speaks to a private instance: its runner, and the simulated kubelet it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devherd.cli.exits import NOT_READY, Fault
from devherd.cli.place import Place
from devherd.run.layout import Layout
from devherd.sim.client import SimClient, SimError

Json = dict[str, Any]
SLOW = 60.0
"""Seconds a reboot or a kubelet start may take on a busy machine."""


class Link:
    """The two control sockets of an instance."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(str(folder))
        self._sim = SimClient(self.layout.kubelet_control)

    @classmethod
    def to(cls, place: Place) -> Link:
        """The instance a command speaks to. Raises Fault when it speaks to none."""
        if place.instance is None:
            raise Fault(
                "no simulation is running",
                "Start one in another terminal: `make run`, or `devherd run --simulate`.",
                code=NOT_READY,
            )
        return cls(place.instance)

    def runner(self, op: str, timeout: float = SLOW, **fields: Any) -> Json:
        """One request to the runner. Raises Fault."""
        from devherd.control import ControlError, ask

        try:
            return ask(self.layout.control, {"op": op, **fields}, timeout=timeout)
        except ControlError as error:
            raise Fault(str(error)) from None

    def kubelet(self, op: str, within: float = 10.0, **fields: Any) -> Json:
        """One request to the simulated kubelet. Raises Fault."""
        try:
            return self._sim.ask(op, within=within, **fields)
        except SimError as error:
            raise self._fault(error) from None

    def pods(self) -> list[Json]:
        """All pods."""
        return list(self.kubelet("pods")["pods"])

    def node(self) -> Json:
        """The node as the kubelet sees it."""
        return self.kubelet("node")

    def close(self) -> None:
        """Close the connection to the kubelet."""
        self._sim.close()

    def _fault(self, error: SimError) -> Fault:
        if not isinstance(error.__cause__, OSError):
            return Fault(str(error))
        try:
            state = self.runner("status", timeout=5.0)
        except Fault as fault:
            return fault
        kubelet = state.get("kubelet")
        if kubelet is None:
            return Fault("this instance uses the machine's own kubelet", "Ask that one with kubectl.")
        if not kubelet["alive"]:
            return Fault("the simulated kubelet is down", "Start it: devherd simulate kubelet start", NOT_READY)
        return Fault(
            "the simulated kubelet does not answer", "If you froze it: devherd simulate kubelet unfreeze", NOT_READY
        )
