"""Which fronts answer, and since when one does not. Rules only; times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

STARTING = 5
"""A front that was never heard may take so many times as long: one that is killed while it starts on a slow or busy
machine starts from the beginning, on a machine that has not become quicker, and so never ends to start."""


class Silent(NamedTuple):
    """The fronts that have not answered for too long, of so many."""

    pids: tuple[int, ...]
    of: int

    @property
    def all(self) -> bool:
        """All of several at once: then it is not the fronts that are wrong."""
        return len(self.pids) == self.of and self.of > 1


class Pulse:
    """The fronts' signs of life, by pid."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._why: dict[int, str] = {}
        self._heard: set[int] = set()
        self._looked = 0.0

    def fronts(self, pids: Collection[int], now: float, pause: float) -> None:
        """These are there now. `pause` is how often this is called: a longer gap means that we slept, not they."""
        if now - self._looked > 3 * pause + 1:
            self._last.clear()
        self._looked = now
        self._last = {pid: self._last.get(pid, now) for pid in pids}
        self._heard &= set(pids)
        self._why = {pid: why for pid, why in self._why.items() if pid in self._last}

    def answered(self, pid: int, now: float) -> None:
        """It lives."""
        if pid in self._last:
            self._last[pid] = now
            self._heard.add(pid)
            self._why.pop(pid, None)

    def failed(self, pid: int, why: str) -> None:
        """It did not answer this time."""
        if pid in self._last:
            self._why[pid] = why

    def silence(self, pid: int, now: float) -> float:
        """Seconds since its last sign of life."""
        return now - self._last.get(pid, now)

    def why(self, pid: int) -> str:
        """What became of the last question to it; empty: it answered."""
        return self._why.get(pid, "")

    def silent(self, now: float, limit: float) -> Silent:
        """Who has been silent for `limit` seconds, or for STARTING times that and was never heard."""
        limits = {pid: limit if pid in self._heard else STARTING * limit for pid in self._last}
        pids = tuple(sorted(pid for pid, last in self._last.items() if now - last >= limits[pid]))
        return Silent(pids, len(self._last))
