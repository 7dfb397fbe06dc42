"""Waiting until something known to the event loop becomes true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Level-triggered waiting: whoever changes state kicks, whoever waits looks again. No event can be missed."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def kick(self) -> None:
        """Say that something changed."""
        for waiter in self._waiters:
            _wake(waiter)

    async def until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the condition holds. False when the time (seconds) is up first."""
        loop = asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + timeout
        while not condition():
            if ends is not None and loop.time() >= ends:
                return False
            waiter = loop.create_future()
            self._waiters.add(waiter)
            timer = None if ends is None else loop.call_at(ends, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if timer is not None:
                    timer.cancel()
        return True


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
