"""Hints that something changed: a folder's content (inotify) or a hardware event (udev's netlink).

Sources only hint; a scan finds out. They may fire once too often, never once too little: whatever loses events
(an overflow, a folder that was replaced) counts as an event. The probe polls `fileno()` and calls `drain()`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from devherd.inotify import INotify, flags
from devherd.uevents import Uevents

logger = logging.getLogger("devherd.host.events")

_TRIES = 5
_CONTENT = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
_SELF = flags.DELETE_SELF | flags.MOVE_SELF
_LOST = flags.Q_OVERFLOW | flags.IGNORED | flags.UNMOUNT | flags.DELETE_SELF | flags.MOVE_SELF


class EventSource(Protocol):
    """Something to poll."""

    def fileno(self) -> int:
        """The descriptor that becomes readable; the same as long as the source lives."""
        ...

    def drain(self) -> str:
        """Take what is there without blocking. The source's name, or empty when none of it matters."""
        ...

    def close(self) -> None:
        """Let go of the descriptor."""
        ...


class Watched(NamedTuple):
    """A real folder, which may not exist yet, and which names in it matter (None: all). `content`: writes count too."""

    folder: str
    names: re.Pattern[str] | None = None
    content: bool = False


class _Spot:
    """What one inotify watch is for: entries that matter, and children of the folder that the way leads through."""

    def __init__(self) -> None:
        self.wanted: list[Watched] = []
        self.awaited: set[str] = set()

    def matters(self, name: str, mask: int) -> bool:
        return any(
            (mask & _CONTENT or want.content) and (want.names is None or want.names.fullmatch(name))
            for want in self.wanted
        )


class TreeEvents:
    """Changes in folders, by inotify.

    Where a folder is missing, its nearest existing parent is watched until it appears; when one is replaced, moved or
    unmounted anywhere down its path, the watches are set anew. `folders` is asked again each time, so it may depend on
    what exists. Raises OSError when the kernel has no inotify instance left.
    """

    def __init__(self, folders: Callable[[], Iterable[Watched]], name: str = "tree") -> None:
        self._folders = folders
        self._name = name
        self._inotify = INotify(nonblocking=True)
        self._spots: dict[int, _Spot] = {}
        self._arm()

    def fileno(self) -> int:
        """The inotify descriptor."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """Close the inotify descriptor, and with it every watch."""
        self._inotify.close()

    def drain(self) -> str:
        """Read all events; set the watches anew if the folders themselves changed."""
        due = rearm = False
        for event in self._read():
            spot = self._spots.get(event.wd)
            if event.mask & flags.Q_OVERFLOW:
                due = rearm = True
            elif spot is None:
                continue  # of a watch that was replaced
            elif event.mask & _LOST or event.name in spot.awaited:
                due = rearm = True
            elif spot.matters(event.name, event.mask):
                due = True
                rearm = rearm or bool(event.mask & flags.ISDIR)
        if rearm:
            self._arm()
        return self._name if due else ""

    def _read(self) -> Iterable[Any]:
        try:
            return list(self._inotify.read(timeout=0))
        except BlockingIOError:
            return ()

    def _arm(self) -> None:
        for wd in self._spots:
            with contextlib.suppress(OSError):  # gone with its folder
                self._inotify.rm_watch(wd)
        self._spots = {}
        for want in self._folders():
            for _ in range(_TRIES):
                if self._watch(want):
                    break

    def _watch(self, want: Watched) -> bool:
        """Watch the folder and each parent on the way. False: the way changed meanwhile, try again."""
        folder = "/"
        for part in os.path.normpath(want.folder).strip("/").split("/"):
            below = os.path.join(folder, part)
            self._add(folder, _SELF, of_use=False)
            if os.path.islink(below) or not os.path.isdir(below):
                spot = self._add(folder, _CONTENT | _SELF)
                if spot:
                    spot.awaited.add(part)
                if not os.path.isdir(below):
                    return spot is not None or os.path.isdir(folder)
            folder = below
        spot = self._add(folder, _CONTENT | _SELF | (flags.CLOSE_WRITE if want.content else 0))
        if spot:
            spot.wanted.append(want)
        return spot is not None or os.path.isdir(folder)

    def _add(self, folder: str, mask: int, of_use: bool = True) -> _Spot | None:
        """Watch one folder, or add to its watch. A parent that we may not read is no loss: its move is rare."""
        try:
            wd = self._inotify.add_watch(folder, mask | flags.ONLYDIR | flags.MASK_ADD)
        except OSError as error:
            if of_use and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                logger.warning(
                    "no events from %s (%s): changes there are seen by the slow scan", folder, error.strerror
                )
            return None
        return self._spots.setdefault(wd, _Spot())


class UdevEvents:
    """Hardware events of some subsystems: udev's, after its rules ran, or the kernel's own where no udev runs."""

    def __init__(self, subsystems: Iterable[str], name: str = "udev") -> None:
        self._name = name
        self._subsystems = frozenset(subsystems)
        self._events = Uevents()

    def fileno(self) -> int:
        """The netlink socket."""
        return self._events.fileno()

    def drain(self) -> str:
        """Read what is there; lost events count as one."""
        events, lost = self._events.take()
        return self._name if lost or any(event.get("SUBSYSTEM") in self._subsystems for event in events) else ""

    def close(self) -> None:
        """Let go of the socket."""
        self._events.close()


def tree_events(folders: Callable[[], Iterable[Watched]], name: str = "tree") -> tuple[EventSource, ...]:
    """A tree source in a tuple, or an empty one (and a line in the log) where inotify is exhausted."""
    try:
        return (TreeEvents(folders, name),)
    except OSError as error:
        logger.warning("no inotify (%s): changes are seen by the slow scan only; raise fs.inotify.max_user_*", error)
        return ()


def udev_events(subsystems: Iterable[str], name: str = "udev") -> tuple[EventSource, ...]:
    """A udev source in a tuple, or an empty one (and a line in the log) where there is no udev or no netlink."""
    try:
        return (UdevEvents(subsystems, name),)
    except OSError as error:
        logger.info("no udev events here (%s): changes are seen by the slow scan only", error)
        return ()
