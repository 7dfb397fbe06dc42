"""Sees a socket appear in a folder, whatever happens to the folder."""

from __future__ import annotations

import os

from devherd.inotify import INotify, flags

_INSIDE = flags.CREATE | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
_ABOVE = flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR
_LOST = flags.DELETE_SELF | flags.MOVE_SELF | flags.IGNORED | flags.UNMOUNT | flags.Q_OVERFLOW

FileId = tuple[int, int, int]


class SocketWatch:
    """Watches `folder` for `name`, or the nearest existing parent while the folder is missing.

    `read` handles events; `check` is the slow look that puts right what no event tells (a bind mount over the
    folder, a replaced symlink on the way to it). Both say whether the socket may be a new one.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.folder = os.path.abspath(folder)
        self.path = os.path.join(self.folder, name)
        self.watched = ""
        self.problem = ""
        self._name = name
        self._inotify: INotify | None = None
        self._inside = -1
        self._watched_id: tuple[int, int] | None = None
        self._seen = _file_id(self.path)
        self._arm()

    def fileno(self) -> int:
        """Descriptor to poll, -1 while there is none. It changes when the watch is renewed."""
        return -1 if self._inotify is None else self._inotify.fileno()

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def read(self) -> bool:
        """Take in the events at hand. True: the socket was created, or is another one than before."""
        if self._inotify is None:
            return False
        wanted = self._name if self.watched == self.folder else _next_name(self.watched, self.folder)
        came = lost = False
        for event in self._inotify.read(timeout=0):
            if event.mask & _LOST:
                lost = True
            elif event.wd == self._inside and event.name == wanted:
                came = True
        if lost or (came and self.watched != self.folder):
            self._arm()
            return self._changed()
        if came:
            self._changed()
        return came

    def check(self) -> bool:
        """The slow look. True: the socket is another one than before."""
        if (
            self._inotify is None
            or self._watched_id != _folder_id(self.watched)
            or self.watched != _nearest(self.folder)
        ):
            self._arm()
        return self._changed()

    def exists(self) -> bool:
        """Whether the socket file is there."""
        return self._seen is not None

    def _changed(self) -> bool:
        before, self._seen = self._seen, _file_id(self.path)
        return self._seen is not None and self._seen != before

    def _arm(self) -> None:
        self.close()
        try:
            self._inotify = INotify(nonblocking=True)
            self._place(self._inotify)
            self.problem = ""
        except OSError as error:
            self.close()
            self.problem = (
                f"cannot watch {self.folder}: {error.strerror}; looking every few seconds instead "
                "(raise fs.inotify.max_user_instances or max_user_watches)"
            )

    def _place(self, inotify: INotify) -> None:
        # What appears between looking for the nearest folder and watching it would go unseen: look again after.
        self.watched = ""
        while self.watched != (nearest := _nearest(self.folder)):
            try:
                self._inside = inotify.add_watch(nearest, _INSIDE)
            except FileNotFoundError:
                continue
            self.watched = nearest
            self._watched_id = _folder_id(nearest)
        parent = os.path.dirname(self.watched)
        while parent != "/":
            try:
                inotify.add_watch(parent, _ABOVE)
            except (FileNotFoundError, PermissionError):
                return
            parent = os.path.dirname(parent)


def _file_id(path: str) -> FileId | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_ctime_ns)


def _nearest(folder: str) -> str:
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _folder_id(folder: str) -> tuple[int, int] | None:
    found = _file_id(folder)
    return found[:2] if found else None


def _next_name(parent: str, folder: str) -> str:
    return os.path.relpath(folder, parent).split(os.sep)[0]
