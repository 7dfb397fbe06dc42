"""Hints that a folder, or one file in it, has come or gone: inotify that survives the folder's replacement."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from devherd.inotify import INotify, flags

_LOG = logging.getLogger(__name__)
_INSIDE = flags.CREATE | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
_LOST = flags.DELETE_SELF | flags.MOVE_SELF | flags.IGNORED | flags.UNMOUNT | flags.Q_OVERFLOW

FolderId = tuple[int, int]


def folder_id(path: str) -> FolderId | None:
    """Return (device, inode) of an existing folder, else None."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


class FolderWatch:
    """Watches for one name to appear in a folder, or for the folder to appear below its nearest existing parent.

    Costs nothing while disarmed. Events are hints only; `rearm` puts things right after a missed one. The instance is
    kept: closing one waits for the kernel's clean-up for milliseconds, at a moment when the kubelet's pods do not wait.
    """

    def __init__(self, folder: str, name: str, on_event: Callable[[], None]) -> None:
        self._folder = os.path.abspath(folder)
        self._name = name
        self._on_event = on_event
        self._inotify: INotify | None = None
        self._armed = False
        self._watches: set[int] = set()
        self._watched = ""
        self._watched_id: FolderId | None = None
        self.problem = ""

    def arm(self) -> None:
        """Start watching, in a running event loop; harmless when already armed."""
        if self._armed:
            return
        if self._inotify is None:
            try:
                self._inotify = INotify(nonblocking=True)
            except OSError as error:
                self._failed(error)
                return
        self._armed = True
        asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._readable)
        self._place()

    def disarm(self) -> None:
        """Stop watching."""
        if not self._armed:
            return
        assert self._inotify is not None
        self._armed = False
        asyncio.get_running_loop().remove_reader(self._inotify.fileno())
        for watch in self._watches:
            with contextlib.suppress(OSError):
                # It has ended by itself where the folder has gone.
                self._inotify.rm_watch(watch)
        self._watches.clear()
        self._watched, self._watched_id = "", None

    def close(self) -> None:
        """Stop watching for good."""
        self.disarm()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def rearm(self) -> None:
        """Watch the right folder again if what is armed is no longer what the path leads to."""
        if not self._armed:
            return
        if self._watched_id is None or self._watched != self._nearest() or folder_id(self._watched) != self._watched_id:
            self.disarm()
            self.arm()

    def _nearest(self) -> str:
        path = self._folder
        while path != "/" and not os.path.isdir(path):
            path = os.path.dirname(path)
        return path

    def _place(self) -> None:
        assert self._inotify is not None
        # What appears between finding the nearest folder and watching it would go unseen: look again after.
        for _ in range(16):
            nearest = self._nearest()
            if nearest == self._watched and folder_id(nearest) == self._watched_id:
                return
            try:
                self._watches.add(self._inotify.add_watch(nearest, _INSIDE))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._failed(error)
                return
            self._watched, self._watched_id = nearest, folder_id(nearest)
        self.problem = ""

    def _failed(self, error: OSError) -> None:
        problem = f"cannot watch {self._folder}: {error.strerror}; only the slow poll sees the kubelet come"
        if problem != self.problem:
            self.problem = problem
            _LOG.warning(problem, extra={"fields": {"hint": "raise fs.inotify.max_user_watches or max_user_instances"}})

    def _readable(self) -> None:
        assert self._inotify is not None
        wanted = self._name if self._watched == self._folder else self._below(self._watched)
        relevant = lost = False
        for event in self._inotify.read(timeout=0):
            if event.wd not in self._watches and not event.mask & flags.Q_OVERFLOW:
                continue  # of a watch that was taken away
            if event.mask & _LOST:
                lost = True
            elif event.name == wanted:
                relevant = True
        if lost or (relevant and self._watched != self._folder):
            self.disarm()
            self.arm()
        if lost or relevant:
            self._on_event()

    def _below(self, parent: str) -> str:
        return os.path.relpath(self._folder, parent).split(os.sep)[0]
