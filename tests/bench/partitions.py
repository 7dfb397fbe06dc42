"""A vendor of nothing but names: 64 partitions of 8 cards, with weights between every two. Copied beside a front."""

from itertools import combinations

from devherd.host import Host
from devherd.values import Device, Inventory, Parts, Preference, Resource
from devherd.vendor import Manifest
from msgspec import Struct

CARDS = 8
EACH = 8


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing can be configured."""


class Partitions:
    """Partitions of one card are nearest, cards of one NUMA node nearer than others."""

    def scan(self) -> Inventory:
        """The same each time."""
        ids = [f"card{card}-part{part}" for card in range(CARDS) for part in range(EACH)]
        affinity = {f"{a}\0{b}": _weight(a, b) for a, b in combinations(sorted(ids), 2)}
        devices = tuple(Device(id=id, things=(f"pci:0000:0{id[4]}:00.0",), parts=Parts()) for id in ids)
        preference = Preference(affinity=affinity, group={id: id[:5] for id in ids})
        return Inventory((Resource("example.com/partition", devices, preference=preference),))


def _weight(a: str, b: str) -> int:
    if a[4] == b[4]:
        return 100
    return 20 if int(a[4]) // 4 == int(b[4]) // 4 else 10


def make(config: Nothing, host: Host) -> Partitions:
    """The factory that the probe calls."""
    return Partitions()


MANIFEST = Manifest(name="partitions", title="Partitions", config=Nothing, vendor="partitions:make")
