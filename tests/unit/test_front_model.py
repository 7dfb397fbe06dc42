"""What one plugin knows: which requests it refuses, and with what words."""

from __future__ import annotations

import pytest
from devherd.front.detached import Wish, parked, wish_from
from devherd.front.model import Model, Refused
from devherd.health.engine import HealthEngine
from devherd.ledger import Ledger
from devherd.settings import Settings
from devherd.tenancy import Tenancy
from devherd.values import Clears, Device, Evidence, Inventory, Parts, Resource

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


def test_a_detached_plugin_parks_what_nobody_holds_and_the_rest_as_it_is_released() -> None:
    made = model_of(0, "")
    made.granted(NAME, made.parts(NAME, ["a::1"]), 0.0, 0.0)
    made.detached = Wish(reason="new driver")
    made.rebuild(1.0, 1.0)
    states = {id: (member.healthy, member.reason) for id, member in made.boards[NAME].members.items()}
    assert states.pop("a::1") == (True, "")
    assert set(states.values()) == {(False, "detached: new driver")}
    assert made.waiting(), "it has to be noticed when the last one is let go"
    assert [one["id"] for one in made.holders()] == ["a::1"]


def test_only_what_was_named_is_parked() -> None:
    devices = {id: Device(id, (f"pci:{id}",), Parts()) for id in ("a", "b", "c")}
    assert list(parked(Wish(names=("a", "pci:b")), devices, devices, ())) == ["a", "b"]
    assert parked(Wish(names=("a",)), devices, devices, {"a"}) == {}
    assert parked(None, devices, devices, ()) == {}


@pytest.mark.parametrize("names", ["a", [1], [""], {"a": 1}])
def test_a_wish_that_is_none_is_refused(names: object) -> None:
    with pytest.raises(ValueError, match="list of device ids"):
        wish_from({"op": "detach", "names": names}, "boot")


def test_after_a_reset_by_hand_only_what_was_detached_is_taken_for_reset() -> None:
    made = model_of(0, "")
    thing = "pci:0000:01:00.0"
    made.observe([Evidence(thing, "ecc", True, "bad", clears=Clears.RESET)], 1.0, 1.0)
    made.rebuild(1.0, 1.0)
    made.was_reset(2.0)
    assert made.health.needs_reset() == (thing,), "nothing was detached"
    made.detached = Wish()
    made.was_reset(2.0)
    assert made.health.needs_reset() == ()
