"""One look at the host's files, with what it saw cached: names, links, device numbers, things, NUMA nodes.

A scan of ten thousand devices has a second. So a folder is listed once, its own links are followed once, and a
node costs one lstat, one readlink below /sys and one failed look for its NUMA node.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from devherd.host.chardev import DeviceNode, thing_of
from devherd.host.numa import node_of_folder
from devherd.host.shortage import raise_if_short

if TYPE_CHECKING:
    from devherd.host.access import Host

LINKS_AT_MOST = 40  # as the kernel (MAXSYMLINKS)

_TYPES = {
    stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
    stat.S_IFDIR: "dir",
    stat.S_IFREG: "file",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
}


class Entry(NamedTuple):
    """What is at a path once links are followed.

    `path` is logical and without links. `type`: `c`, `b`, `dir`, `file`, `socket`, `fifo`, `missing` (also a link that
    leads nowhere) or `denied`. `major` and `minor` count for `c` and `b` only.
    """

    path: str
    type: str
    major: int = 0
    minor: int = 0

    @property
    def is_node(self) -> bool:
        """Whether it is a device node."""
        return self.type in ("c", "b")

    @property
    def exists(self) -> bool:
        """Whether anything is there that we can see."""
        return self.type not in ("missing", "denied")


class View:
    """A cached, read-only look. Never raises for what the file system holds; not for use by two threads."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._numbers = host.rdev_numbers()
        self._folders: dict[str, str | None] = {"/": "/"}
        self._real: dict[str, str] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._things: dict[tuple[str, int, int], str] = {}
        self._numa: dict[str, int] = {}

    def entry(self, path: str) -> Entry:
        """What the logical, absolute path leads to."""
        if "\0" in path:
            return Entry(path, "missing")
        start = path
        for _ in range(LINKS_AT_MOST):
            parent, _, name = path.rpartition("/")
            folder = self._folder(parent or "/")
            if folder is None or name in (".", ".."):
                return Entry(start, "missing")
            path = self._join(folder, name)
            real = self._real_folder(folder) + name
            try:
                status = os.lstat(real)
                if not stat.S_ISLNK(status.st_mode):
                    return self._classify(path, status)
                target = os.readlink(real)
            except PermissionError:
                return Entry(start, "denied")
            except (OSError, ValueError) as error:
                raise_if_short(error)
                return Entry(start, "missing")
            followed = self._follow(folder, target)
            if followed is None:
                return Entry(start, "missing")
            path = followed
        return Entry(start, "missing")

    def node(self, path: str) -> DeviceNode | None:
        """The device node at a logical path, links followed; None when there is none."""
        entry = self.entry(path)
        return DeviceNode(entry.path, entry.type, entry.major, entry.minor) if entry.is_node else None

    def names(self, folder: str) -> tuple[str, ...]:
        """What a logical folder holds, sorted by code point; empty when it cannot be listed."""
        names = self._names.get(folder)
        if names is None:
            where = self._folder(folder)
            try:
                names = tuple(sorted(os.listdir(self._real_folder(where)))) if where is not None else ()
            except OSError as error:
                raise_if_short(error)
                names = ()
            self._names[folder] = names
        return names

    def thing(self, kind: str, major: int, minor: int) -> str:
        """The physical device behind a number."""
        key = (kind, major, minor)
        thing = self._things.get(key)
        if thing is None:
            thing = self._things[key] = thing_of(self.host, kind, major, minor)
        return thing

    def numa(self, thing: str) -> int:
        """The NUMA node of a thing; -1 when unknown."""
        if thing.startswith("sys:"):
            return node_of_folder(self.host, thing[4:], self._numa)
        if thing.startswith("pci:"):
            return node_of_folder(self.host, f"/bus/pci/devices/{thing[4:]}", self._numa)
        return -1

    def _classify(self, path: str, status: os.stat_result) -> Entry:
        kind = _TYPES.get(stat.S_IFMT(status.st_mode), "file")
        if kind in ("c", "b"):
            return Entry(path, kind, os.major(status.st_rdev), os.minor(status.st_rdev))
        if kind == "file" and path in self._numbers:
            return Entry(path, *self._numbers[path])
        return Entry(path, kind)

    def _folder(self, path: str) -> str | None:
        """A logical folder without links; None when it is missing or no folder."""
        if path in self._folders:
            return self._folders[path]
        self._folders[path] = None  # a link that leads to itself ends here
        entry = self.entry(path)
        found = entry.path if entry.type == "dir" else None
        self._folders[path] = found
        return found

    def _follow(self, folder: str, target: str) -> str | None:
        """Where a link in `folder` leads, its last component not yet followed."""
        if target.startswith("/"):
            target, folder = self.host.logical(target), "/"
        *middle, last = target.rstrip("/").split("/") or [""]
        current: str | None = folder
        for part in middle:
            current = self._step(current, part)
            if current is None:
                return None
        if last in ("", ".", ".."):
            return self._step(current, last)
        return self._join(current or "/", last)

    def _step(self, folder: str | None, part: str) -> str | None:
        if folder is None or part in ("", "."):
            return folder
        if part == "..":
            return os.path.dirname(folder)
        return self._folder(self._join(folder, part))

    @staticmethod
    def _join(folder: str, name: str) -> str:
        return f"/{name}" if folder == "/" else f"{folder}/{name}"

    def _real_folder(self, folder: str) -> str:
        """Where a folder without links really is, with a slash at its end."""
        real = self._real.get(folder)
        if real is None:
            real = self._real[folder] = self.host.path(folder).rstrip("/") + "/"
        return real
