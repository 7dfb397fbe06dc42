"""What one plugin knows: which requests it refuses, and with what words."""

from __future__ import annotations

import pytest
from devherd.front.model import Model, Refused
from devherd.health.engine import HealthEngine
from devherd.ledger import Ledger
from devherd.settings import Settings
from devherd.tenancy import Tenancy
from devherd.values import Device, Inventory, Parts, Resource

NAME = "vendor.example/gpu"


def model_of(limit: int, text: str) -> Model:
    settings = Settings()
    made = Model(settings, HealthEngine(settings.health, "boot", 0.0), Ledger(), Tenancy(0.0), "boot")
    devices = tuple(Device(f"a::{n}", ("pci:0000:01:00.0",), Parts(env={"X": "a"})) for n in range(4))
    made.apply(Inventory((Resource(NAME, devices, limit=limit, limit_text=text),)), 0.0, 0.0)
    made.rebuild(0.0, 0.0)
    return made


def test_more_shares_than_a_container_may_have_are_refused_in_the_vendors_words() -> None:
    made = model_of(1, "at most 1; found {found}")
    assert list(made.parts(NAME, ["a::0"])) == ["a::0"]
    with pytest.raises(Refused, match=r"^at most 1; found 3$"):
        made.parts(NAME, ["a::0", "a::1", "a::3"])


def test_a_limit_without_words_names_resource_and_numbers() -> None:
    with pytest.raises(Refused, match=rf"^{NAME}: a container may ask for at most 2; found 3$"):
        model_of(2, "").parts(NAME, ["a::0", "a::1", "a::3"])


def test_without_a_limit_any_number_is_given() -> None:
    assert len(model_of(0, "").parts(NAME, [f"a::{n}" for n in range(4)])) == 4
