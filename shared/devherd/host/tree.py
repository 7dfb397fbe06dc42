"""A piece of a host as data: files, links and device nodes by logical path. What simulated hardware is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class NodeNumber(NamedTuple):
    """A device node's kind (`c`, `b`) and number."""

    kind: str
    major: int
    minor: int


@dataclass
class Tree:
    """Built up by whoever knows the hardware, written by whoever has a place for it.

    `links` maps a link's path to the logical path it leads to; a folder that stays empty is in `folders`.
    """

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, NodeNumber] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def write(self, folder: str, **values: object) -> None:
        """Attributes of a sysfs folder, each with its newline."""
        for name, value in values.items():
            self.files[f"{folder}/{name}"] = f"{value}\n"

    def pci(self, folder: str, driver: str = "", **values: object) -> None:
        """A PCI function at a sysfs folder that ends with its address, with the links that the kernel makes."""
        address = folder.rpartition("/")[2]
        self.write(folder, **values)
        self.files[f"{folder}/uevent"] = f"PCI_SLOT_NAME={address}\n"
        self.links[f"{folder}/subsystem"] = "/sys/bus/pci"
        self.links[f"/sys/bus/pci/devices/{address}"] = folder
        if driver:
            self.folders.add(f"/sys/bus/pci/drivers/{driver}")
            self.links[f"{folder}/driver"] = f"/sys/bus/pci/drivers/{driver}"
            self.links[f"/sys/bus/pci/drivers/{driver}/{address}"] = folder

    def char(self, path: str, major: int, minor: int, folder: str, subsystem: str) -> None:
        """A character device node, and the sysfs folder of its device."""
        self.nodes[path] = NodeNumber("c", major, minor)
        self.files[f"{folder}/dev"] = f"{major}:{minor}\n"
        self.files[f"{folder}/uevent"] = f"MAJOR={major}\nMINOR={minor}\nDEVNAME={path[5:]}\n"
        self.links[f"{folder}/subsystem"] = f"/sys/class/{subsystem}"
        self.links[f"/sys/class/{subsystem}/{folder.rpartition('/')[2]}"] = folder
        self.links[f"/sys/dev/char/{major}:{minor}"] = folder
