"""Who holds our devices: asks PodResources and reads the kubelet's checkpoint, seldom and guarded.

Nothing on the path of an Allocate waits for this. A kubelet that does not answer changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from devherd.front.journal import Journal
from devherd.front.model import Model
from devherd.kubelet.checkpoint import read_checkpoint
from devherd.kubelet.podresources import PodResources, PodResourcesError
from devherd.log import event
from devherd.patience import round_pause, woken
from devherd.settings import Settings

logger = logging.getLogger(__name__)

BUSY = 5.0
"""Seconds between looks while an id waits for its release: a stale answer, a missing device, a withdrawn resource."""
QUIET = 30.0
"""Seconds between looks otherwise."""


class Tenants:
    """Feeds the model's tenancy. `changed` is awaited when a device was released."""

    def __init__(
        self, settings: Settings, model: Model, journal: Journal, changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._paths = settings.paths
        self._model = model
        self._journal = journal
        self._changed = changed
        self._client = PodResources(settings.paths.pod_resources)
        self._wake = asyncio.Event()
        self._checkpoint_problem = ""
        self._list_problem = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps us from knowing who holds what; a kubelet that is simply away is none."""
        return tuple(text for text in (self._checkpoint_problem,) if text)

    def soon(self) -> None:
        """Something happened that makes a look worthwhile."""
        self._wake.set()

    async def loop(self) -> None:
        """Look, for ever."""
        while True:
            await self.look()
            await woken(self._wake, round_pause(BUSY if self._model.waiting() else QUIET))
            if self._wake.is_set():
                self._wake.clear()
                # An allocation shows up in the checkpoint a little after Allocate returned.
                await asyncio.sleep(1.0)

    def read_checkpoint(self) -> None:
        """Learn what the kubelet will replay. Before the first list of all: none of these ids may be missing in it."""
        held = read_checkpoint(self._paths.device_plugins)
        self._checkpoint_problem = held.problem
        if not held.problem:
            self._model.tenancy.checkpoint(self._ours(held.owners), time.monotonic())

    async def look(self) -> None:
        """One look at both sources."""
        tenancy = self._model.tenancy
        self.read_checkpoint()
        try:
            tenancy.listed(self._ours(await self._client.list()), time.monotonic())
            self._list_problem = ""
        except PodResourcesError as problem:
            tenancy.list_failed(time.monotonic())
            if not self._list_problem:
                event(logger, "debug", "PodResources does not answer", error=str(problem))
            self._list_problem = str(problem)
        released = self._model.release(time.monotonic())
        self._journal.released(released)
        for resource, id in released:
            event(logger, "info", "released", resource=resource, id=id)
        if released or self._model.waiting():
            await self._changed()

    def _ours(self, held: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
        return {resource: ids for resource, ids in held.items() if resource in self._model.boards}
