"""One verdict for everybody: what is missing, why, and whether a boot waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from cli_stub import resource_of, status_of
from devherd.expected import Expectation
from devherd.fitness import Fitness, Lack, judge, programs_at_rest

GPU = "example.com/gpu"
SCANNED = {"state": "idle", "scan_age_seconds": 1.0, "scan_seconds": 0.1}


def reply(*resources: dict[str, Any], **other: Any) -> dict[str, Any]:
    return status_of("gpu", *resources, **{"probe": SCANNED, **other})


def row(healthy: int, **other: Any) -> dict[str, Any]:
    return resource_of(GPU, **{"devices": healthy, "healthy": healthy, "state": "waiting", **other})


def verdict(one: Expectation, *replies: dict[str, Any], down: Any = None, resting: Any = None) -> Fitness:
    return judge([one], replies, down or {}, resting or {})


def lack(one: Expectation, *replies: dict[str, Any], **more: Any) -> Lack:
    [found] = verdict(one, *replies, **more).missing
    return found


EIGHT = Expectation(GPU, 8, "gpu")


def test_nothing_expected_is_fit() -> None:
    assert judge([], [], {}, {}) == Fitness()
    assert Fitness().fit


def test_all_there_is_fit_without_a_kubelet() -> None:
    found = verdict(EIGHT, reply(row(8)))
    assert (found.fit, found.awaited, found.expected) == (True, (), 1)
    assert verdict(EIGHT, reply(row(9))).fit


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (reply(row(7, devices=8, unhealthy={"gone": 1})), "1 device gone"),
        (reply(row(6, devices=8, unhealthy={"gone": 1, "link": 1})), "1 device gone, 1 link"),
        (reply(), "device gone, or driver not bound"),
        (reply(skipped=[{"what": "0000:01:00.0", "rule": "", "reason": "no driver"}]), "0000:01:00.0: no driver"),
        (
            reply(row(8), probe={"state": "busy", "doing": "scan", "doing_seconds": 4, "scan_age_seconds": None}),
            "busy: scan since 4 s",
        ),
        (
            reply(row(7), probe={**SCANNED, "state": "hung", "doing": "check", "doing_seconds": 9}),
            "hung: check since 9 s",
        ),
        (reply(row(7), probe={**SCANNED, "error": "NVML: no"}), "scan failed: NVML: no"),
        (reply(absent="no card on the bus"), "no card on the bus"),
        (reply(row(0), detached={"reason": "x"}), "detached"),
        (
            reply(config={"problems": [{"file": "gpu.yaml", "line": 3, "message": "unknown key"}]}),
            "configuration broken: gpu.yaml:3: unknown key",
        ),
    ],
)
def test_every_reason_has_words(answer: dict[str, Any], why: str) -> None:
    found = lack(EIGHT, answer)
    assert why in found.why
    assert found.counts
    assert not found.spared


def test_what_is_only_remembered_does_not_count() -> None:
    found = lack(EIGHT, reply(row(8), probe={"state": "starting", "scan_age_seconds": None}))
    assert found.have == 0


def test_a_program_that_does_not_run_is_a_reason() -> None:
    found = lack(EIGHT, down={"gpu": "fails to start"})
    assert found.why == "program not running: gpu fails to start"
    assert not found.spared
    found = lack(Expectation("a/b", 1, configured=True), down={"gpu": "fails to start"})
    assert found.why == "no plugin offers it; program not running: gpu fails to start"


def test_what_another_plugin_serves_now_is_there() -> None:
    assert verdict(Expectation(GPU, 8, "old"), reply(row(8))).fit


def test_late_by_design_is_named_and_not_waited_for() -> None:
    found = verdict(Expectation(GPU, 8, "gpu", late=True), reply())
    assert (len(found.missing), found.awaited, found.fit) == (1, (), False)


def test_missed_twice_is_named_only() -> None:
    found = verdict(Expectation(GPU, 8, "gpu", missed=2), reply(row(7)))
    assert (len(found.missing), found.awaited, found.fit) == (1, (), True)
    found = verdict(Expectation(GPU, 8, "gpu", missed=1), reply(row(7)))
    assert len(found.awaited) == 1


def test_what_is_configured_makes_unfit_even_if_no_boot_waits_any_more() -> None:
    found = verdict(Expectation(GPU, 8, "gpu", configured=True, missed=2), reply(row(7)))
    assert (found.awaited, found.fit) == ((), False)


def test_attributes_count_where_they_are_expected() -> None:
    one = Expectation(GPU, 8, "gpu", configured=True, where=True)
    assert verdict(one, reply(row(8, matching=8))).fit
    found = lack(one, reply(row(8, matching=6)))
    assert (found.have, found.why) == (6, "others are there, but not with these attributes")
    assert lack(one, reply(row(8))).have == 0, "the front has not read that expectation yet"


def test_a_plugin_at_rest_delays_nothing_unless_it_is_configured() -> None:
    resting = {"gpu": "there is no hardware for it"}
    found = verdict(EIGHT, resting=resting)
    assert (len(found.missing), found.awaited, found.fit) == (1, (), True)
    found = verdict(Expectation(GPU, 8, "gpu", configured=True), resting=resting)
    assert (len(found.awaited), found.fit) == (1, False)


def test_who_rests_by_supervisords_list() -> None:
    rows = [
        ("absent", "EXITED", 69, True),
        ("ended", "EXITED", 1, True),
        ("off", "STOPPED", 0, False),
        ("stopped", "STOPPED", 0, True),
        ("up", "RUNNING", 0, True),
    ]
    names = {name for name, *_ in rows} | {"purged"}
    assert set(programs_at_rest(rows, names)) == {"absent", "off", "purged"}
    assert programs_at_rest(None, names) == {}


@pytest.mark.parametrize("odd", [None, "x", -1, [], {}, 1.5, [None, 3], {"a": None}])
def test_odd_answers_of_other_releases_raise_nothing(odd: Any) -> None:
    for key in ("resources", "probe", "config", "skipped", "detached", "absent"):
        judge([EIGHT], [{"plugin": "gpu", key: odd}], {}, {})
    for key in ("healthy", "matching", "unhealthy", "draining", "name"):
        one = Expectation(GPU, 8, "gpu", where=True)
        judge([EIGHT, one], [reply({"name": GPU, "healthy": 8, key: odd})], {}, {})
