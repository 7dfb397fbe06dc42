"""Waiting with a limit, without asyncio.wait_for: before Python 3.12 that may swallow the caller's cancellation
when what it waits for is done at the same moment, and a loop that misses its end never ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def round_pause(seconds: float) -> float:
    """How long to sleep until the next of the moments, `seconds` apart, at which everything in this process looks.

    Loops that wake together cost one wake-up; processes (by pid) wake at different times. The first pause is shorter,
    and none is so short that the same moment would be met twice.
    """
    if seconds <= 0:
        return 0.0
    pause = seconds - (time.monotonic() + os.getpid()) % seconds
    return pause if pause > seconds / 20 else pause + seconds


async def woken(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, `seconds` at most. True: it is set."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=seconds)
    finally:
        waiter.cancel()
    return event.is_set()


async def within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run to the end, or cancel after `seconds` and raise asyncio.TimeoutError."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise asyncio.TimeoutError
    return task.result()
