"""The watcher's rules, by themselves: whom to blame, how long to wait, what is due. Time is an argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from devherd_watcher import memory
from devherd_watcher.backoff import BackOff
from devherd_watcher.confirm import Confirmation
from devherd_watcher.judge import FRONT, KUBELET, Verdict, judge, may_restart, silent
from devherd_watcher.memory import Memory
from devherd_watcher.owner import Identity
from devherd_watcher.programs import AGAIN, DEBOUNCE, Programs
from devherd_watcher.pulse import Pulse
from hypothesis import given
from hypothesis import strategies as st

KUBELET_ONE = Identity(100, 5000)


def status(pid: int = 100, start: int = 5000, **states: str) -> dict[str, Any]:
    rows = [{"name": name, "state": state, "error": "", "draining": False} for name, state in states.items()]
    return {"kubelet": {"state": "up", "pid": pid, "start_time": start}, "resources": rows}


@pytest.mark.parametrize(
    ("document", "ok", "blame"),
    [
        (status(a="registered", b="unverified"), True, ""),
        (status(), True, ""),
        (status(a="taken", b="refused"), True, ""),
        (status(a="registered", b="waiting"), False, KUBELET),
        (status(a="registering"), False, KUBELET),
        (status(pid=99, a="registered"), False, FRONT),
        (status(start=4999, a="registered"), False, FRONT),
        (status(start=0, a="registered"), True, ""),
        ({"kubelet": {"state": "away", "pid": None, "start_time": None}, "resources": []}, False, FRONT),
        ({}, False, FRONT),
        ({"kubelet": "nonsense", "resources": 7}, False, FRONT),
    ],
)
def test_who_is_registered_and_who_is_to_blame(document: dict[str, Any], ok: bool, blame: str) -> None:
    verdict = judge(document, KUBELET_ONE)
    assert (verdict.ok, verdict.blame) == (ok, blame)
    assert bool(verdict.why) is not ok


def test_a_resource_that_drains_need_not_be_registered() -> None:
    document = status(a="registered", b="waiting")
    document["resources"][1]["draining"] = True
    assert judge(document, KUBELET_ONE).ok


GOOD, BLIND, LATE = Verdict(True, served=True), Verdict(False, "x", FRONT), Verdict(False, "x", KUBELET)
HALF = Verdict(False, "x", KUBELET, served=True)
IDLE = Verdict(True)


@pytest.mark.parametrize(
    ("mine", "others", "allowed"),
    [
        (BLIND, [], True),
        (BLIND, [GOOD], True),
        (BLIND, [BLIND], False),
        (BLIND, [GOOD, BLIND], True),
        (LATE, [], False),
        (LATE, [GOOD], True),
        (LATE, [IDLE], False),
        (LATE, [IDLE, HALF], True),
        (HALF, [], False),
        (silent("x"), [GOOD], False),
    ],
)
def test_nothing_restarts_for_a_kubelet_that_is_sick(mine: Verdict, others: list[Verdict], allowed: bool) -> None:
    verdicts = {"me": mine, **{f"other{number}": other for number, other in enumerate(others)}}
    assert (may_restart("me", verdicts) == "") is allowed


def test_the_looks_after_a_kubelet_signal_first_and_restart_last_and_once() -> None:
    confirmation = Confirmation(KUBELET_ONE, 100.0, unit=1.0)

    def look(**verdicts: Verdict) -> Any:
        assert confirmation.due is not None
        confirmation.look(verdicts, confirmation.due)
        answered = [confirmation.answer(name, verdict) for name, verdict in verdicts.items()]
        assert answered == [False] * (len(verdicts) - 1) + [True]
        return confirmation.conclude()

    times = [confirmation.due]
    for _ in range(3):
        plan = look(a=GOOD, b=BLIND)
        assert (plan.signal, plan.restart) == (("b",), ())
        times.append(confirmation.due)
    assert times == [101.0, 103.0, 108.0, 120.0]
    plan = look(a=GOOD, b=BLIND)
    assert [name for name, _ in plan.restart] == ["b"]
    confirmation.restarting("b", 120.0)
    plan = look(a=GOOD, b=BLIND)
    assert plan.restart == ()
    assert "restarted for this already" in plan.report[0]
    assert look(a=GOOD, b=GOOD) == ((), (), ())
    assert confirmation.due is None
    assert confirmation.status()["state"] == "confirmed"


def test_pauses_double_up_to_the_longest_and_a_good_life_makes_up_for_the_past() -> None:
    backoff = BackOff(5.0, 60.0, 120.0)
    assert [backoff.ended(20.0) for _ in range(8)] == [0, 0, 5, 10, 20, 40, 60, 60]
    assert backoff.ended(500.0) == 0
    assert backoff.ended(1.0) == 0
    assert [backoff.failed() for _ in range(3)] == [5, 10, 20]
    backoff.lived(119.0)
    assert backoff.failed() == 40
    backoff.lived(120.0)
    assert backoff.failed() == 5


@given(st.lists(st.floats(0, 1e6)), st.integers(0, 10_000))
def test_no_pause_is_ever_longer_than_the_longest(lives: list[float], failures: int) -> None:
    backoff = BackOff(5.0, 300.0, 120.0)
    assert all(0 <= backoff.ended(life) <= 300.0 for life in lives)
    backoff.load({"short_lives": failures, "revivals": failures})
    assert backoff.failed() <= 300.0


def test_a_front_that_was_never_heard_is_given_time_to_start() -> None:
    """Seen on an emulated machine: started fronts were killed after a minute, for ever."""
    pulse = Pulse()
    for now in range(100, 161, 10):
        pulse.fronts({1}, float(now), 10.0)
    assert pulse.silent(160.0, 60.0).pids == ()
    assert pulse.silent(399.0, 60.0).pids == ()
    assert pulse.silent(400.0, 60.0).pids == (1,)


def test_silence_counts_from_the_last_sign_of_life_and_a_machine_that_slept_is_no_silence() -> None:
    pulse = Pulse()
    pulse.fronts({1, 2}, 100.0, 10.0)
    pulse.answered(1, 100.0)
    pulse.answered(2, 100.0)
    pulse.fronts({1, 2}, 110.0, 10.0)
    pulse.answered(1, 110.0)
    pulse.failed(2, "no answer in time")
    pulse.fronts({1, 2}, 120.0, 10.0)
    assert pulse.silent(120.0, 15.0).pids == (2,)
    assert not pulse.silent(120.0, 15.0).all
    assert (pulse.silence(2, 120.0), pulse.why(2)) == (20.0, "no answer in time")
    pulse.fronts({1, 2}, 130.0, 10.0)
    assert pulse.silent(130.0, 15.0).all
    # An hour in which nobody ran, us included.
    pulse.fronts({1, 2}, 3730.0, 10.0)
    assert pulse.silent(3730.0, 15.0).pids == ()
    pulse.fronts({3}, 3740.0, 10.0)
    pulse.answered(3, 3740.0)
    assert pulse.silent(3800.0, 15.0) == ((3,), 1)
    assert not pulse.silent(3800.0, 15.0).all


class Done:
    """Hands that write down what they are told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self, name: str, why: str) -> None:
        self.calls.append(("start", name))

    def stop(self, name: str, why: str) -> None:
        self.calls.append(("stop", name))

    def hold(self, name: str, seconds: float, why: str) -> None:
        self.calls.append(("hold", name, seconds))

    def hold_stopped(self, name: str) -> None:
        self.calls.append(("hold_stopped", name))

    def release(self, name: str) -> None:
        self.calls.append(("release", name))

    def note(self, kind: str, **fields: Any) -> None:
        pass

    def take(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


def row(name: str, state: str, **more: Any) -> dict[str, Any]:
    usual = {"exit": 0, "exitcodes": [69], "was_started": True, "plugin": name, "wakes_on": ["config"]}
    return {"name": name, "state": state, **usual, **more}


@pytest.fixture
def hands() -> Done:
    return Done()


@pytest.fixture
def programs(hands: Done, tmp_path: Path) -> Programs:
    (tmp_path / "plugins.d").mkdir()
    return Programs(hands, str(tmp_path), str(tmp_path / "devherd.yaml"), (5.0, 300.0, 120.0))


def test_hardware_wakes_who_waits_for_it_and_nobody_else(programs: Programs, hands: Done) -> None:
    rows = [
        row("gpu", "exited", exit=69, wakes_on=["pci", "drm"]),
        row("generic", "exited", exit=69),
        row("nic", "running", wakes_on=["pci"]),
        row("fpga", "stopped", wakes_on=["pci"]),
        row("crashed", "exited", exit=1, wakes_on=["pci"]),
    ]
    programs.looked(rows, 10.0, 10.0)
    assert programs.wants_hardware()
    hands.take()
    programs.appeared({"usb"}, 20.0)
    assert programs.next() is None
    programs.appeared({"pci", "usb"}, 20.0)
    programs.appeared({"pci"}, 20.1)
    assert programs.next() == 20.0 + DEBOUNCE
    programs.timers(20.0 + DEBOUNCE)
    assert hands.take() == [("start", "gpu")]
    # Nothing came of it: once more, later.
    programs.timers(20.0 + DEBOUNCE + AGAIN - 1)
    assert hands.take() == []
    programs.timers(20.0 + DEBOUNCE + AGAIN)
    assert hands.take() == [("start", "gpu")]
    programs.event("gpu", "starting", "exited", False, 60.0)
    programs.timers(1000.0)
    programs.appeared({"pci"}, 1000.0)
    programs.timers(1001.0)
    assert hands.take() == []


def test_lost_hardware_events_wake_everybody_who_waits_for_hardware(programs: Programs, hands: Done) -> None:
    programs.looked([row("gpu", "exited", exit=69, wakes_on=["pci"]), row("generic", "exited", exit=69)], 10.0, 10.0)
    programs.appeared({"*"}, 20.0)
    programs.timers(21.0)
    assert hands.take() == [("start", "gpu")]


def test_unknown_is_revived_like_fatal(programs: Programs, hands: Done) -> None:
    programs.looked([row("a", "unknown"), row("b", "fatal")], 0.0, 0.0)
    assert programs.next() == 5.0
    programs.timers(5.0)
    assert sorted(hands.take()) == [("start", "a"), ("start", "b")]


def test_a_stop_while_supervisord_shuts_down_is_no_operator(programs: Programs, hands: Done) -> None:
    programs.event("a", "starting", "stopped", False, 0.0)
    programs.event("b", "starting", "stopped", False, 0.0)
    programs.event("a", "stopping", "running", False, 50.0)
    programs.event("a", "stopped", "stopping", False, 51.0)
    programs.shutting_down = True
    programs.event("b", "stopped", "stopping", False, 60.0)
    assert programs.stopped == {"a"}


def test_what_was_stopped_under_another_supervisord_is_stopped_again_once(programs: Programs, hands: Done) -> None:
    programs.recall(Memory(supervisor=(1, 1), stopped=("a", "gone")), same_supervisor=False)
    programs.event("a", "starting", "stopped", False, 0.0)
    assert ("release", "a") not in hands.take()
    programs.looked([row("a", "starting"), row("b", "running")], 1.0, 1.0)
    assert hands.take() == [("stop", "a")]
    programs.event("a", "stopped", "stopping", False, 2.0)
    assert hands.take() == [("hold_stopped", "a")]
    assert "a" in programs.stopped
    programs.event("a", "starting", "stopped", False, 100.0)
    assert hands.take() == [("release", "a")]
    assert "a" not in programs.stopped


def test_an_event_is_newer_than_what_was_asked_before_it(programs: Programs, hands: Done) -> None:
    programs.event("a", "running", "starting", False, 10.0)
    programs.looked([row("a", "fatal")], 9.9, 10.1)
    assert programs.state("a") == "running"
    assert programs.next() is None
    programs.looked([row("a", "fatal")], 11.0, 11.1)
    assert programs.state("a") == "fatal"


def test_a_program_taken_out_of_the_configuration_is_forgotten(programs: Programs, hands: Done) -> None:
    programs.event("a", "stopped", "stopping", False, 0.0)
    programs.removed("a")
    assert programs.stopped == set()
    assert programs.dump() == {"stopped": (), "dormant": {}, "failures": {}}


def test_an_end_the_watcher_wanted_is_no_crash(programs: Programs, hands: Done) -> None:
    for number in range(5):
        programs.event("a", "starting", "exited", False, number * 20.0)
        programs.event("a", "running", "starting", False, number * 20.0 + 10)
        programs.expected_ends.add("a")
        programs.event("a", "exited", "running", False, number * 20.0 + 12)
    assert [call for call in hands.take() if call[0] == "hold"] == []


def test_the_memory_comes_back_as_it_was_but_not_into_another_boot(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "watcher.json")
    full = Memory((1, 2), (3, 4), ("a",), {"b": [[1, 2, 3], None]}, {"c": {"revivals": 2}}, (1.5, 2))
    assert memory.load(path, "boot") == (Memory(), "")
    memory.save(path, "boot", full)
    assert memory.load(path, "boot") == (full, "")
    assert memory.load(path, "another") == (Memory(), "")
    Path(path).write_text("{ not json")
    loaded, problem = memory.load(path, "boot")
    assert loaded == Memory()
    assert "manual stops are forgotten" in problem


@given(st.dictionaries(st.sampled_from(Memory._fields), st.recursive(st.none() | st.integers() | st.text(), st.lists)))
def test_no_file_content_hurts(content: dict[str, Any]) -> None:
    decoded = memory.decode(content)
    assert all(isinstance(name, str) for name in decoded.stopped)
    assert len(decoded.supervisor) == len(decoded.kubelet) == 2
