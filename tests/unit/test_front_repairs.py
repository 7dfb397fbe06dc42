"""Resets of devices that nobody holds: which, when, and how often."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from devherd.front.model import Model
from devherd.front.repairs import DAY, Repairs
from devherd.health.engine import HealthEngine
from devherd.ledger import Ledger
from devherd.settings import Health, Settings
from devherd.tenancy import Guards, Tenancy
from devherd.values import Clears, Device, Evidence, Inventory, Parts, Resource, Severity

NAME = "vendor.example/gpu"


class Bench:
    """A model with two GPUs of two shares each, and a probe that only notes what it is asked."""

    def __init__(self, resets_per_day: int = 3) -> None:
        self.settings = Settings(health=Health(recover=10, boot_grace=0, resets_per_day=resets_per_day))
        self.model = Model(
            self.settings,
            HealthEngine(self.settings.health, "boot", 0.0),
            Ledger(),
            Tenancy(0.0, Guards(settle=0)),
            "boot",
        )
        devices = tuple(Device(f"{gpu}::{n}", (f"pci:{gpu}",), Parts(env={"X": gpu})) for gpu in "ab" for n in range(2))
        self.model.apply(Inventory((Resource(NAME, devices),)), 1.0, 0.0)
        self.model.rebuild(1.0, 0.0)
        self.asked: list[tuple[str, int]] = []
        self.answer = ""
        self.notes: list[dict[str, Any]] = []
        self.changes = 0
        probe: Any = SimpleNamespace(repair=self._repair, limits=self.settings.probe, capabilities=("repairs",))
        journal: Any = SimpleNamespace(note=lambda kind, **fields: self.notes.append({"kind": kind, **fields}))
        self.repairs = Repairs(self.model, journal, probe, self._changed)
        self.now = 1000.0

    async def _repair(self, thing: str, attempt: int) -> str:
        self.asked.append((thing, attempt))
        return self.answer

    async def _changed(self) -> None:
        self.changes += 1

    def fault(self, thing: str, clears: Clears = Clears.RESET, kind: str = "ecc", bad: bool = True) -> None:
        self.model.observe([Evidence(thing, kind, bad, "bad memory", Severity.HARD, clears)], self.now, 0.0)
        self.model.rebuild(self.now, 0.0)

    def look(self, times: int = 3, apart: float = 10.0) -> list[tuple[str, int]]:
        """So many looks; what was asked of the probe."""
        self.asked = []
        for _ in range(times):
            self.now += apart
            self.model.rebuild(self.now, 0.0)
            asyncio.run(self.repairs.look(self.now))
        return self.asked


def test_a_device_that_needs_a_reset_gets_it_when_it_has_been_listed_for_a_while() -> None:
    bench = Bench()
    bench.fault("pci:a")
    assert bench.look(2) == []
    assert bench.look(1) == [("pci:a", 0)]
    assert bench.changes == 1
    assert [(note["kind"], note["thing"], note["reason"]) for note in bench.notes] == [("repaired", "pci:a", "")]


def test_a_healthy_one_or_one_that_needs_something_else_is_left_alone() -> None:
    bench = Bench()
    bench.fault("pci:a", Clears.PROBE)
    bench.fault("pci:b", Clears.RESET)
    bench.fault("pci:b", Clears.OPERATOR, "bent")
    assert bench.look(10) == []


def test_while_any_share_is_held_it_is_left_alone() -> None:
    bench = Bench()
    bench.model.granted(NAME, {"a::1": Parts(env={"X": "a"})}, 5.0, 0.0)
    bench.fault("pci:a")
    assert bench.look(10) == []


def test_while_it_is_unknown_who_holds_what_it_is_left_alone() -> None:
    bench = Bench()
    bench.model.tenancy = Tenancy(bench.now, Guards(settle=1e6))
    bench.fault("pci:a")
    assert bench.look(10) == []


def test_a_reset_that_does_not_help_is_tried_again_until_the_days_budget_is_used_up() -> None:
    bench = Bench(resets_per_day=2)
    bench.answer = "the reset failed"
    bench.fault("pci:a")
    assert bench.look(100) == [("pci:a", 0), ("pci:a", 1)]
    assert {note["reason"] for note in bench.notes} == {"the reset failed"}
    assert bench.changes == 0
    assert bench.look(5, apart=DAY / 4)[-1] == ("pci:a", 0)


def test_one_reset_at_a_time() -> None:
    bench = Bench()
    bench.fault("pci:a")
    bench.fault("pci:b")
    assert bench.look(3) == [("pci:a", 0)]
    assert bench.look(1) == [("pci:b", 0)]


def test_none_a_day_is_none() -> None:
    bench = Bench(resets_per_day=0)
    bench.fault("pci:a")
    assert bench.look(10) == []


def test_after_a_reset_the_device_is_healthy_when_it_stayed_good() -> None:
    bench = Bench()
    bench.fault("pci:a")
    bench.look(3)
    bench.fault("pci:a", bad=False)
    bench.model.rebuild(1e9, 0.0)  # long after any clock's now
    assert all(member.healthy for member in bench.model.boards[NAME].snapshot.members)
