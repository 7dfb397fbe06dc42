"""Processor time and memory of processes, as /proc shows them (proc(5))."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Use:
    """One process: part of a core since the last look (None at the first), and resident bytes."""

    cpu: float | None
    memory: int


class Usage:
    """Looks again and again at the same processes."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._last: dict[tuple[int, int], tuple[float, float]] = {}

    def look(self, pids: Iterable[int]) -> dict[int, Use]:
        """What each living process uses. A process that took over a pid starts anew."""
        found: dict[int, Use] = {}
        seen: dict[tuple[int, int], tuple[float, float]] = {}
        for pid in set(pids):
            read = self._read(pid)
            if read is None:
                continue
            start, used, memory = read
            now, before = time.monotonic(), self._last.get((pid, start))
            seen[pid, start] = (now, used)
            cpu = None if before is None or now <= before[0] else (used - before[1]) / (now - before[0])
            found[pid] = Use(cpu, memory)
        self._last = seen
        return found

    def _read(self, pid: int) -> tuple[int, float, int] | None:
        """Start time, seconds of processor time used, resident bytes."""
        try:
            with open(f"{self._proc}/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE
