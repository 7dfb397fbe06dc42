"""A host made of hardware trees, for tests of vendors."""

from __future__ import annotations

import os
from pathlib import Path

from devherd.host import Host
from devherd.host.tree import Tree
from devherd.settings import Paths
from devherd.sim.files import NodeFiles


class Planted:
    """Below `root`: /dev, /sys, /proc with a tree in them, and private folders for what a plugin writes."""

    def __init__(self, root: Path, *trees: Tree) -> None:
        self.root = root
        self.files = NodeFiles(str(root))
        self._rows: dict[str, str] = {}
        for folder in ("/dev", "/sys/bus/pci/devices", "/proc", "/state", "/cdi", "/features"):
            self.files.folder(folder)
        for tree in trees:
            self.add(tree)
        places = {"cdi": "cdi", "features": "features", "state": "state", "run": "run", "etc": "etc"}
        self.paths = Paths(**self.files.paths(), **{name: str(root / place) for name, place in places.items()})
        self.host = Host(self.paths)

    def add(self, tree: Tree) -> None:
        """Plug more in."""
        self.files.plant(tree)
        self._rows |= {path: f"{path} {n.kind} {n.major} {n.minor}" for path, n in tree.nodes.items()}
        self.files.write_rdev_table(self._rows.values())

    def real(self, logical: str) -> Path:
        """Where a logical path is."""
        return Path(self.files.real(logical))

    def write(self, logical: str, text: str) -> None:
        """Change an attribute."""
        self.files.write(logical, text + "\n")

    def remove(self, logical: str) -> None:
        """Take a file, a link or a device node away."""
        if self._rows.pop(logical, None) is not None:
            self.files.write_rdev_table(self._rows.values())
        os.unlink(self.real(logical))
