"""A vendor for the tests: cards that a file names, with NUMA nodes, work before a container starts, and wishes.

The file maps a card's name to its NUMA node, as JSON; what it no longer names is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from devherd.host import Host
from devherd.values import Device, Inventory, Parts, Preference, Resource
from devherd.vendor import Manifest
from msgspec import Struct

RESOURCE = "example.com/card"


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """`cards` is the file, `prepared` gets a line for each PreStartContainer; `withdrawn`: no resource."""

    cards: str
    prepared: str = ""
    withdrawn: bool = False


class Vendor:
    """The cards."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def scan(self) -> Inventory:
        """Read the file."""
        if self._config.withdrawn:
            return Inventory(())
        cards = json.loads(Path(self._config.cards).read_text(encoding="utf-8"))
        devices = tuple(
            Device(name, (f"card:{name}",), Parts(env={"CARD": name}), numa=(node,)) for name, node in cards.items()
        )
        preference = Preference(affinity={})
        return Inventory((Resource(RESOURCE, devices, pre_start=bool(self._config.prepared), preference=preference),))

    def prepare(self, resource: str, ids: Sequence[str]) -> str:
        """Note the call."""
        with open(self._config.prepared, "a", encoding="utf-8") as file:
            file.write(f"{','.join(sorted(ids))}\n")
        return ""


def make(config: Config, host: Host) -> Vendor:
    """The probe's factory."""
    return Vendor(config)


MANIFEST = Manifest(name="cards", title="Cards for the tests", config=Config, vendor="cards:make")
