"""What can wait while a kubelet takes our lists in: its first pod does not.

Each line of the log wakes supervisord, each event of the audit trail a thread and the disk, and all of them want the
processors that the kubelet and the other plugins need at that moment.
"""

from __future__ import annotations

import asyncio
import logging

AFTERWARDS = 0.3
"""Seconds after which the lists are out, or something is wrong anyhow."""


def say_later(logger: logging.Logger, text: str, /, **fields: object) -> None:
    """Log what happens now, with the time of now, in a moment. Needs a running event loop."""
    if logger.isEnabledFor(logging.INFO):
        place = (__file__, 0)
        record = logger.makeRecord(logger.name, logging.INFO, *place, text, (), None, extra={"fields": fields})
        asyncio.get_running_loop().call_later(AFTERWARDS, logger.handle, record)
