"""One trial: the kubelet starts beside a devherd that is up, and the log tells who came first."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from e2e.kubelog import KubeletLog
from e2e.programs import TookTooLong, wait
from e2e.race_site import Others, Site

_SERVES = "Starting device plugin registration server"
_TAKEN_IN = re.compile(r'"State pushed for device plugin" resource="([^"]+)"')
_TRIES = 5
_QUIET = 1.2
"""Seconds without a look at anything, so that looking takes nothing from the race."""


@dataclass(frozen=True)
class Trial:
    """Times in milliseconds after the kubelet began to open its socket. `margin` is the first pod's time minus `known`.

    `known` is when it took in the last resource's list, from where on it admits pods; `saved` when it also had written
    its checkpoint for the last time, which no pod waits for.

    `cpu` maps program -> milliseconds of processor time from the kubelet's start until things are quiet, `faults` the
    pages that fronts had to read from disk; `others` is the share of the machine that others used.
    """

    known: float
    saved: float
    resources: dict[str, float]
    first_pod: float
    lost: list[str]
    pods: int
    cpu: dict[str, float]
    faults: int
    others: float
    margin: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin", self.first_pod - self.known)


def reboot(site: Site, number: int, disturb: Callable[[], object]) -> Trial:
    """Kubelet, containers and devherd gone as at a reboot; devherd up again, then the kubelet."""
    measured = _Measured(site)

    def before() -> None:
        site.suite.power_cycle()
        disturb()
        measured.begin()

    site.node.kubelet_stop(signal.SIGKILL)
    for _ in range(_TRIES):
        # A busy containerd may miss a kill.
        with contextlib.suppress(TookTooLong):
            site.node.containerd.containers_gone()
            break
    site.node.reboot(before)
    return measured.end(number)


def restart(site: Site, number: int, disturb: Callable[[], object]) -> Trial:
    """Only the kubelet, killed and stopped by turns."""
    measured = _Measured(site)
    site.node.kubelet_stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
    disturb()
    measured.begin()
    site.node.kubelet_start()
    return measured.end(number)


class _Measured:
    """Around one start of the kubelet."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def begin(self) -> None:
        """All is as it should be; the kubelet starts next."""
        self._pids = self._site.processes()
        self._others = Others()
        self._cpu = _cpu(self._pids)
        self._faults = _faults(self._pids)

    def end(self, number: int) -> Trial:
        """Wait until every pod's lot is known."""
        site = self._site
        time.sleep(_QUIET)
        log = wait(self._over, 60, "the resources are known and a pod came", every=0.2)
        assert log is not None
        cpu = {name: round((used - self._cpu[name]) / 1e6, 2) for name, used in _cpu(self._pids).items()}
        faults, others = _faults(self._pids) - self._faults, self._others.share()
        site.wait_settled()
        lost = site.lost()
        running = sorted(name for name, pod in site.node.pods().items() if name in site.pods and pod.running)
        if running:
            lost += site.look_inside(running[number % len(running)])
        start = next(at for at, text in log.lines() if _SERVES in text)
        known = {name: round((at - start) * 1000, 2) for name, at in _taken_in(log).items()}
        saved = {name: round((at - start) * 1000, 2) for name, at in log.known().items()}
        first = log.first_pod()
        assert first is not None
        return Trial(
            known=max(known.get(one, float("inf")) for one in site.resources),
            saved=max(saved.values()),
            resources=known,
            first_pod=round((first - start) * 1000, 2),
            lost=lost,
            pods=len(site.pods),
            cpu=cpu,
            faults=faults,
            others=round(others, 3),
        )

    def _over(self) -> KubeletLog | None:
        log = self._site.node.log()
        return log if log.first_pod() is not None and set(self._site.resources) <= set(log.known()) else None


def _taken_in(log: KubeletLog) -> dict[str, float]:
    found: dict[str, float] = {}
    for at, text in log.lines():
        if match := _TAKEN_IN.search(text):
            found.setdefault(match[1], at)
    return found


def _cpu(pids: dict[str, int]) -> dict[str, int]:
    """Nanoseconds of processor time that all threads of each have used."""
    used = dict.fromkeys(pids, 0)
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as file:
                    used[name] += int(file.read().split()[0])
    return used


def _faults(pids: dict[str, int]) -> int:
    total = 0
    for pid in pids.values():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            total += int(file.read().rpartition(")")[2].split()[9])
    return total
