"""First in line for a processor, for as long as a kubelet is awaited and while it takes our lists in.

On a busy node everything that starts at boot, or after an upgrade, wants the processors at once, and the kubelet's
first pod comes 10 to 200 ms after its socket. Somebody who waits, and then needs three milliseconds, takes nothing
from the others by going first. Nice values do not help: they count within one session or control group only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

_KEPT = 1.0  # seconds after the kubelet was seen
_FIRST = 1  # the lowest of the real-time priorities: before every usual process, after the kernel's own


class Urgency:
    """This process's scheduling, all its threads. Where it may not be changed, nothing is."""

    def __init__(self) -> None:
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A kubelet is awaited."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._urgent:
            self._urgent = _scheduled(os.SCHED_RR, _FIRST)

    def end_soon(self) -> None:
        """It is there."""
        if self._urgent and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_KEPT, self.end)

    def end(self) -> None:
        """As all others."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._urgent:
            self._urgent = False
            _scheduled(os.SCHED_OTHER, 0)


def _scheduled(policy: int, priority: int) -> bool:
    """Set it for every thread; those that they start inherit it. False: not allowed here."""
    try:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread), policy, os.sched_param(priority))
    except OSError:
        return False
    return True
