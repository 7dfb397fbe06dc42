"""What the kernel says processes cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

TICK = os.sysconf("SC_CLK_TCK")


def _rollup(pid: int) -> dict[str, int]:
    """Bytes by field of smaps_rollup (proc(5)); its unit is KiB."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def private(pid: int) -> int:
    """Bytes that only this process uses."""
    found = _rollup(pid)
    return found["Private_Clean"] + found["Private_Dirty"] + found.get("Private_Hugetlb", 0)


def rss(pid: int) -> int:
    """Bytes of this process that are in memory, shared ones counted whole."""
    return _rollup(pid)["Rss"]


def pss(pid: int) -> int:
    """Bytes of this process, those that several use divided among them."""
    return _rollup(pid)["Pss"]


def cpu(pid: int) -> float:
    """Seconds of CPU time so far: utime and stime, or, with a finer clock, the run time of all its threads."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / TICK
    run = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                run += int(file.read().split()[0])
    except OSError:
        return ticks
    # The clock tick is 10 ms. Threads that have ended are in utime and stime only.
    return run / 1e9 if abs(run / 1e9 - ticks) < 2 / TICK else max(ticks, run / 1e9)


def descriptors(pid: int) -> int:
    """Open descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    """Threads."""
    return len(os.listdir(f"/proc/{pid}/task"))


def steadily(pids: Iterable[int], seconds: float) -> dict[int, float]:
    """The share of one core that each process used over the next `seconds`."""
    before = {pid: cpu(pid) for pid in pids}
    start = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - start
    return {pid: (cpu(pid) - used) / passed for pid, used in before.items()}
