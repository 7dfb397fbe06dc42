"""Processes as the kernel shows them: who is the parent, since when, what becomes of a signal.

Standard library only, because the launcher and the watcher use it. A pid alone is no identity (numbers are
reused); pid and start time are, and a pidfd is better where the kernel has it (Linux 5.3).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
LOCK_FD = "DEVHERD_LOCK_FD"
"""Environment variable in which the launcher names the descriptor of the instance lock."""


class Stat(NamedTuple):
    """A line of /proc/PID/stat (proc(5)). `start` is the start time in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    start: int


class Signals(NamedTuple):
    """Signal masks of /proc/PID/status: bit n-1 stands for signal n."""

    blocked: int
    ignored: int
    caught: int

    def harmless(self, number: int) -> bool:
        """True unless the signal would meet its default action, which for most of them is death."""
        return bool((self.blocked | self.ignored | self.caught) >> (number - 1) & 1)


def read_stat(pid: int | str, proc: str = "/proc") -> Stat | None:
    """What the kernel says about a process; None when there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The command name may hold blanks and brackets; the last closing one ends it.
    fields = line[line.rfind(b")") + 2 :].split()
    return Stat(int(line[: line.find(b" ")]), fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[19]))


def read_signals(pid: int, proc: str = "/proc") -> Signals | None:
    """What would become of a signal sent to the process now; None when there is no such process."""
    masks = {}
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"SigBlk:", b"SigIgn:", b"SigCgt:")):
                    masks[line[:6]] = int(line[7:], 16)
        return Signals(masks[b"SigBlk"], masks[b"SigIgn"], masks[b"SigCgt"])
    except (OSError, KeyError, ValueError):
        return None


def read_command(pid: int, proc: str = "/proc") -> list[str]:
    """The process's arguments; empty when it is gone or a zombie."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read()).split("\0")[:-1]
    except OSError:
        return []


def children_of(pid: int, proc: str = "/proc") -> list[int]:
    """Pids of a single-threaded process's children, at once and without asking it.

    One that is started or ends meanwhile may be missing: look again after an event.
    """
    try:
        with open(f"{proc}/{pid}/task/{pid}/children", "rb") as file:
            return [int(text) for text in file.read().split()]
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN, or no such process.
        stats = (read_stat(name, proc) for name in os.listdir(proc) if name.isdigit())
        return [stat.pid for stat in stats if stat is not None and stat.parent == pid]
    except OSError:
        return []


def alive(pid: int, start: int, proc: str = "/proc") -> bool:
    """True while this very process lives (a zombie does not)."""
    stat = read_stat(pid, proc)
    return stat is not None and stat.start == start and stat.state not in "ZX"


def die_with_parent(number: int) -> None:
    """Have the kernel send us `number` when the thread that started us ends (prctl(2), PR_SET_PDEATHSIG).

    The setting survives exec, not fork. A parent that died before the call is not noticed: check afterwards.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")


def adopt_lock() -> None:
    """Take over the launcher's lock: the descriptor stays open until we end, and our children get none of it.

    Without a launcher there is nothing to do. Never close that file in this process: that would drop the lock.
    """
    text = os.environ.pop(LOCK_FD, "")
    if text.isdigit():
        with contextlib.suppress(OSError):
            os.set_inheritable(int(text), False)


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor except `keep`."""
    kept = set(keep)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            # The listing's own descriptor is among them, and gone by now.
            with contextlib.suppress(OSError):
                os.close(int(name))


class Handle:
    """Another process, safe against reuse of its number: by pidfd, else by pid and start time.

    Raises ProcessLookupError when it does not exist.
    """

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self.fd = _pidfd(pid)
        stat = read_stat(pid, proc)
        if stat is None:
            self.close()
            raise ProcessLookupError(pid)
        self.stat = stat
        self._proc = proc

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.stat.pid

    def alive(self) -> bool:
        """True while it runs (a zombie does not)."""
        return alive(self.pid, self.stat.start, self._proc)

    def send(self, number: int) -> bool:
        """Send a signal. False: it is gone."""
        try:
            if self.fd >= 0:
                signal.pidfd_send_signal(self.fd, number)
            elif self.alive():
                os.kill(self.pid, number)
            else:
                return False
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for its end. True: it has ended."""
        if self.fd >= 0:
            poller = select.poll()
            poller.register(self.fd, select.POLLIN)
            return bool(poller.poll(max(0.0, timeout) * 1000))
        deadline = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def close(self) -> None:
        """Let go of the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return -1
