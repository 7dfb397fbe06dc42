"""The vendor's event sources, polled beside the front's requests, with storms flattened to a few hints."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from devherd.vendor import Vendor, Watches

if TYPE_CHECKING:
    from devherd.host.events import EventSource

DEBOUNCE = 0.02
"""Seconds in which events are gathered before they become a hint; at most one drain per source and period."""
REOPEN = (1.0, 60.0)
"""Seconds before sources that broke are opened again: the first pause, and the cap of its doubling."""

logger = logging.getLogger(__name__)


class Sources:
    """All event sources of a vendor. Times are monotonic seconds."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor if isinstance(vendor, Watches) else None
        self._sources: list[EventSource] = []
        self._fds: list[int] = []
        self._due: float | None = None
        self._reopen: float | None = None
        self._pause = REOPEN[0]

    def open(self) -> None:
        """Open the sources; a failure is logged and tried again later, scans go on by interval."""
        self._reopen = None
        if self._vendor is None:
            return
        try:
            self._sources = list(self._vendor.sources())
            self._fds = [source.fileno() for source in self._sources]
        except (Exception, SystemExit) as error:
            self._broken(error)

    def close(self) -> None:
        """Close them all."""
        for source in self._sources:
            with contextlib.suppress(Exception):
                source.close()
        self._sources, self._fds = [], []

    def fds(self) -> Sequence[int]:
        """Descriptors to poll; none while events are being gathered."""
        return () if self._due is not None else self._fds

    def wait(self, now: float) -> float | None:
        """Seconds until something is to be done here; None: nothing before an event."""
        times = [at for at in (self._due, self._reopen) if at is not None]
        return max(0.0, min(times) - now) if times else None

    def fired(self, now: float) -> None:
        """One of `fds` is readable."""
        if self._due is None:
            self._due = now + DEBOUNCE

    def hints(self, now: float) -> list[str]:
        """Names of sources with relevant events, once the gathering time is over."""
        found: list[str] = []
        if self._reopen is not None and now >= self._reopen:
            self.open()
            if self._reopen is None:
                # What happened while nobody listened is unknown, so a scan is due.
                found.append("events lost")
        if self._due is not None and now >= self._due:
            self._due = None
            found += self._drain()
        return list(dict.fromkeys(found))

    def _drain(self) -> list[str]:
        try:
            names = [str(source.drain() or "") for source in self._sources]
        except (Exception, SystemExit) as error:
            self._broken(error)
            return ["events lost"]
        self._pause = REOPEN[0]
        return [name for name in names if name]

    def _broken(self, error: BaseException) -> None:
        logger.warning("event sources failed (%s: %s); again in %g s", type(error).__name__, error, self._pause)
        self.close()
        self._reopen = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, REOPEN[1])
