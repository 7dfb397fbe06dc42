"""Write-behind for state files: answers never wait for the disk.

One thread, one pending value per file: whatever was superseded while the disk was slow is not written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from devherd.log import event

logger = logging.getLogger(__name__)


RETRY = 30.0
"""Seconds until what could not be written is tried again."""


GATHER = 0.005
"""Seconds before a value is written: the answer that brought it goes out first, and a burst is written once."""


class Saves(Protocol):
    """A state file."""

    def encode(self, value: Any) -> bytes:
        """The file's content for a value."""
        ...

    def write(self, content: bytes) -> None:
        """Put it in place atomically; may wait for the disk. Raises OSError."""
        ...


class WriteBehind:
    """Saves values in the background. `problems` holds the last error of each file that cannot be written."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._pending: dict[str, tuple[Saves, Callable[[], Any]]] = {}
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self.problems: dict[str, str] = {}

    def put(self, name: str, file: Saves, value: Callable[[], Any]) -> None:
        """Have `value()` (called on the loop, at writing time) saved to `file`."""
        self._pending[name] = (file, value)
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._drain(), name="write-behind")

    async def flush(self, seconds: float) -> None:
        """Wait until everything is on disk, `seconds` at most."""
        if self._running is not None and not self._running.done():
            await asyncio.wait({self._running}, timeout=seconds)

    def close(self) -> None:
        """Forget what is pending. A thread stuck in the disk is left behind."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(GATHER)
        while self._pending:
            name = next(iter(self._pending))
            file, value = self._pending.pop(name)
            try:
                await loop.run_in_executor(self._executor, file.write, file.encode(value()))
                self.problems.pop(name, None)
            except OSError as problem:
                if name not in self.problems:
                    event(logger, "error", "cannot save state", what=name, error=str(problem))
                self.problems[name] = f"cannot save {name}: {problem}"
                loop.call_later(RETRY, self._again, name, file, value)

    def _again(self, name: str, file: Saves, value: Callable[[], Any]) -> None:
        if name not in self._pending and not self._closed:
            self.put(name, file, value)
