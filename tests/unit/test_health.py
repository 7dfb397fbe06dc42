"""The health policy, case by case. Times are made up; `now` is monotonic seconds, `wall` Unix seconds."""

from __future__ import annotations

import msgspec
import pytest
from devherd.health import HealthEngine, SavedHealth
from devherd.settings import Health
from devherd.values import Clears, Evidence, Severity, Verdict

POLICY = Health(
    debounce=10, recover=10, hold_off_max=3600, flap_window=3600, boot_grace=120, mass_fraction=0.5
)  # fmt: skip
NOBODY: frozenset[str] = frozenset()
EIGHT = {"vendor.example/nic": frozenset(f"t{i}" for i in range(8))}
LATER = 1000.0  # after every boot grace
WALL = 1.7e9


def hard(thing: str = "t0", kind: str = "gone", clears: Clears = Clears.PROBE, reason: str = "it is gone") -> Evidence:
    return Evidence(thing, kind, True, reason, Severity.HARD, clears)


def soft(thing: str = "t0", kind: str = "link", clears: Clears = Clears.PROBE, reason: str = "no carrier") -> Evidence:
    return Evidence(thing, kind, True, reason, Severity.SOFT, clears)


def fine(thing: str = "t0", kind: str = "gone") -> Evidence:
    return Evidence(thing, kind, False)


def engine(policy: Health = POLICY, boot: str = "boot-1", saved: SavedHealth | None = None) -> HealthEngine:
    return HealthEngine(policy, boot, 0.0, saved)


def lowered(
    engine: HealthEngine, now: float, held: frozenset[str] = NOBODY, resources: dict[str, frozenset[str]] | None = None
) -> set[str]:
    verdicts = engine.verdicts(now, held, EIGHT if resources is None else resources)
    assert all(not verdict.healthy and verdict.reason and verdict.kind for verdict in verdicts.values())
    return set(verdicts)


def again(saved: SavedHealth) -> SavedHealth:
    """What a later process reads from disk."""
    return msgspec.json.decode(msgspec.json.encode(saved), type=SavedHealth)


def test_without_evidence_everything_is_healthy_and_nothing_is_due() -> None:
    subject = engine()
    assert lowered(subject, 0) == set()
    assert subject.next_change(0) is None
    assert subject.node_problems == ()


def test_hard_evidence_counts_at_once_with_reason_kind_and_since() -> None:
    subject = engine()
    subject.observe([hard()], 5, WALL)
    assert subject.verdicts(5, NOBODY, EIGHT) == {"t0": Verdict(False, "it is gone", "gone", WALL)}


def test_a_verdict_without_a_reason_shows_the_kind() -> None:
    subject = engine()
    subject.observe([Evidence("t0", "xid-79", True)], 5, WALL)
    assert subject.verdicts(5, NOBODY, EIGHT)["t0"].reason == "xid-79"


def test_healthy_only_after_the_evidence_was_good_for_a_while() -> None:
    subject = engine()
    subject.observe([hard()], LATER, WALL)
    subject.observe([fine()], LATER + 5, WALL)
    assert lowered(subject, LATER + 5) == {"t0"}
    assert subject.next_change(LATER + 5) == LATER + 15
    assert lowered(subject, LATER + 14.9) == {"t0"}
    assert lowered(subject, LATER + 15) == set()
    assert subject.next_change(LATER + 15) is None


def test_bad_evidence_while_recovering_starts_the_wait_again() -> None:
    subject = engine()
    subject.observe([hard()], LATER, WALL)
    subject.observe([fine()], LATER + 5, WALL)
    subject.observe([hard()], LATER + 14, WALL)
    subject.observe([fine()], LATER + 15, WALL)
    assert lowered(subject, LATER + 24) == {"t0"}
    assert lowered(subject, LATER + 25) == set()


def test_a_full_report_that_does_not_mention_a_fault_is_good_evidence() -> None:
    subject = engine()
    subject.observe([hard()], LATER, WALL, seen={"t1"})
    subject.observe([], LATER + 1, WALL, seen={"t1"})
    assert lowered(subject, LATER + 100) == {"t0"}, "nobody looked at t0"
    subject.observe([], LATER + 100, WALL, source="check", seen={"t0"})
    assert lowered(subject, LATER + 200) == {"t0"}, "another source says nothing about it"
    subject.observe([], LATER + 200, WALL, seen=["t0", "t1"])
    assert lowered(subject, LATER + 210) == set()


def test_soft_evidence_counts_after_the_debounce() -> None:
    subject = engine()
    subject.observe([soft()], LATER, WALL)
    subject.observe([soft()], LATER + 5, WALL + 5)
    assert lowered(subject, LATER + 9.9) == set()
    assert subject.next_change(LATER + 9.9) == LATER + 10
    assert subject.verdicts(LATER + 10, NOBODY, EIGHT)["t0"] == Verdict(False, "no carrier", "link", WALL)


def test_a_short_soft_fault_never_counts() -> None:
    subject = engine()
    for second in range(0, 86400, 60):
        now = LATER + second
        subject.observe([soft()], now, WALL)
        subject.observe([fine(kind="link")], now + 8, WALL)
        assert lowered(subject, now + 30) == set()
    assert not subject.dirty or subject.dump(LATER).faults == ()


def test_a_soft_fault_seen_once_asks_for_a_check_and_is_believed_in_the_end() -> None:
    subject = engine()
    subject.observe([soft()], LATER, WALL)
    assert lowered(subject, LATER) == set()
    assert subject.next_change(LATER) == LATER + 10
    assert lowered(subject, LATER + 10) == set()
    assert subject.wants_evidence(LATER + 10)
    assert subject.next_change(LATER + 10) == LATER + 30
    assert lowered(subject, LATER + 30) == {"t0"}
    assert not subject.wants_evidence(LATER + 30)


def test_the_confirming_check_settles_a_soft_fault_either_way() -> None:
    for answer, expected in ((soft(), {"t0"}), (fine(kind="link"), set())):
        subject = engine()
        subject.observe([soft()], LATER, WALL)
        subject.observe([answer], LATER + 10, WALL)
        assert lowered(subject, LATER + 10) == expected
        assert not subject.wants_evidence(LATER + 10)


def test_no_debounce_means_at_once() -> None:
    subject = engine(msgspec.structs.replace(POLICY, debounce=0))
    subject.observe([soft()], LATER, WALL)
    assert lowered(subject, LATER) == {"t0"}


def test_after_a_boot_soft_evidence_lowers_only_what_nobody_holds() -> None:
    subject = engine()
    subject.observe([soft("t0"), soft("t1")], 0, WALL)
    subject.observe([soft("t0"), soft("t1")], 10, WALL)
    held = frozenset({"t0"})
    assert lowered(subject, 20, held) == {"t1"}
    assert subject.next_change(20) == 120
    assert lowered(subject, 119, held) == {"t1"}
    assert lowered(subject, 120, held) == {"t0", "t1"}


def test_a_held_thing_loses_its_shield_when_it_is_released() -> None:
    subject = engine()
    subject.observe([soft()], 0, WALL)
    subject.observe([soft()], 10, WALL)
    assert lowered(subject, 20, frozenset({"t0"})) == set()
    assert lowered(subject, 21) == {"t0"}


def test_hard_evidence_counts_even_for_held_things_after_a_boot() -> None:
    subject = engine()
    subject.observe([hard()], 1, WALL)
    assert lowered(subject, 1, frozenset({"t0"})) == {"t0"}


def test_a_new_kubelet_shields_what_a_pod_holds_even_if_it_was_lowered_before() -> None:
    """Admission by the new kubelet would refuse the pod for good; the old verdict cost it nothing."""
    subject = engine()
    subject.observe([soft()], LATER, WALL)
    subject.observe([soft()], LATER + 10, WALL)
    held = frozenset({"t0"})
    assert lowered(subject, LATER + 10, held) == {"t0"}
    subject.kubelet_changed(LATER + 20, "pid 2")
    assert lowered(subject, LATER + 20, held) == set()
    assert subject.next_change(LATER + 20) == LATER + 140
    assert lowered(subject, LATER + 140, held) == {"t0"}


def test_the_same_kubelet_again_is_no_change_even_after_a_restart_of_the_plugin() -> None:
    subject = engine()
    subject.kubelet_changed(LATER, "pid 1")
    until = subject.grace_until
    subject.kubelet_changed(LATER + 60, "pid 1")
    assert subject.grace_until == until
    later = HealthEngine(POLICY, "boot-1", LATER + 90, again(subject.dump(LATER + 80)))
    later.kubelet_changed(LATER + 91, "pid 1")
    assert later.grace_until == until
    later.kubelet_changed(LATER + 92, "pid 2")
    assert later.grace_until == LATER + 92 + 120


def test_a_soft_fault_of_most_of_a_resource_is_a_node_problem() -> None:
    subject = engine()
    ports = [soft(f"t{i}") for i in range(5)]
    subject.observe(ports, LATER, WALL)
    subject.observe(ports, LATER + 10, WALL)
    assert lowered(subject, LATER + 10) == set()
    (problem,) = subject.node_problems
    for word in ("vendor.example/nic", "link", "5 of 8", "no carrier"):
        assert word in problem
    assert subject.next_change(LATER + 10) is None, "a node problem must not wake anyone for ever"


def test_exactly_half_of_a_resource_is_withdrawn() -> None:
    subject = engine()
    ports = [soft(f"t{i}") for i in range(4)]
    subject.observe(ports, LATER, WALL)
    subject.observe(ports, LATER + 10, WALL)
    assert lowered(subject, LATER + 10) == {"t0", "t1", "t2", "t3"}
    assert subject.node_problems == ()


def test_ports_that_fail_a_moment_apart_are_still_one_node_problem() -> None:
    subject = engine()
    for i in range(8):
        subject.observe([soft(f"t{n}") for n in range(i + 1)], LATER + i, WALL)
        assert lowered(subject, LATER + i) == set()
    for second in range(8, 40):
        subject.observe([soft(f"t{n}") for n in range(8)], LATER + second, WALL)
        assert lowered(subject, LATER + second) == set()


def test_after_a_node_problem_each_device_gets_its_debounce_again() -> None:
    subject = engine()
    every = [soft(f"t{i}") for i in range(8)]
    for second in (0, 10, 60):
        subject.observe(every, LATER + second, WALL)
        assert lowered(subject, LATER + second) == set()
    for i in range(7):  # they come back one a second
        subject.observe([fine(f"t{i}", "link"), *every[i + 1 :]], LATER + 61 + i, WALL)
        assert lowered(subject, LATER + 61 + i) == set()
    assert subject.node_problems == ()
    subject.observe(every[7:], LATER + 70, WALL)
    subject.observe(every[7:], LATER + 78, WALL)
    assert lowered(subject, LATER + 78) == {"t7"}, "the one that stays down is its own fault"


def test_what_was_lowered_before_stays_so_when_many_more_fail() -> None:
    subject = engine()
    one = [soft("t0")]
    subject.observe(one, LATER, WALL)
    subject.observe(one, LATER + 10, WALL)
    assert lowered(subject, LATER + 10) == {"t0"}
    every = [soft(f"t{i}") for i in range(8)]
    for second in (100, 110, 200):
        subject.observe(every, LATER + second, WALL)
        assert lowered(subject, LATER + second) == {"t0"}
    assert subject.node_problems


def test_different_kinds_of_soft_faults_do_not_add_up() -> None:
    subject = engine()
    each = [soft(f"t{i}", "link" if i < 4 else "heat") for i in range(8)]
    subject.observe(each, LATER, WALL)
    subject.observe(each, LATER + 10, WALL)
    assert len(lowered(subject, LATER + 10)) == 8


def test_the_only_device_of_a_resource_can_be_withdrawn() -> None:
    subject = engine()
    alone = {"vendor.example/one": frozenset({"t0"})}
    subject.observe([soft()], LATER, WALL)
    subject.observe([soft()], LATER + 10, WALL)
    assert lowered(subject, LATER + 10, NOBODY, alone) == {"t0"}


def test_a_hard_fault_of_everything_is_withdrawn() -> None:
    subject = engine()
    subject.observe([hard(f"t{i}") for i in range(8)], LATER, WALL)
    assert len(lowered(subject, LATER)) == 8


def fail_and_recover(subject: HealthEngine, now: float) -> float:
    """One hard fault, good a second later. Returns how long the thing stayed Unhealthy after that."""
    subject.observe([hard()], now, WALL)
    assert lowered(subject, now) == {"t0"}
    subject.observe([fine()], now + 1, WALL)
    due = subject.next_change(now + 1)
    assert due is not None
    assert lowered(subject, due - 0.01) == {"t0"}
    assert lowered(subject, due) == set()
    return due - now - 1


def test_each_relapse_doubles_the_hold_off_up_to_the_cap() -> None:
    subject = engine()
    now = LATER
    waits = []
    for _ in range(12):
        wait = fail_and_recover(subject, now)
        waits.append(wait)
        now += wait + 60
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]


def test_a_fault_long_after_the_last_one_is_no_relapse() -> None:
    subject = engine()
    assert fail_and_recover(subject, LATER) == 10
    assert fail_and_recover(subject, LATER + 60) == 20
    assert fail_and_recover(subject, LATER + 81 + 3601) == 10


def test_relapses_are_counted_for_the_thing_whatever_the_kind() -> None:
    subject = engine()
    assert fail_and_recover(subject, LATER) == 10
    subject.observe([hard(kind="xid-79")], LATER + 60, WALL)
    subject.observe([fine(kind="xid-79")], LATER + 61, WALL)
    assert lowered(subject, LATER + 80) == {"t0"}
    assert lowered(subject, LATER + 81) == set()


def test_without_a_recovery_time_flapping_is_still_held_back() -> None:
    subject = engine(msgspec.structs.replace(POLICY, recover=0))
    now, turns = LATER, 0
    while now < LATER + 3600:
        subject.observe([hard()], now, WALL)
        assert lowered(subject, now) == {"t0"}
        subject.observe([fine()], now + 0.1, WALL)
        now = max(subject.next_change(now) or 0, now + 0.1) + 0.1
        lowered(subject, now)
        turns += 1
    assert turns < 20


def test_one_fault_after_another_without_a_healthy_moment_is_one_fault() -> None:
    subject = engine()
    now = LATER
    for _ in range(4):
        now += fail_and_recover(subject, now) + 60
    subject.observe([hard()], now, WALL)  # the fifth: held back 160 s
    subject.observe([fine()], now + 1, WALL)
    subject.observe([soft()], now + 151, WALL)
    subject.observe([soft()], now + 161, WALL)
    assert lowered(subject, now + 161) == {"t0"}
    subject.observe([fine(kind="link")], now + 162, WALL)
    assert lowered(subject, now + 321) == {"t0"}
    assert lowered(subject, now + 322) == set()


def test_time_clears_an_event() -> None:
    subject = engine()
    subject.observe([hard(kind="ecc", clears=Clears.TIME)], LATER, WALL)
    subject.observe([], LATER + 1, WALL, seen={"t0"})
    subject.observe([hard(kind="ecc", clears=Clears.TIME)], LATER + 8, WALL)
    assert lowered(subject, LATER + 17.9) == {"t0"}
    assert subject.next_change(LATER + 17.9) == LATER + 18
    assert lowered(subject, LATER + 18) == set()


def test_rare_soft_events_never_count_and_lasting_ones_do() -> None:
    subject = engine()
    event = soft(kind="crc", clears=Clears.TIME)
    for hour in range(24):
        subject.observe([event], LATER + hour * 3600, WALL)
        assert lowered(subject, LATER + hour * 3600) == set()
    now = LATER + 24 * 3600.0
    for second in range(0, 11, 2):
        subject.observe([event], now + second, WALL)
    assert lowered(subject, now + 10) == {"t0"}
    assert lowered(subject, now + 20) == set()


@pytest.mark.parametrize("by", [Clears.RESET, Clears.REBOOT, Clears.OPERATOR])
def test_good_evidence_does_not_clear_what_needs_more(by: Clears) -> None:
    subject = engine()
    subject.observe([hard(kind="xid-79", clears=by)], LATER, WALL)
    subject.observe([fine(kind="xid-79")], LATER + 1, WALL, seen={"t0"})
    assert lowered(subject, LATER + 1e6) == {"t0"}
    assert subject.next_change(LATER + 1e6) is None


def test_after_a_reset_the_thing_has_to_stay_good_for_a_while() -> None:
    subject = engine()
    subject.observe([hard(kind="xid-79", clears=Clears.RESET)], LATER, WALL)
    assert subject.clear("t0", Clears.RESET, LATER + 50) == ("xid-79",)
    assert lowered(subject, LATER + 59) == {"t0"}
    assert lowered(subject, LATER + 60) == set()


def test_a_reset_that_did_not_help() -> None:
    subject = engine()
    subject.observe([hard(kind="xid-79", clears=Clears.RESET)], LATER, WALL)
    subject.clear("t0", Clears.RESET, LATER + 50)
    subject.observe([hard(kind="xid-79", clears=Clears.RESET)], LATER + 55, WALL)
    subject.observe([fine(kind="xid-79")], LATER + 56, WALL, seen={"t0"})
    assert lowered(subject, LATER + 1e5) == {"t0"}


def test_a_reset_does_not_clear_what_an_operator_must() -> None:
    subject = engine()
    subject.observe([hard(kind="rma", clears=Clears.OPERATOR), hard(kind="xid", clears=Clears.RESET)], LATER, WALL)
    assert subject.clear("t0", Clears.RESET, LATER + 1) == ("xid",)
    assert lowered(subject, LATER + 100) == {"t0"}
    assert subject.clear("t0", Clears.OPERATOR, LATER + 101) == ("rma",)
    assert lowered(subject, LATER + 101) == set()


def test_a_source_that_saw_the_reset_ends_what_only_a_reset_ends_once() -> None:
    subject = engine()
    subject.observe([hard(kind="ecc", clears=Clears.RESET), hard(kind="bent", clears=Clears.OPERATOR)], LATER, WALL)
    proof = Evidence("t0", "ecc", False, clears=Clears.RESET)
    subject.observe([proof, Evidence("t0", "bent", False, clears=Clears.RESET)], LATER + 5, WALL)
    subject.observe([proof], LATER + 10, WALL)  # said again, which must not start the wait anew
    assert lowered(subject, LATER + 15) == {"t0"}
    assert [line.partition(":")[0] for line in subject.explain("t0", LATER + 15)] == ["bent"]


def test_a_reset_that_a_source_saw_is_about_every_kind_of_fault() -> None:
    subject = engine()
    subject.observe([hard(kind="ecc", clears=Clears.RESET), hard("t1", "ecc", Clears.RESET)], LATER, WALL)
    subject.observe([Evidence("t0", "", False, clears=Clears.RESET), Evidence("t9", "", False)], LATER + 5, WALL)
    assert lowered(subject, LATER + 14) == {"t0", "t1"}
    assert lowered(subject, LATER + 15) == {"t1"}


def test_an_operators_word_ends_everything_at_once_and_forgets_relapses() -> None:
    subject = engine()
    fail_and_recover(subject, LATER)
    fail_and_recover(subject, LATER + 60)
    subject.observe([hard()], LATER + 120, WALL)
    assert subject.clear("t0", Clears.OPERATOR, LATER + 121) == ("gone",)
    assert lowered(subject, LATER + 121) == set()
    assert fail_and_recover(subject, LATER + 130) == 10
    assert subject.clear("unknown", Clears.OPERATOR, LATER) == ()


def test_the_text_of_a_verdict_does_not_change_while_it_lasts() -> None:
    """Every new text would be a new list, and each list costs the kubelet a write to disk."""
    subject = engine()
    subject.observe([hard(kind="heat", reason="91 degrees")], LATER, WALL)
    first = subject.verdicts(LATER, NOBODY, EIGHT)
    subject.observe([hard(kind="heat", reason="92 degrees")], LATER + 1, WALL + 1)
    assert subject.verdicts(LATER + 1, NOBODY, EIGHT) == first


def test_the_worst_fault_is_shown() -> None:
    subject = engine()
    subject.observe([soft()], LATER, WALL)
    subject.observe([soft()], LATER + 10, WALL)
    assert subject.verdicts(LATER + 10, NOBODY, EIGHT)["t0"].kind == "link"
    subject.observe([hard()], LATER + 11, WALL + 11)
    assert subject.verdicts(LATER + 11, NOBODY, EIGHT)["t0"].kind == "gone"


def test_soft_evidence_that_turns_hard_counts_at_once() -> None:
    subject = engine()
    subject.observe([soft(kind="heat")], LATER, WALL)
    subject.observe([hard(kind="heat", reason="it throttles")], LATER + 1, WALL)
    assert subject.verdicts(LATER + 1, NOBODY, EIGHT)["t0"].reason == "it throttles"


def test_a_wavering_source_cannot_lift_its_own_fault() -> None:
    subject = engine()
    subject.observe([hard(kind="heat")], 1, WALL)
    subject.observe([soft(kind="heat")], 2, WALL)
    assert lowered(subject, 2, frozenset({"t0"})) == {"t0"}


def test_a_restart_in_the_same_boot_keeps_the_verdict_until_the_evidence_is_good() -> None:
    subject = engine()
    subject.observe([hard(), soft("t1")], LATER, WALL)
    assert subject.dirty
    later = HealthEngine(POLICY, "boot-1", LATER + 50, again(subject.dump(LATER)))
    assert not subject.dirty
    assert later.verdicts(LATER + 50, NOBODY, EIGHT) == {"t0": Verdict(False, "it is gone", "gone", WALL)}
    later.observe([], LATER + 51, WALL, seen={"t0", "t1"})
    assert lowered(later, LATER + 61) == set()


def test_a_reboot_starts_healthy_except_for_what_an_operator_must_clear() -> None:
    subject = engine()
    kinds = {clears.value: clears for clears in Clears}
    subject.observe([hard(f"t{i}", kind, clears) for i, (kind, clears) in enumerate(kinds.items())], LATER, WALL)
    assert len(lowered(subject, LATER)) == 5
    later = HealthEngine(POLICY, "boot-2", 3.0, again(subject.dump(LATER)))
    verdicts = later.verdicts(3, NOBODY, EIGHT)
    assert [verdict.kind for verdict in verdicts.values()] == ["operator"]
    assert later.grace_until == 123


def test_relapses_are_remembered_over_a_restart_of_the_plugin() -> None:
    subject = engine()
    fail_and_recover(subject, LATER)
    later = HealthEngine(POLICY, "boot-1", LATER + 20, again(subject.dump(LATER + 20)))
    assert fail_and_recover(later, LATER + 60) == 20


def test_a_fault_whose_source_is_gone_ends_when_others_look_at_the_thing() -> None:
    """A new vendor version without that check must not leave the device Unhealthy for ever."""
    subject = engine()
    subject.observe([hard(kind="old-check")], LATER, WALL, source="check")
    later = HealthEngine(POLICY, "boot-1", LATER + 10, again(subject.dump(LATER)))
    now = LATER + 10
    while lowered(later, now):
        now += 30
        later.observe([], now, WALL, source="scan", seen={"t0"})
        assert now < LATER + 3 * 3600
    assert now > LATER + 3600


def test_a_fault_nobody_could_look_at_stays() -> None:
    subject = engine()
    subject.observe([hard()], LATER, WALL)
    assert lowered(subject, LATER + 1e6) == {"t0"}


def test_things_that_are_long_gone_are_forgotten() -> None:
    subject = engine()
    for number in range(500):
        subject.observe([hard(f"c:240:{number}")], LATER + number, WALL)
        lowered(subject, LATER + number, resources={})
    lowered(subject, LATER + 2 * 86400, resources={})
    assert subject.dump(LATER + 2 * 86400).faults == ()


def test_quarantine_is_not_forgotten_while_the_hardware_is_out() -> None:
    subject = engine()
    subject.observe([hard(kind="rma", clears=Clears.OPERATOR)], LATER, WALL)
    lowered(subject, LATER, resources={})
    assert lowered(subject, LATER + 30 * 86400, resources={}) == {"t0"}


def test_explain_says_what_ends_a_fault() -> None:
    subject = engine()
    subject.observe([hard()], LATER, WALL)
    assert "probe" in subject.explain("t0", LATER)[0]
    subject.observe([fine()], LATER + 1, WALL)
    assert "10 s" in subject.explain("t0", LATER + 1)[0]
    subject.observe([soft("t1"), soft("t2")], 1, WALL)
    assert "does not count yet" in subject.explain("t1", 1)[0]
    assert subject.explain("nothing", 1) == ()


def test_ten_thousand_bad_things_are_judged_quickly() -> None:
    import time

    things = [f"sys:/devices/x/{i}" for i in range(10_000)]
    resources = {f"vendor.example/r{i}": frozenset(things[i::60]) for i in range(60)}
    subject = engine()
    began = time.thread_time()
    subject.observe([hard(thing) for thing in things], LATER, WALL, seen=frozenset(things))
    assert len(subject.verdicts(LATER, NOBODY, resources)) == 10_000
    subject.next_change(LATER)
    assert time.thread_time() - began < 2.0
