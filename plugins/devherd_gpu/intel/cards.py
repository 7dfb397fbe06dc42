"""Intel GPUs from sysfs: cards of the i915 and xe drivers. A pure read; one odd card costs no other."""

from __future__ import annotations

import re

from devherd.host import Host
from devherd.host.pci import FOLDER as PCI
from devherd.host.pci import PciDevice, pci_devices
from devherd.host.sysfs import Sysfs
from devherd.host.view import View
from devherd.values import Mount, Node, Skipped
from msgspec import Struct

from devherd_gpu.common.selectors import Facts

VENDOR = 0x8086
DRIVERS = ("i915", "xe")
BY_PATH = "/dev/dri/by-path"
_CARD = re.compile(r"card\d+")
_CONTROL = re.compile(r"controlD\d+")
_CLASS = 0x03
"""PCI base class of display controllers."""
_RULE = "discovery"


class Card(Struct, frozen=True):
    """One GPU. `name` is the kernel's (`card0`), ids and class are four hex digits each.

    `nodes` are its device nodes without control nodes, the card first; `links` its entries of /dev/dri/by-path that
    lead to one of them; `management` those of its management engine. `virtual`: it is a virtual function.
    """

    name: str
    address: str
    driver: str
    device_id: str
    class_id: str
    numa: int
    nodes: tuple[Node, ...]
    links: tuple[Mount, ...]
    management: tuple[Node, ...]
    virtual: bool

    @property
    def thing(self) -> str:
        """The physical GPU."""
        return f"pci:{self.address}"

    @property
    def folder(self) -> str:
        """Its PCI function in sysfs."""
        return f"{PCI}/{self.address}"


class Found(Struct, frozen=True):
    """One look: the cards, ordered by number, and what was seen and cannot be used."""

    cards: tuple[Card, ...]
    skipped: tuple[Skipped, ...]
    absent: str = ""


def facts(card: Card, index: int) -> Facts:
    """What a card may be selected by. `index` is its place in order of card numbers."""
    return {
        "index": (str(index),),
        "uuid": (card.name,),
        "pci": (card.address,),
        "device": (f"0x{card.device_id}", card.device_id),
        "profile": (card.driver,),
    }


def find(host: Host) -> Found:
    """Look at the host."""
    look = _Look(host)
    displays = [dev for dev in pci_devices(host) if dev.vendor == VENDOR and dev.class_code >> 16 == _CLASS]
    cards = [card for card in map(look.card, displays) if card is not None]
    absent = "" if displays else "no Intel GPU on the PCI bus"
    return Found(tuple(sorted(cards, key=_number)), tuple(look.skipped), absent)


def _number(card: Card) -> int:
    return int(card.name.removeprefix("card"))


class _Look:
    def __init__(self, host: Host) -> None:
        self._sysfs = Sysfs(host)
        self._view = host.view()
        self.skipped: list[Skipped] = []

    def card(self, device: PciDevice) -> Card | None:
        """The card of a PCI function, or None and a reason."""
        if device.driver not in DRIVERS:
            self._skip(device.address, f"is bound to {device.driver or 'no driver'}, not to i915 or xe")
            return None
        folder = f"{PCI}/{device.address}"
        names = self._sysfs.names(f"{folder}/drm")
        name = next((entry for entry in names if _CARD.fullmatch(entry)), "")
        functions = self._sysfs.integer(f"{folder}/sriov_numvfs") or 0
        if functions:
            self._skip(device.address, f"is a physical function: its {functions} virtual ones are offered instead")
            return None
        nodes = [_node(self._view, f"/dev/dri/{entry}") for entry in names if not _CONTROL.fullmatch(entry)]
        there = tuple(node for node in nodes if node is not None)
        if not name or not any(node.host_path == f"/dev/dri/{name}" for node in there):
            self._skip(device.address, "has no card node yet: its driver is still starting, or failed (see dmesg)")
            return None
        return Card(
            name=name,
            address=device.address,
            driver=device.driver,
            device_id=f"{device.device:04x}",
            class_id=f"{device.class_code >> 8:04x}",
            numa=device.numa,
            nodes=there,
            links=self._links(device.address, {node.host_path for node in there}),
            management=self._management(folder),
            virtual=bool(device.physfn),
        )

    def _links(self, address: str, nodes: set[str]) -> tuple[Mount, ...]:
        """Entries that lead to one of the card's nodes; others, as a frame buffer's, would break a container."""
        found = []
        for name in self._view.names(BY_PATH):
            if name.startswith(f"pci-{address}-"):
                entry = self._view.node(f"{BY_PATH}/{name}")
                if entry is not None and entry.path in nodes:
                    found.append(Mount(f"{BY_PATH}/{name}", f"{BY_PATH}/{name}", read_only=True))
        return tuple(found)

    def _management(self, folder: str) -> tuple[Node, ...]:
        """Nodes of the management engine interface below the GPU, for monitors."""
        names = [
            name
            for below in self._sysfs.names(folder)
            for name in self._sysfs.names(f"{folder}/{below}/mei")
            if name.startswith("mei")
        ]
        names += [name for name in self._sysfs.names(f"{folder}/mei") if name.startswith("mei")]
        nodes = (_node(self._view, f"/dev/{name}") for name in sorted(names))
        return tuple(node for node in nodes if node is not None)

    def _skip(self, what: str, reason: str) -> None:
        self.skipped.append(Skipped(what, _RULE, reason))


def _node(view: View, path: str) -> Node | None:
    found = view.node(path)
    if found is None:
        return None
    thing = view.thing(found.kind, found.major, found.minor)
    return Node(path, path, "rw", found.kind, found.major, found.minor, thing)
