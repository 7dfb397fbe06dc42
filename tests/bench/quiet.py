"""A calm machine, or the calmest there was: rounds in which other programs were busy are measured again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from bench.processes import TICK

T = TypeVar("T")
CALM = 0.15
"""The share of the machine that others may use while something is measured."""


class Others:
    """How much of the machine is used by processes that are neither this one nor its descendants."""

    def __init__(self) -> None:
        self._busy, self._ours, self._at = _busy_seconds(), _our_seconds(), time.monotonic()

    def share(self) -> float:
        """The share (0 to 1) of all cores since this object was made."""
        capacity = (time.monotonic() - self._at) * (os.cpu_count() or 1)
        used = (_busy_seconds() - self._busy) - (_our_seconds() - self._ours)
        return min(1.0, max(0.0, used / capacity))


class Quiet:
    """One case's way to calm. `share` is what others used in the worst round that counts.

    `patience` is for how many seconds in all a case may wait and repeat; after that the calmest rounds count.
    """

    def __init__(self, patience: float) -> None:
        self.share = 0.0
        self._left = patience

    def rounds(self, count: int, measure: Callable[[], Iterable[T]]) -> list[T]:
        """The samples of `count` rounds."""
        made: list[tuple[float, list[T]]] = []
        while len(made) < count or (self._left > 0 and sum(share <= CALM for share, _ in made) < count):
            self._settle()
            others, start = Others(), time.monotonic()
            samples = list(measure())
            share = others.share()
            made.append((share, samples))
            if share > CALM:
                self._left -= time.monotonic() - start
        best = sorted(made, key=lambda one: one[0])[:count]
        self.share = max(self.share, *(share for share, _ in best))
        return [sample for _, samples in best for sample in samples]

    def _settle(self) -> None:
        while self._left > 0:
            others = Others()
            time.sleep(0.5)
            if others.share() <= CALM:
                return
            self._left -= 0.5


def _busy_seconds() -> float:
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def _our_seconds() -> float:
    """CPU seconds of this process and all its descendants, those that have ended included."""
    used: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            used[int(name)] = sum(int(field) for field in fields[11:15])
            children.setdefault(int(fields[1]), []).append(int(name))
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += used.get(pid, 0)
        todo += children.get(pid, [])
    return total / TICK
