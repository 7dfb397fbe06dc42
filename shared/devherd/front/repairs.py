"""Has devices reset that need it, when nobody holds them: seldom, one at a time, and only so often a day.

The plugin's own configuration says whether it resets at all: without that its vendor has no repairs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from devherd.front.journal import Journal
from devherd.front.model import Model
from devherd.front.probelink import ProbeError, ProbeLink
from devherd.log import event
from devherd.patience import round_pause
from devherd.values import Clears

logger = logging.getLogger(__name__)

DAY = 86400.0
LISTED = 3
"""Looks in a row at which a thing has to be found in need of a reset: by then the kubelet knows that it is Unhealthy,
and an Allocate that was under way has shown up as a holder."""


class Repairs:
    """Asks the probe for resets. `changed` is awaited when one worked."""

    def __init__(
        self, model: Model, journal: Journal, probe: ProbeLink, changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._model = model
        self._journal = journal
        self._probe = probe
        self._changed = changed
        self._seen: dict[str, int] = {}
        self._tried: dict[str, list[float]] = {}

    async def loop(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(round_pause(self._probe.limits.check_interval))
            if "repairs" in self._probe.capabilities and self._model.detached is None:
                await self.look(time.monotonic())

    async def look(self, now: float) -> None:
        """One look; at most one reset."""
        need = self._model.resettable(now)
        self._seen = {thing: self._seen.get(thing, 0) + 1 for thing in need}
        due = [thing for thing in need if self._seen[thing] >= LISTED and self._may(thing, now)]
        if due:
            await self._repair(due[0], now)

    def _may(self, thing: str, now: float) -> bool:
        """Whether the day's budget has one more, and the last one is long enough ago for its outcome to be seen."""
        tried = self._tried[thing] = [at for at in self._tried.get(thing, ()) if now - at < DAY]
        settings = self._model.settings
        pause = settings.health.recover + 2 * settings.probe.check_interval
        return len(tried) < settings.health.resets_per_day and (not tried or now - tried[-1] >= pause)

    async def _repair(self, thing: str, now: float) -> None:
        tried = self._tried[thing]
        attempt = len(tried)
        tried.append(now)
        try:
            error = await self._probe.repair(thing, attempt)
        except ProbeError as problem:
            error = str(problem)
        seconds = round(time.monotonic() - now, 3)
        self._journal.note("repaired", thing=thing, attempt=attempt, seconds=seconds, reason=error)
        event(logger, "warning", "reset" if not error else "no reset", thing=thing, attempt=attempt, reason=error)
        self._seen.pop(thing, None)
        if not error:
            self._model.health.clear(thing, Clears.RESET, time.monotonic())
            await self._changed()
