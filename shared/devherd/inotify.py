"""inotify(7), as little of it as is needed: the calls, and events as tuples.

The interface is that of inotify_simple, which at its first use runs ldconfig to find the C library and imports
subprocess to do so: two megabytes in every process that watches a folder.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from enum import IntFlag
from typing import NamedTuple

_EVENT = struct.Struct("iIII")
_READ = 64 * 1024


class flags(IntFlag):  # noqa: N801 (inotify_simple's name)
    """Masks of linux/inotify.h."""

    ACCESS = 0x1
    MODIFY = 0x2
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    CLOSE_NOWRITE = 0x10
    OPEN = 0x20
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000
    DONT_FOLLOW = 0x2000000
    EXCL_UNLINK = 0x4000000
    MASK_ADD = 0x20000000
    ISDIR = 0x40000000
    ONESHOT = 0x80000000


class Event(NamedTuple):
    """One event: watch descriptor (-1: the queue overflowed), mask, rename cookie, name inside the folder or ``""``."""

    wd: int
    mask: int
    cookie: int
    name: str


class INotify:
    """One inotify instance. Every call raises OSError as the system call does."""

    def __init__(self, nonblocking: bool = False) -> None:
        # The interpreter is linked with the C library, so nothing has to be searched.
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._call(self._libc.inotify_init1, os.O_CLOEXEC | (os.O_NONBLOCK if nonblocking else 0))

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self._fd

    def add_watch(self, path: str, mask: int) -> int:
        """Watch a path; returns the watch descriptor, the same as before for the same inode."""
        return self._call(self._libc.inotify_add_watch, self._fd, os.fsencode(path), ctypes.c_uint32(mask))

    def rm_watch(self, wd: int) -> None:
        """Stop watching."""
        self._call(self._libc.inotify_rm_watch, self._fd, wd)

    def read(self, timeout: int | None = None) -> list[Event]:
        """All events at hand, waiting up to `timeout` milliseconds for the first (None: for ever)."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        events: list[Event] = []
        while poller.poll(timeout):
            events += parse_events(os.read(self._fd, _READ))
            timeout = 0
        return events

    def close(self) -> None:
        """Close it; all watches end."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _call(self, function: object, *arguments: object) -> int:
        result: int = function(*arguments)  # type: ignore[operator]
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def parse_events(data: bytes) -> list[Event]:
    """The events in what was read from an inotify descriptor."""
    events = []
    at = 0
    while at + _EVENT.size <= len(data):
        wd, mask, cookie, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        name = data[at : at + length].split(b"\0", 1)[0]
        at += length
        events.append(Event(wd, mask, cookie, os.fsdecode(name)))
    return events
