"""supervisord looks at its children once a second, or when somebody connects: after an end somebody does.

A front that was killed is back a second sooner; nothing is said on the connection.
"""

from __future__ import annotations

import contextlib
import os

from devherd.control import dial

AFTER = (0.0, 0.02, 0.06, 0.2)
"""Seconds after an end at which to connect: the first look collects the dead, the next one starts the successor."""


class Nudge:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._path = os.environ.get("SUPERVISOR_SERVER_URL", "").removeprefix("unix://")
        self._at: list[float] = []

    def soon(self, now: float) -> None:
        """A program has ended."""
        self._at = [now + after for after in AFTER]

    def next(self) -> float | None:
        """When `timers` wants to be called."""
        return self._at[0] if self._at else None

    def timers(self, now: float) -> None:
        """Connect if it is time."""
        if self._at and now >= self._at[0]:
            self._at = [at for at in self._at if at > now]
            with contextlib.suppress(OSError):
                dial(self._path).close()
