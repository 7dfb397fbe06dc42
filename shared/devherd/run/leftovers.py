"""What an instance's processes are, and what is left of an instance: found by a mark, not by remembered pids."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass

from devherd.process import Handle, read_command

MARK = "DEVHERD_INSTANCE"
"""Environment variable that every process of an instance inherits; its value is the instance's folder."""


@dataclass(frozen=True)
class Leftovers:
    """Processes (pid and command) and socket files of an instance that should be gone."""

    processes: tuple[tuple[int, str], ...] = ()
    sockets: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.processes) + len(self.sockets)


def find(folder: str) -> Leftovers:
    """What is there of the instance in `folder`. Sockets: those that a process still has, and files in the folder."""
    processes = tuple((pid, " ".join(read_command(pid))) for pid in marked(folder))
    return Leftovers(processes, tuple(sorted(_bound(folder) | _socket_files(folder))))


def marked(folder: str) -> list[int]:
    """Pids of the instance's living processes, this one not counted."""
    mark = os.fsencode(f"{MARK}={folder}")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(int(name))
    return sorted(found)


def end(folder: str, spare: Collection[int] = (), grace: float = 0.0, limit: float = 10.0) -> list[int]:
    """End the instance's processes but `spare`: SIGTERM and `grace` seconds, then SIGKILL until none is found.

    Returns those that are still there after `limit` seconds (stuck in the kernel).
    """
    if grace > 0:
        handles = _send(folder, spare, signal.SIGTERM)
        deadline = time.monotonic() + grace
        for handle in handles:
            handle.wait(deadline - time.monotonic())
            handle.close()
    deadline = time.monotonic() + limit
    while handles := _send(folder, spare, signal.SIGKILL):
        for handle in handles:
            handle.wait(deadline - time.monotonic())
            handle.close()
        if time.monotonic() >= deadline:
            return [handle.pid for handle in handles]
    return []


def _send(folder: str, spare: Collection[int], number: int) -> list[Handle]:
    handles = []
    for pid in marked(folder):
        if pid in spare:
            continue
        with contextlib.suppress(ProcessLookupError):
            handle = Handle(pid)
            # Between the look and the handle the number may have become somebody else's.
            if pid in marked(folder) and handle.send(number):
                handles.append(handle)
            else:
                handle.close()
    return handles


def _bound(folder: str) -> set[str]:
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        # Num RefCount Protocol Flags Type St Inode Path; unbound sockets have no path.
        rows = [line.rstrip("\n").split(maxsplit=7) for line in file]
    return {row[7] for row in rows if len(row) == 8 and row[7].startswith(folder + "/")}


def _socket_files(folder: str) -> set[str]:
    found = set()
    for root, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    found.add(path)
    return found
