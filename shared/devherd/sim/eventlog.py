"""What happened, in order, with monotonic times; everything that waits, waits on this."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

KEPT = 5000


class EventLog:
    """A bounded list of events and a wake-up for each new one.

    `first` has the time of the first event of each sort and resource, however long ago that was.
    `t` is CLOCK_MONOTONIC in seconds, the same clock in every process of a machine.
    """

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = 0
        self.first: dict[tuple[str, str], float] = {}
        self._changed: asyncio.Future[None] | None = None

    def __call__(self, what: str, **fields: Any) -> None:
        """Append one event and wake all who wait."""
        self._number += 1
        now = time.monotonic()
        self._events.append({"seq": self._number, "t": now, "what": what, **fields})
        if "resource" in fields:
            self.first.setdefault((what, fields["resource"]), now)
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    def since(self, seq: int = 0, what: str | None = None) -> list[dict[str, Any]]:
        """Events with a higher number, optionally of one sort."""
        return [e for e in self._events if e["seq"] > seq and (what is None or e["what"] == what)]

    async def until(self, found: Callable[[], Any], timeout: float) -> Any:
        """Wait until `found` returns something true; re-evaluated after each event. None when time is up."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while not (result := found()):
            left = end - loop.time()
            if left <= 0:
                return None
            if self._changed is None:
                self._changed = loop.create_future()
            # A wake-up at least every 50 ms: what depends on time alone (grace, stall) makes no event.
            await asyncio.wait([self._changed], timeout=min(left, 0.05))
        return result
