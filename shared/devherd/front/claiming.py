"""The front's part in the node's registry of who owns which physical device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

from devherd.claims import ClaimRegistry, ClaimsError, plan
from devherd.front.model import Model
from devherd.log import event
from devherd.process import read_stat

logger = logging.getLogger(__name__)


class Claiming:
    """One plugin's claims. `problem` says why they cannot be recorded now; empty if they can."""

    def __init__(self, run: str, plugin: str) -> None:
        self.problem = ""
        self._registry = ClaimRegistry(run)
        self._plugin = plugin
        stat = read_stat("self")
        self._start = stat.start if stat else 0

    async def renew(self, model: Model) -> None:
        """Tell the registry what is ours now, and the model what somebody else owns."""
        planned = plan(model.inventory.resources)
        loop = asyncio.get_running_loop()
        try:
            lost = await loop.run_in_executor(
                None, self._registry.replace, self._plugin, os.getpid(), self._start, planned.claims
            )
            self.problem = ""
        except (ClaimsError, OSError) as problem:
            lost = {}
            self.problem = f"cannot record which devices are ours: {problem}"
            event(logger, "error", "claims unavailable", error=str(problem))
        model.contested(planned, lost)

    def release(self) -> None:
        """Give everything up. Not for a restart: the claims of a plugin that comes back linger for it."""
        with contextlib.suppress(ClaimsError, OSError):
            self._registry.release(self._plugin)
