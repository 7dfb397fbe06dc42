"""Files below a simulated node's root, written the way the kernel and udev would."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devherd.host.tree import Tree

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class NodeFiles:
    """Writes by logical path (`/dev/x`, `/sys/...`). Everything is on disk when a call returns."""

    def __init__(self, root: str) -> None:
        self.root = root

    def real(self, logical: str) -> str:
        """Where a logical path really is."""
        return self.root + logical

    def write(self, logical: str, text: str) -> None:
        """Write a file at once; what was there is replaced."""
        real = self.real(logical)
        self.folder(os.path.dirname(logical))
        temp = f"{os.path.dirname(real)}/.{os.path.basename(real)}.new" if os.path.exists(real) else real
        with open(temp, "w", encoding="utf-8") as file:
            file.write(text)
        if temp != real:
            os.replace(temp, real)

    def link(self, logical: str, target: str) -> None:
        """Make a link; relative, as the kernel and udev write them (below /sys/dev they are two levels deep)."""
        real = self.real(logical)
        self.folder(os.path.dirname(logical))
        if os.path.lexists(real):
            os.unlink(real)
        os.symlink(os.path.relpath(self.real(target), os.path.dirname(real)), real)

    def remove(self, logical: str) -> None:
        """Remove a file or link, if it is there."""
        if os.path.lexists(self.real(logical)):
            os.unlink(self.real(logical))

    def folder(self, logical: str) -> None:
        """Make a folder."""
        real = self.real(logical)
        if not os.path.isdir(real):
            os.makedirs(real, exist_ok=True)

    def plant(self, tree: Tree) -> None:
        """Write a whole piece of hardware. Device nodes are plain files; `write_rdev_table` is for their numbers."""
        for folder in tree.folders:
            self.folder(folder)
        for path, text in tree.files.items():
            self.write(path, text)
        for path, target in tree.links.items():
            self.link(path, target)
        for path in tree.nodes:
            self.write(path, "")

    @property
    def rdev_table(self) -> str:
        """The file with device numbers, for `paths.rdev_table`."""
        return os.path.join(self.root, "rdev")

    def write_rdev_table(self, rows: Iterable[str]) -> None:
        """Replace the table; rows are `/dev/x4 c 240 4`."""
        temp = self.rdev_table + ".new"
        with open(temp, "w", encoding="utf-8") as file:
            file.writelines(f"{row}\n" for row in rows)
        os.replace(temp, self.rdev_table)

    def new_boot_id(self) -> None:
        """What a boot does."""
        self.write(BOOT_ID, f"{uuid.uuid4()}\n")

    @property
    def boot_id(self) -> str:
        """This boot's id."""
        with open(self.real(BOOT_ID), encoding="ascii") as file:
            return file.read().strip()

    def paths(self) -> dict[str, str]:
        """The part of the settings' `paths` that points into this node."""
        return {
            "root": self.root,
            "dev": os.path.join(self.root, "dev"),
            "sys": os.path.join(self.root, "sys"),
            "proc": os.path.join(self.root, "proc"),
            "machine_id": os.path.join(self.root, "etc/machine-id"),
            "rdev_table": self.rdev_table,
        }
