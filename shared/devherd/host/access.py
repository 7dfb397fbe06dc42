"""The host: where its logical paths really are, and what one look at it finds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from devherd.host.chardev import DeviceNode, RdevTable, thing_of
from devherd.host.view import View

if TYPE_CHECKING:
    from devherd.settings import Paths


def _below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or under it, by whole components."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


class Host:
    """One node's files, as `paths` places them. Cheap to create; holds no descriptor."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        prefixes = (("/dev", paths.dev), ("/sys", paths.sys), ("/proc", paths.proc), ("/", paths.root))
        self._mapped = tuple((logical, os.path.normpath(real)) for logical, real in prefixes)
        # The longest real prefix wins: <root>/dev may hold the device nodes and lie below <root>.
        self._reverse = tuple(sorted(self._mapped, key=lambda pair: len(pair[1]), reverse=True))
        self._table = RdevTable(paths.rdev_table) if paths.rdev_table else None

    def path(self, logical: str) -> str:
        """Where the logical path really is: /dev, /sys and /proc by their settings, all else under the root."""
        for prefix, real in self._mapped:
            if _below(logical, prefix):
                rest = logical[len(prefix) :].lstrip("/")
                return os.path.join(real, rest) if rest else real
        return logical

    def logical(self, real: str) -> str:
        """The logical name of a real path; the path itself where no setting covers it."""
        for prefix, base in self._reverse:
            if _below(real, base):
                rest = real[len(base) :].lstrip("/")
                return os.path.join(prefix, rest) if rest else prefix
        return real

    def rdev_numbers(self) -> dict[str, tuple[str, int, int]]:
        """Device numbers by logical path for a root that cannot hold nodes (`paths.rdev_table`); else empty."""
        return self._table.numbers() if self._table else {}

    def view(self) -> View:
        """A fresh look at the host. It caches what it sees: take a new one for each scan."""
        return View(self)

    def node(self, logical: str) -> DeviceNode | None:
        """The device node a logical path leads to, links followed; None when there is none."""
        return self.view().node(logical)

    def thing_of(self, kind: str, major: int, minor: int) -> str:
        """The identity of the physical device behind a number; see `devherd.host.chardev.thing_of`."""
        return thing_of(self, kind, major, minor)
