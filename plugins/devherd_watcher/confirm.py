"""After a kubelet change: look whether every front is registered there, signal again, restart at last, report.

Rules only; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from devherd_watcher.judge import Verdict, may_restart
from devherd_watcher.owner import Identity

LOOKS = (1.0, 3.0, 8.0, 20.0)
"""When to look after the kubelet came, in units of the `confirm` setting. A restart is considered from the last on."""
SLOWLY = 30.0
"""Units between looks after that, so that what is reported stays true."""

AFTER_RESTART = 8.0
"""Units from a restart to the next look."""


class Plan(NamedTuple):
    """What to do after a look: whom to signal again, whom to restart and why, what to tell people."""

    signal: tuple[str, ...] = ()
    restart: tuple[tuple[str, str], ...] = ()
    report: tuple[str, ...] = ()


class Confirmation:
    """The looks after one kubelet came."""

    def __init__(self, kubelet: Identity, now: float, unit: float) -> None:
        self.kubelet = kubelet
        self.verdicts: dict[str, Verdict] = {}
        self.restarted: set[str] = set()
        self.reports: tuple[str, ...] = ()
        self.state = "checking"
        self._unit = unit
        self._began = now
        self._step = 0
        self._waiting: set[str] = set()
        self.due: float | None = now + LOOKS[0] * unit

    def look(self, names: Collection[str], now: float) -> None:
        """A look begins: these are asked, and `answer` is called for each."""
        self.verdicts = {}
        self._waiting = set(names)
        self._step += 1
        later = self._began + LOOKS[self._step] * self._unit if self._step < len(LOOKS) else now + SLOWLY * self._unit
        self.due = max(now, later)

    def answer(self, name: str, verdict: Verdict) -> bool:
        """One front's verdict. True: that was the last of this look."""
        self._waiting.discard(name)
        self.verdicts[name] = verdict
        return not self._waiting

    def conclude(self) -> Plan:
        """All have answered: what now?"""
        wrong = {name: verdict for name, verdict in self.verdicts.items() if not verdict.ok}
        if not wrong:
            self.state, self.due, self.reports = "confirmed", None, ()
            return Plan()
        if self._step < len(LOOKS):
            self.state = "checking"
            return Plan(signal=tuple(sorted(wrong)))
        self.state = "unconfirmed"
        restart, report = [], []
        for name, verdict in sorted(wrong.items()):
            refused = (
                "it was restarted for this already" if name in self.restarted else may_restart(name, self.verdicts)
            )
            if refused:
                report.append(
                    f"{name} is not registered with the kubelet {self.kubelet.pid}: {verdict.why} [{refused}]"
                )
            else:
                restart.append((name, f"not registered with the kubelet {self.kubelet.pid}: {verdict.why}"))
        self.reports = tuple(report)
        return Plan(tuple(sorted(wrong)), tuple(restart), self.reports)

    def restarting(self, name: str, now: float) -> None:
        """One is being restarted: look soon whether that helped."""
        self.restarted.add(name)
        self.due = now + AFTER_RESTART * self._unit

    def status(self) -> dict[str, Any]:
        """For people."""
        return {
            "state": self.state,
            "pid": self.kubelet.pid,
            "start_time": self.kubelet.start_time,
            "looks": self._step,
            "fronts": {name: _shown(verdict) for name, verdict in sorted(self.verdicts.items())},
            "restarted": sorted(self.restarted),
        }


def _shown(verdict: Verdict) -> Mapping[str, Any]:
    return {"registered": verdict.ok, "why": verdict.why}
