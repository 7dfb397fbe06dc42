"""Which of the two socket layouts is used, for all resources of a process together."""

from __future__ import annotations

import logging
from collections.abc import Callable

_LOG = logging.getLogger(__name__)

SUBFOLDER = "subfolder"
TOP = "top"


class Layout:
    """`auto` starts with the subfolder, which a kubelet's start-up wipe spares, and falls back to the top level once.

    `remembered` is what an earlier life fell back to; `on_fall_back` is told the new layout and why, to remember it.
    """

    def __init__(
        self,
        wanted: str = "auto",
        *,
        remembered: str = "",
        on_fall_back: Callable[[str, str], None] | None = None,
    ) -> None:
        self._wanted = wanted
        self._on_fall_back = on_fall_back
        self.reason = ""
        self.current = TOP if wanted == TOP or (wanted == "auto" and remembered == TOP) else SUBFOLDER

    def fall_back(self, reason: str) -> bool:
        """Switch to the top level because of `reason`. False when the settings forbid it or it is done already."""
        if self._wanted != "auto" or self.current == TOP:
            return False
        self.current, self.reason = TOP, reason
        _LOG.warning("sockets move to the top level", extra={"fields": {"reason": reason}})
        if self._on_fall_back is not None:
            self._on_fall_back(TOP, reason)
        return True

    def reset(self) -> None:
        """Try the preferred layout again: another version of the kubelet has come."""
        if self._wanted == "auto":
            self.current, self.reason = SUBFOLDER, ""
