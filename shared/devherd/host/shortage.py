"""Telling "it is not there" from "I could not look".

A process without descriptors or memory cannot read a folder. Taken for an empty one, that would withdraw every
device of a healthy node; so such errors end the scan, and the last inventory stays in force.
"""

from __future__ import annotations

import errno

SHORT = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))


def raise_if_short(error: BaseException) -> None:
    """Raise `error` again if it says nothing about the host, only about this process's or the node's limits."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORT):
        raise error
