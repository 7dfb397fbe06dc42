"""What a process uses, so that a leak can be told from work."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """One process: private memory in KiB, descriptors, threads."""

    private: int
    descriptors: int
    threads: int


def usage(pid: int) -> Usage:
    """What a process uses now. Raises FileNotFoundError or ProcessLookupError when it is gone."""
    return Usage(private(pid), len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")))


def private(pid: int) -> int:
    """A process's own memory. Anonymous pages count whether or not a child that was just forked still shares them."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))
