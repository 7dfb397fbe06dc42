"""No sequence of evidence, restarts and waiting may leave a thing wrongly Unhealthy for ever, or flapping."""

from __future__ import annotations

import copy

import msgspec
from devherd.health import HealthEngine, SavedHealth
from devherd.settings import Health
from devherd.values import Clears, Evidence, Severity, Verdict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

POLICY = Health(debounce=4, recover=2, hold_off_max=64, flap_window=64, boot_grace=16, mass_fraction=0.5)
THINGS = ["t0", "t1", "t2", "t3", "t4"]
RESOURCES = {"r/one": frozenset(THINGS[:3]), "r/two": frozenset(THINGS[2:])}
KINDS = ["gone", "link", "xid"]
SOURCES = ["scan", "check"]
STICKY = {Clears.RESET, Clears.REBOOT, Clears.OPERATOR}

usual = st.builds(
    lambda thing, bad, fault: Evidence(thing, fault[0], bad, fault[1], *fault[2:]),
    st.sampled_from(THINGS[:3]),
    st.booleans(),
    st.sampled_from(
        [
            ("gone", "it is gone", Severity.HARD, Clears.PROBE),
            ("link", "no carrier", Severity.SOFT, Clears.PROBE),
            ("xid", "fell off the bus", Severity.HARD, Clears.RESET),
        ]
    ),
)
odd = st.builds(
    Evidence,
    thing=st.sampled_from(THINGS),
    kind=st.sampled_from(KINDS),
    bad=st.booleans(),
    reason=st.sampled_from(["", "first", "second"]),
    severity=st.sampled_from(Severity),
    clears=st.sampled_from(Clears),
)
things = st.one_of(st.just(frozenset(THINGS)), st.frozensets(st.sampled_from(THINGS)))


class Sequences(RuleBasedStateMachine):
    """Drives an engine as a front does: verdicts after every input and at every time it asked for."""

    @initialize()
    def begin(self) -> None:
        self.now, self.wall, self.boot = 100.0, 1e9, 1
        self.engine = HealthEngine(POLICY, "boot 1", self.now)
        self.held: frozenset[str] = frozenset()
        self.ever_bad: set[str] = set()
        self.ever_hard: set[str] = set()
        self.ever_sticky: set[str] = set()
        self.look()

    def look(self) -> dict[str, Verdict]:
        self.last = self.engine.verdicts(self.now, self.held, RESOURCES)
        return self.last

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 16.0, 70.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(100):
            due = self.engine.next_change(self.now)
            if due is None or due > until:
                break
            self.now = due
            self.look()
        else:
            raise AssertionError("the engine asks to be called again and again")
        self.wall += seconds
        self.now = until
        self.look()

    @rule(items=st.lists(usual, max_size=4), source=st.sampled_from(SOURCES), seen=things)
    def usual_evidence(self, items: list[Evidence], source: str, seen: frozenset[str]) -> None:
        self.observe(items, source, seen)

    @rule(items=st.lists(odd, max_size=4), source=st.sampled_from(SOURCES), seen=things)
    def odd_evidence(self, items: list[Evidence], source: str, seen: frozenset[str]) -> None:
        self.observe(items, source, seen)

    def observe(self, items: list[Evidence], source: str, seen: frozenset[str]) -> None:
        for item in items:
            if item.bad:
                self.ever_bad.add(item.thing)
                if item.severity is Severity.HARD:
                    self.ever_hard.add(item.thing)
                if item.clears in STICKY:
                    self.ever_sticky.add(item.thing)
        self.engine.observe(items, self.now, self.wall, source, seen)
        verdicts = self.look()
        for item in {(item.thing, item.kind): item for item in items}.values():
            if item.bad and item.severity is Severity.HARD:
                assert item.thing in verdicts, "hard evidence counts at once"

    @rule(held=things)
    def pods(self, held: frozenset[str]) -> None:
        self.held = held
        self.look()

    @rule(identity=st.sampled_from(["", "one", "two"]))
    def kubelet(self, identity: str) -> None:
        self.engine.kubelet_changed(self.now, identity)
        self.look()

    @rule(thing=st.sampled_from(THINGS), by=st.sampled_from(Clears))
    def clear(self, thing: str, by: Clears) -> None:
        self.engine.clear(thing, by, self.now)
        verdicts = self.look()
        if by is Clears.OPERATOR:
            assert thing not in verdicts

    @rule(reboot=st.booleans())
    def restart(self, reboot: bool) -> None:
        hard = {thing for thing in self.last if thing not in self.held}
        saved = msgspec.json.decode(msgspec.json.encode(self.engine.dump(self.now)), type=SavedHealth)
        assert not self.engine.dirty
        if reboot:
            self.boot += 1
        self.engine = HealthEngine(POLICY, f"boot {self.boot}", self.now, saved)
        verdicts = self.look()
        if not reboot:
            assert hard <= set(verdicts), "what was Unhealthy stays so over a restart of the plugin"

    @invariant()
    def only_what_was_bad_is_unhealthy(self) -> None:
        assert set(self.last) <= self.ever_bad
        assert all(not verdict.healthy and verdict.reason and verdict.kind for verdict in self.last.values())

    @invariant()
    def looking_again_changes_nothing(self) -> None:
        before = self.engine.next_change(self.now)
        assert self.engine.verdicts(self.now, self.held, RESOURCES) == self.last
        assert self.engine.next_change(self.now) == before

    @invariant()
    def nothing_changes_before_it_said_so(self) -> None:
        due = self.engine.next_change(self.now)
        assert due is None or due > self.now
        end = self.now + 1e6 if due is None else due
        for part in (0.5, 0.999):
            later = copy.deepcopy(self.engine)
            assert later.verdicts(self.now + (end - self.now) * part, self.held, RESOURCES) == self.last

    @invariant()
    def soft_evidence_spares_held_things_for_a_while(self) -> None:
        if self.now < self.engine.grace_until:
            assert not (set(self.last) & self.held) - self.ever_hard

    @invariant()
    def good_evidence_and_time_heal(self) -> None:
        later = copy.deepcopy(self.engine)
        for source in SOURCES:
            later.observe([], self.now, self.wall, source, THINGS)
        after = later.verdicts(self.now + POLICY.hold_off_max + 1, self.held, RESOURCES)
        assert set(after) <= self.ever_sticky
        if not self.ever_sticky:
            assert later.node_problems == ()

    @invariant()
    def silence_of_one_source_is_not_for_ever(self) -> None:
        later = copy.deepcopy(self.engine)
        now = self.now
        for _ in range(30):
            now += 10
            later.observe([], now, self.wall, "a new source", THINGS)
            later.verdicts(now, self.held, RESOURCES)
        assert set(later.verdicts(now, self.held, RESOURCES)) <= self.ever_sticky

    @invariant()
    def the_right_event_heals(self) -> None:
        later = copy.deepcopy(self.engine)
        for thing in THINGS:
            later.clear(thing, Clears.REBOOT, self.now)
        for verdict in later.verdicts(self.now + POLICY.hold_off_max + 1, self.held, RESOURCES).values():
            assert verdict.kind  # only what an operator must clear is left
        for thing in THINGS:
            later.clear(thing, Clears.OPERATOR, self.now)
        assert later.verdicts(self.now + POLICY.hold_off_max + 1, self.held, RESOURCES) == {}

    @invariant()
    def explanations_cover_every_verdict(self) -> None:
        for thing, verdict in self.last.items():
            lines = self.engine.explain(thing, self.now)
            assert any(line.startswith((verdict.kind, verdict.reason)) for line in lines)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, database=None)


@settings(max_examples=60, deadline=None, database=None)
@given(
    pauses=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 70)), min_size=1, max_size=8),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
)
def test_however_evidence_alternates_the_verdict_changes_seldom(
    pauses: list[tuple[float, float]], kinds: list[str]
) -> None:
    """An adversary repeats his pattern: bad for so long, good until recovered and so much longer."""
    engine = HealthEngine(POLICY, "boot", 0.0)
    now, horizon, falls, turn = 100.0, 5000.0, 0, 0
    healthy = True
    while now < 100 + horizon:
        bad_for, extra = pauses[turn % len(pauses)]
        kind = kinds[turn % len(kinds)]
        turn += 1
        engine.observe([Evidence("t0", kind, True)], now, now)
        falls += healthy and "t0" in engine.verdicts(now, frozenset(), RESOURCES)
        now += bad_for
        engine.observe([Evidence("t0", kind, False)], now, now)
        now = max(engine.next_change(now) or now, now)
        healthy = "t0" not in engine.verdicts(now, frozenset(), RESOURCES)
        now += extra + 0.001
    bursts = horizon / POLICY.flap_window + 1
    doublings = 7  # 2 s to 64 s, and one
    assert falls <= bursts * doublings
