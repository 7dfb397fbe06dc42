"""The ledger: an answer the kubelet still replays must lead to the same hardware."""

from __future__ import annotations

import msgspec
from devherd.ledger import Ledger, SavedLedger
from devherd.values import Device, Mount, Node, Parts
from hypothesis import given, settings
from hypothesis import strategies as st

RES = "vendor.example/fpga"


def node(path: str = "/dev/x4", minor: int = 4, thing: str = "sys:/devices/pci/x4") -> Node:
    return Node(path, path, "rw", "c", 240, minor, thing)


def device(*nodes: Node, cdi: tuple[str, ...] = (), device_id: str = "four") -> Device:
    return Device(device_id, tuple(n.thing for n in nodes), Parts(nodes=nodes, cdi=cdi))


def ledger_of(given: Device) -> Ledger:
    ledger = Ledger()
    ledger.record(RES, given.id, given.parts, "boot-1", 1.7e9)
    return ledger


def test_what_was_never_answered_is_not_stale() -> None:
    assert Ledger().stale(RES, device(node())) == ""


def test_the_same_device_is_not_stale() -> None:
    assert ledger_of(device(node())).stale(RES, device(node())) == ""


def test_a_path_that_leads_to_another_device_is_stale_and_says_so() -> None:
    reason = ledger_of(device(node())).stale(RES, device(node(thing="sys:/devices/pci/x5")))
    assert reason == "answer stale: /dev/x4 is now sys:/devices/pci/x5, was sys:/devices/pci/x4"


def test_a_number_that_moves_to_another_device_is_stale() -> None:
    """Node 4 becomes what was 5, and sysfs knows only the numbers."""
    before = device(node(thing="c:240:4"))
    after = device(node(minor=5, thing="c:240:5"))
    reason = ledger_of(before).stale(RES, after)
    assert reason == "answer stale: /dev/x4 is now c 240:5, was c 240:4"


def test_where_the_number_is_all_there_is_it_must_be_the_same() -> None:
    for thing in ("c:240:4", ""):
        assert ledger_of(device(node(thing=thing))).stale(RES, device(node(minor=5, thing=thing)))


def test_the_same_hardware_under_another_number_is_fine() -> None:
    """The runtime looks the number up by path when it creates a container."""
    assert ledger_of(device(node())).stale(RES, device(node(minor=77))) == ""


def test_hardware_that_now_has_another_path_is_stale() -> None:
    reason = ledger_of(device(node())).stale(RES, device(node(path="/dev/x5")))
    assert reason == "answer stale: /dev/x4 is no longer part of this device"


def test_every_node_of_the_answer_counts_and_additional_ones_do_not() -> None:
    two = device(node(), node("/dev/ctl", 0, "sys:/devices/virtual/ctl"))
    assert ledger_of(two).stale(RES, device(node()))
    assert ledger_of(device(node())).stale(RES, two) == ""


def test_a_cdi_name_that_is_gone_is_stale() -> None:
    given_names = device(cdi=("vendor.example/gpu=a", "vendor.example/gpu=b"))
    assert "vendor.example/gpu=b" in ledger_of(given_names).stale(RES, device(cdi=("vendor.example/gpu=a",)))
    assert ledger_of(given_names).stale(RES, given_names) == ""


def test_edited_mounts_and_variables_do_not_cost_a_pod_its_device() -> None:
    plain = device(node())
    edited = Device("four", plain.things, Parts(nodes=plain.parts.nodes, mounts=(Mount("/a", "/b"),), env={"A": "1"}))
    assert ledger_of(edited).stale(RES, plain) == ""
    assert ledger_of(plain).stale(RES, edited) == ""


def test_stale_until_released() -> None:
    ledger = ledger_of(device(node()))
    other = device(node(thing="sys:/devices/pci/x5"))
    assert ledger.stale_in(RES, {"four": other}) == {"four": ledger.stale(RES, other)}
    ledger.forget(RES, "four")
    assert ledger.stale_in(RES, {"four": other}) == {}
    assert ledger.answers() == ()


def test_stale_in_looks_only_at_what_was_found() -> None:
    assert ledger_of(device(node())).stale_in(RES, {}) == {}
    assert ledger_of(device(node())).stale_in("other/resource", {"four": device()}) == {}


def test_only_changes_need_a_write() -> None:
    ledger = Ledger()
    assert not ledger.dirty
    ledger.forget(RES, "four")
    assert not ledger.dirty
    ledger.record(RES, "four", device(node()).parts, "boot-1", 1.0)
    assert ledger.dirty
    saved = ledger.dump()
    assert not ledger.dirty
    ledger.record(RES, "four", device(node()).parts, "boot-1", 2.0)
    assert not ledger.dirty
    assert ledger.dump() == saved
    ledger.record(RES, "four", device(node(minor=9)).parts, "boot-1", 3.0)
    assert ledger.dirty


def test_it_survives_being_saved() -> None:
    ledger = ledger_of(device(node(), cdi=("vendor.example/gpu=a",)))
    text = msgspec.json.encode(ledger.dump())
    later = Ledger.load(msgspec.json.decode(text, type=SavedLedger))
    assert later.answers() == ledger.answers()
    assert later.answer(RES, "four") == ledger.answers()[0]
    assert later.ids(RES) == {"four"}
    assert not later.dirty
    assert later.stale(RES, device(node(thing="sys:/else")))
    assert Ledger.load(None).answers() == ()


keys = st.tuples(st.sampled_from(["r/a", "r/b"]), st.sampled_from(["1", "2", "3"]))


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.tuples(st.sampled_from(["record", "forget", "save"]), keys, st.integers(0, 2))))
def test_it_holds_exactly_the_last_answer_of_each_held_id(
    steps: list[tuple[str, tuple[str, str], int]],
) -> None:
    ledger, expected = Ledger(), dict[tuple[str, str], Parts]()
    for what, (resource, device_id), minor in steps:
        if what == "record":
            expected[resource, device_id] = Parts(nodes=(node(minor=minor),))
            ledger.record(resource, device_id, expected[resource, device_id], "boot", 1.0)
        elif what == "forget":
            expected.pop((resource, device_id), None)
            ledger.forget(resource, device_id)
        else:
            ledger = Ledger.load(msgspec.json.decode(msgspec.json.encode(ledger.dump()), type=SavedLedger))
        assert {(a.resource, a.id): a.parts for a in ledger.answers()} == expected
        assert [(a.resource, a.id) for a in ledger.answers()] == sorted(expected)


def picked(*picks: str, names: tuple[str, ...], cdi: tuple[str, ...] = ()) -> Device:
    return Device("four", ("pci:0000:04:00.0",), Parts(picks=picks, cdi=cdi), names=names)


def test_a_name_that_a_runtime_picks_by_must_still_lead_to_the_device() -> None:
    """GPU 1 is lost, so what was index 4 is index 3: the variable in the old answer leads to a neighbour."""
    ledger = ledger_of(picked("index:4", names=("index:4", "uuid:GPU-4")))
    assert ledger.stale(RES, picked("index:4", names=("index:4", "uuid:GPU-4"))) == ""
    moved = picked("index:3", names=("index:3", "uuid:GPU-4"))
    assert ledger.stale(RES, moved) == "answer stale: index:4 no longer leads to this device"


def test_answers_by_another_name_stay_right_while_that_name_leads_there() -> None:
    """The operator changes the id strategy: pods that were given an index keep it, new ones get the UUID."""
    ledger = ledger_of(picked("index:4", names=("index:4", "uuid:GPU-4")))
    assert ledger.stale(RES, picked("uuid:GPU-4", names=("index:4", "uuid:GPU-4"))) == ""


def test_a_cdi_name_that_is_still_specified_is_no_reason() -> None:
    ledger = ledger_of(picked(names=(), cdi=("v.example/gpu=4",)))
    assert ledger.stale(RES, picked(names=("v.example/gpu=4",))) == ""
    assert "CDI device v.example/gpu=4" in ledger.stale(RES, picked(names=()))
