"""Device nodes: their numbers, and the physical device behind a number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from devherd.host.shortage import raise_if_short

if TYPE_CHECKING:
    from devherd.host.access import Host

KINDS = {"c": "char", "b": "block"}


class DeviceNode(NamedTuple):
    """A device node: its logical path without links, `c` or `b`, and its number."""

    path: str
    kind: str
    major: int
    minor: int


class RdevTable:
    """Device numbers for a root whose /dev holds plain files, because only root may create nodes.

    One line per node: `/dev/x4 c 240 4`; `#` starts a comment; a line of another shape is ignored.
    Read again when the file's time, size or inode changed; a missing file is an empty table.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._numbers: dict[str, tuple[str, int, int]] = {}

    def numbers(self) -> dict[str, tuple[str, int, int]]:
        """Kind, major and minor by logical path."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                with open(self._path, encoding="utf-8", errors="replace") as file:
                    self._numbers = parse_rdev_table(file.read())
                self._stamp = stamp
        except OSError as error:
            raise_if_short(error)
            self._stamp, self._numbers = None, {}
        return self._numbers


def parse_rdev_table(text: str) -> dict[str, tuple[str, int, int]]:
    """Read the table's text."""
    numbers: dict[str, tuple[str, int, int]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) == 4 and words[1] in KINDS and words[2].isdecimal() and words[3].isdecimal():
            numbers[words[0]] = (words[1], int(words[2]), int(words[3]))
    return numbers


def thing_of(host: Host, kind: str, major: int, minor: int) -> str:
    """The physical device behind a device number.

    `sys:/devices/...` where /sys/dev/{char,block}/M:m leads (Documentation/ABI/testing/sysfs-dev), without the
    place sysfs is mounted; `c:M:m` or `b:M:m` where sysfs does not know the number. The first form survives
    renumbering and tells two devices apart that had the same number one after the other.
    """
    link = f"{host.paths.sys}/dev/{KINDS.get(kind, 'char')}/{major}:{minor}"
    try:
        target = os.readlink(link)
    except OSError as error:
        raise_if_short(error)
        return f"{kind}:{major}:{minor}"
    place = _below_sysfs(host, link, target)
    if not place.isascii():
        place = place.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return f"sys:{place}" if place else f"{kind}:{major}:{minor}"


def _below_sysfs(host: Host, link: str, target: str) -> str:
    """The target of a link in sysfs as a path below sysfs; empty when it leads out of it."""
    if target.startswith("../../devices/") and "/../" not in target[6:]:
        return target[5:]  # what the kernel writes: no need to walk a dozen folders
    root = os.path.realpath(host.paths.sys)
    real = os.path.realpath(link)
    return real[len(root) :] if real.startswith(root + "/") else ""
