"""What a front keeps on disk, and what it knew when it started.

All of it is a help, none of it a condition: a missing or damaged file costs memory of the past, not service.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from msgspec import Struct

from devherd.expected import Record, expected_file
from devherd.front.detached import Wish
from devherd.front.model import Model
from devherd.front.station import LayoutMemory
from devherd.front.writer import WriteBehind
from devherd.health.saved import SavedHealth
from devherd.ledger import SavedLedger
from devherd.log import event
from devherd.settings import Paths
from devherd.state import StateFile, machine_id
from devherd.values import Inventory

logger = logging.getLogger(__name__)


class LastInventory(Struct, frozen=True):
    """The last scan and the boot it was made in."""

    boot_id: str
    inventory: Inventory


@dataclass(frozen=True)
class Memory:
    """What was found on disk at start; None where there was nothing usable."""

    inventory: LastInventory | None
    health: SavedHealth | None
    ledger: SavedLedger | None
    layout: LayoutMemory | None
    expected: Record | None


class Saved:
    """The state files of one plugin."""

    def __init__(self, paths: Paths, plugin: str, boot_id: str) -> None:
        machine = machine_id(paths)
        base = f"{paths.state}/{plugin}"
        self._boot_id = boot_id
        self._inventory = StateFile(f"{base}.inventory.json", "inventory", machine_id=machine, codec=LastInventory)
        self._health = StateFile(f"{base}.health.json", "health", machine_id=machine, codec=SavedHealth)
        self._ledger = StateFile(f"{base}.ledger.json", "ledger", machine_id=machine, codec=SavedLedger)
        self._layout = StateFile(f"{paths.state}/layout.json", "layout", machine_id=machine, codec=LayoutMemory)
        self._detached = StateFile(f"{base}.detached.json", "detached", machine_id=machine, codec=Wish)
        self._expected = expected_file(paths, plugin)
        self.problems: tuple[str, ...] = ()

    def load(self) -> Memory:
        """Read everything. What cannot be read is named in `problems`."""
        inventory, health, ledger = self._inventory.load(), self._health.load(), self._ledger.load()
        expected = self._expected.load()
        self.problems = tuple(filter(None, (inventory.reason, health.reason, ledger.reason, expected.reason)))
        for problem in self.problems:
            event(logger, "warning", "state not used", reason=problem)
        return Memory(inventory.value, health.value, ledger.value, self._layout.load().value, expected.value)

    def detached(self) -> Wish | None:
        """The operator's wish of this boot, if it still holds."""
        wish = self._detached.load().value
        return wish if wish is not None and wish.boot_id == self._boot_id else None

    def keep_detached(self, writer: WriteBehind, wish: Wish | None) -> None:
        """Have the wish saved; None: of no boot, so that it is over."""
        writer.put("detached", self._detached, lambda: wish or Wish())

    def keep_inventory(self, writer: WriteBehind, inventory: Inventory) -> None:
        """Have the last scan saved."""
        writer.put("inventory", self._inventory, lambda: LastInventory(self._boot_id, inventory))

    def keep_layout(self, writer: WriteBehind, memory: LayoutMemory) -> None:
        """Have the node's socket layout saved; all plugins share it."""
        writer.put("layout", self._layout, lambda: memory)

    def keep_expected(self, writer: WriteBehind, record: Record) -> None:
        """Have saved what the next boot should have."""
        writer.put("expected", self._expected, lambda: record)

    def keep_health(self, writer: WriteBehind, model: Model) -> None:
        """Have the verdicts saved."""
        writer.put("health", self._health, lambda: model.health.dump(time.monotonic()))

    def keep_ledger(self, writer: WriteBehind, model: Model) -> None:
        """Have the answers saved."""
        writer.put("ledger", self._ledger, model.ledger.dump)
