"""Ends one program at a time; supervisord starts it again by itself.

By signal, not by supervisord's stop and start: nothing is left stopped if the watcher dies in between, it works while
supervisord is slow, and nobody takes it for an operator's stop.
"""

from __future__ import annotations

import signal
from typing import Any

from devherd.process import Handle

GRACE = 15.0
"""Seconds after SIGTERM at which SIGKILL follows: as supervisord's stopwaitsecs."""
LOST = 10.0
"""Seconds after SIGKILL at which a process counts as stuck in the kernel."""
SETTLE = 20.0
"""Seconds from one end to the next one at the earliest, so that the first is back before a second goes."""
POLL = 0.1


class Restarter:
    """The one restart under way. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.name = ""
        self.count = 0
        self.problem = ""
        self._handle: Handle | None = None
        self._kill_at = 0.0
        self._killed = False
        self._free_at = 0.0
        self._look_at: float | None = None

    def free(self, now: float) -> bool:
        """Whether the next one may be restarted."""
        return self._handle is None and now >= self._free_at

    def begin(self, name: str, pid: int, start: int, now: float) -> bool:
        """End this process. False: it is gone already."""
        try:
            handle = Handle(pid)
        except OSError:
            return False
        if handle.stat.start != start or not handle.send(signal.SIGTERM):
            handle.close()
            return False
        self.name, self._handle = name, handle
        self._kill_at, self._killed, self.problem = now + GRACE, False, ""
        self._look_at = now + POLL
        self.count += 1
        return True

    def next(self) -> float | None:
        """When `timers` wants to be called."""
        return self._look_at

    def timers(self, now: float) -> None:
        """See whether it has ended, and use more force if it has not."""
        if self._handle is None or self._look_at is None or now < self._look_at:
            return
        self._look_at = now + POLL
        if self._handle.wait(0):
            self._over(now)
        elif now >= self._kill_at and not self._killed:
            self._killed = True
            self._kill_at = now + LOST
            self._handle.send(signal.SIGKILL)
        elif now >= self._kill_at:
            self.problem = f"{self.name}: pid {self._handle.pid} survives SIGKILL (stuck in the kernel)"
            self._over(now)

    def status(self) -> dict[str, Any]:
        """For people."""
        return {"count": self.count, "now": self.name if self._handle is not None else "", "last": self.name}

    def close(self) -> None:
        """Let go; a signal sent stays sent."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None
            self._look_at = None

    def _over(self, now: float) -> None:
        self.close()
        self._free_at = now + SETTLE
