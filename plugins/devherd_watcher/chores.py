"""Work that may wait for a disk or for supervisord, or needs much code once in months: done by short-lived children.

So the loop that signals the fronts never waits, and the watcher never grows. A child is a plain fork: it inherits no
lock (record locks are not inherited), ends by itself at its deadline, and hands its result over as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

Done = Callable[[Any, str], None]
"""Gets the result and an empty text, or None and why there is none."""


class _Child(NamedTuple):
    name: str
    pid: int
    fd: int
    data: bytearray
    done: Done
    deadline: float


class Chores:
    """The children at work, one of each name at most. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._children: dict[int, _Child] = {}
        self._unreaped: set[int] = set()

    def busy(self, name: str) -> bool:
        """Whether a child of that name is at work."""
        return any(child.name == name for child in self._children.values())

    def start(self, name: str, work: Callable[[], Any], done: Done, seconds: float, now: float) -> bool:
        """Have `work` done elsewhere, within `seconds`. False: one of that name is still at work."""
        if self.busy(name):
            return False
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            done(None, f"{name}: {error.strerror}")
            return True
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            done(None, f"{name}: cannot start a process: {error.strerror}")
            return True
        if pid == 0:
            os.close(reading)
            _work(work, writing, seconds)
        os.close(writing)
        os.set_blocking(reading, False)
        self._children[reading] = _Child(name, pid, reading, bytearray(), done, now + seconds)
        return True

    def fds(self) -> list[int]:
        """Descriptors to poll for reading."""
        return list(self._children)

    def next(self) -> float | None:
        """When `timers` wants to be called."""
        return min((child.deadline for child in self._children.values()), default=None)

    def ready(self, fd: int) -> bool:
        """Handle a readable descriptor. False: not one of ours."""
        child = self._children.get(fd)
        if child is None:
            return False
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        child.data.extend(data)
        if not data:
            self._finish(child, "it ended without a result")
        return True

    def timers(self, now: float) -> None:
        """End what is overdue, and collect what has ended."""
        for child in list(self._children.values()):
            if now >= child.deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                child.data.clear()
                self._finish(child, "it took too long")
        self._reap()

    def close(self) -> None:
        """End all of them; nothing is reported."""
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            os.close(child.fd)
            self._unreaped.add(child.pid)
        self._children.clear()
        self._reap()

    def _finish(self, child: _Child, otherwise: str) -> None:
        del self._children[child.fd]
        os.close(child.fd)
        self._unreaped.add(child.pid)
        self._reap()
        try:
            answer = json.loads(child.data)
            result, error = answer["result"], answer["error"]
        except (ValueError, KeyError, TypeError):
            result, error = None, otherwise
        child.done(result, f"{child.name}: {error}" if error else "")

    def _reap(self) -> None:
        # Never waiting: one that the kernel holds is collected when it lets go.
        for pid in list(self._unreaped):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._unreaped.discard(pid)


def _work(work: Callable[[], Any], writing: int, seconds: float) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        # Outlives its deadline nowhere, not even when the watcher is gone.
        signal.alarm(int(seconds) + 2)
        # stdout is supervisord's listener protocol.
        os.dup2(2, 1)
        try:
            answer = {"result": work(), "error": ""}
        except Exception as error:
            answer = {"result": None, "error": f"{type(error).__name__}: {error}"}
        with open(writing, "w", encoding="utf-8") as file:
            json.dump(answer, file)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
