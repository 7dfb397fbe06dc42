"""Background tasks whose own mistakes end the process loudly: a simulator that fails in silence proves nothing."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Coroutine
from typing import Any

BUG = 70


def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task; an exception that leaves it is printed and ends the process with code 70."""
    task = asyncio.create_task(work)
    task.add_done_callback(_check)
    return task


def _check(task: asyncio.Task[None]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    sys.stderr.flush()
    os._exit(BUG)
