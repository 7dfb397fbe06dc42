"""Who holds what, and when nobody does any more. Times are made up."""

from __future__ import annotations

from devherd.tenancy import Guards, Tenancy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

RES = "vendor.example/nic"
POD = "ns/pod/container"
NOTHING: dict[str, dict[str, str]] = {}


def having(**owners: str) -> dict[str, dict[str, str]]:
    return {RES: dict(owners)}


def settled() -> Tenancy:
    """Long after the start: nothing is settling."""
    return Tenancy(-10_000.0)


def polls(tenancy: Tenancy, begin: float, end: float, held: dict[str, dict[str, str]] = NOTHING) -> list[str]:
    """List every 5 s; returns what was released."""
    gone: list[str] = []
    now = begin
    while now <= end:
        tenancy.listed(held, now)
        gone += [device_id for _, device_id in tenancy.released(now)]
        now += 5
    return gone


def test_an_allocated_id_is_held_at_once() -> None:
    tenancy = settled()
    tenancy.allocated(RES, ["a"], 0)
    assert tenancy.held(RES) == {"a"}
    assert tenancy.held("other/resource") == frozenset()
    assert tenancy.owner(RES, "a")
    assert tenancy.owner(RES, "b") == ""


def test_list_names_the_owner_and_its_absence_is_a_release_told_once() -> None:
    tenancy = settled()
    tenancy.allocated(RES, ["a"], 0)
    tenancy.listed(having(a=POD), 5)
    assert tenancy.owner(RES, "a") == POD
    assert polls(tenancy, 100, 105) == [], "one or two misses prove nothing"
    assert tenancy.held(RES) == {"a"}
    assert polls(tenancy, 110, 200) == ["a"]
    assert tenancy.held(RES) == frozenset()
    assert tenancy.owner(RES, "a") == ""


def test_misses_must_be_in_a_row() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    for now in range(100, 1000, 15):
        tenancy.listed(NOTHING, now)
        tenancy.listed(NOTHING, now + 5)
        tenancy.listed(having(a=POD), now + 10)
        assert tenancy.released(now + 10) == []


def test_many_quick_misses_are_not_enough() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    for tick in range(90):
        tenancy.listed(NOTHING, 100 + tick / 10)
        assert tenancy.released(100 + tick / 10) == []
    tenancy.listed(NOTHING, 110)
    assert tenancy.released(110) == [(RES, "a")]


def test_a_failed_list_is_never_taken_as_empty() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    for now in range(100, 10_000, 5):
        tenancy.list_failed(now)
        assert tenancy.released(now) == []
    assert tenancy.held(RES) == {"a"}


def test_a_new_allocation_need_not_be_listed_yet() -> None:
    tenancy = settled()
    tenancy.checkpoint(NOTHING, 0)
    tenancy.allocated(RES, ["a"], 1)
    tenancy.checkpoint(NOTHING, 2)
    assert polls(tenancy, 2, 59) == []
    assert polls(tenancy, 61, 70) == ["a"], "the pod was rejected after Allocate"


def test_an_init_containers_device_is_not_listed_but_in_the_checkpoint() -> None:
    tenancy = settled()
    tenancy.allocated(RES, ["a"], 0)
    tenancy.checkpoint(having(a="uid/init"), 1)
    assert polls(tenancy, 2, 10_000) == []
    assert tenancy.owner(RES, "a") == "uid/init"
    tenancy.checkpoint(NOTHING, 10_001)
    assert polls(tenancy, 10_005, 10_100) == ["a"]


def test_without_a_checkpoint_an_unlisted_id_is_released_only_after_long() -> None:
    tenancy = settled()
    tenancy.allocated(RES, ["a"], 0)
    assert polls(tenancy, 5, 3590) == []
    assert polls(tenancy, 3600, 3600) == ["a"]


def test_a_checkpoint_read_before_the_allocation_says_nothing_about_it() -> None:
    tenancy = settled()
    tenancy.checkpoint(NOTHING, 0)
    tenancy.allocated(RES, ["a"], 5)
    assert polls(tenancy, 10, 1000) == []


def test_a_new_kubelets_empty_list_releases_nothing() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD, b=POD), 0)
    tenancy.kubelet_changed(100)
    assert polls(tenancy, 101, 270) == []
    assert polls(tenancy, 275, 400, having(a=POD)) == ["b"], "b's pod really is gone"


def test_misses_before_the_change_was_noticed_do_not_count() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    tenancy.listed(NOTHING, 100)
    tenancy.listed(NOTHING, 105)
    tenancy.kubelet_changed(106)
    assert polls(tenancy, 110, 280) == []
    assert polls(tenancy, 290, 295) == [], "two misses of the new kubelet"
    assert polls(tenancy, 300, 300) == ["a"]


def test_settling_ends_early_when_everyone_is_back() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    tenancy.kubelet_changed(100)
    assert tenancy.settling(101)
    tenancy.listed(having(a=POD), 102)
    assert not tenancy.settling(102)
    assert polls(tenancy, 105, 125) == ["a"]


def test_with_nobody_to_wait_for_only_time_settles() -> None:
    tenancy = settled()
    tenancy.kubelet_changed(100)
    tenancy.listed(NOTHING, 101)
    assert tenancy.settling(102)
    assert not tenancy.settling(280)


def test_a_fresh_start_waits_before_it_believes_an_empty_list() -> None:
    tenancy = Tenancy(0.0)
    tenancy.suspected(RES, ["a"], 0.0)
    tenancy.checkpoint(NOTHING, 1.0)
    assert polls(tenancy, 2, 175) == []
    assert polls(tenancy, 180, 300) == ["a"]


def test_suspecting_does_not_disturb_what_is_known() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    tenancy.suspected(RES, ["a", "b"], 1)
    assert tenancy.owner(RES, "a") == POD
    assert tenancy.held(RES) == {"a", "b"}


def test_what_only_the_checkpoint_holds_is_held() -> None:
    tenancy = settled()
    tenancy.checkpoint(having(a="uid/c"), 0)
    assert tenancy.held(RES) == {"a"}
    assert tenancy.owner(RES, "a") == "uid/c"


def test_an_old_checkpoint_entry_is_not_a_new_holder() -> None:
    """The kubelet drops a finished pod's entry late; its release must not be told again."""
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    tenancy.checkpoint(having(a="uid/c"), 1)
    assert polls(tenancy, 100, 200) == ["a"]
    tenancy.checkpoint(having(a="uid/c"), 201)
    assert polls(tenancy, 205, 300) == []
    assert tenancy.held(RES) == {"a"}, "but it must stay in the list while the kubelet thinks so"
    tenancy.checkpoint(NOTHING, 301)
    assert polls(tenancy, 305, 400) == []
    assert tenancy.held(RES) == frozenset()


def test_another_owner_in_the_checkpoint_is_a_new_holder() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    tenancy.checkpoint(having(a="uid/c"), 1)
    assert polls(tenancy, 100, 200) == ["a"]
    tenancy.checkpoint(having(a="uid-2/c"), 201)
    assert tenancy.owner(RES, "a") == "uid-2/c"
    tenancy.checkpoint(NOTHING, 300)
    assert polls(tenancy, 305, 400) == ["a"]


def test_a_released_id_can_be_held_and_released_again() -> None:
    tenancy = settled()
    for begin in (0, 1000, 2000):
        tenancy.allocated(RES, ["a"], begin)
        tenancy.listed(having(a=POD), begin + 5)
        assert polls(tenancy, begin + 100, begin + 200) == ["a"]


def test_allocating_again_starts_a_fresh_tenancy() -> None:
    tenancy = settled()
    tenancy.listed(having(a=POD), 0)
    polls(tenancy, 100, 105)
    tenancy.allocated(RES, ["a"], 106)
    assert polls(tenancy, 110, 160) == []


def test_releases_are_ordered_and_of_all_resources() -> None:
    tenancy = settled()
    tenancy.listed({"v/b": {"2": POD, "1": POD}, "v/a": {"9": POD}}, 0)
    for now in (100, 105, 110):
        tenancy.listed(NOTHING, now)
    assert tenancy.released(110) == [("v/a", "9"), ("v/b", "1"), ("v/b", "2")]


IDS = ["a", "b", "c"]


class RealKubelet(RuleBasedStateMachine):
    """Against a model of the kubelet: what a pod really holds is never released; what nobody holds is, once.

    Each id is free, held by an init container (not listed) or held by a listed container. Admission comes some
    seconds before the pod is listed. After a restart the kubelet lists nothing for a while.
    """

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.guards = Guards()
        self.tenancy = Tenancy(self.now, self.guards)
        self.holder: dict[str, str] = {}
        self.init_only: set[str] = set()
        self.listed_from: dict[str, float] = {}
        self.blank_until = 0.0
        self.serial = 0
        self.told: dict[str, int] = {}
        self.opened: dict[str, int] = {}

    @rule(device_id=st.sampled_from(IDS), init=st.booleans(), delay=st.sampled_from([0.0, 5.0, 30.0]))
    def admit(self, device_id: str, init: bool, delay: float) -> None:
        if device_id in self.holder:
            return
        self.serial += 1
        self.holder[device_id] = f"pod-{self.serial}"
        self.listed_from[device_id] = self.now + delay
        if init:
            self.init_only.add(device_id)
        self.tenancy.allocated(RES, [device_id], self.now)
        self.opened[device_id] = self.opened.get(device_id, 0) + 1

    @rule(device_id=st.sampled_from(IDS))
    def init_container_ends_and_the_pod_uses_it(self, device_id: str) -> None:
        self.init_only.discard(device_id)

    @rule(device_id=st.sampled_from(IDS))
    def pod_ends(self, device_id: str) -> None:
        self.holder.pop(device_id, None)
        self.init_only.discard(device_id)

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0]), times=st.integers(1, 12))
    def poll(self, seconds: float, times: int) -> None:
        for _ in range(times):
            self.now += seconds
            self.tenancy.listed(self.shown(), self.now)
            self.collect()

    @rule()
    def read_checkpoint(self) -> None:
        self.now += 0.5
        self.tenancy.checkpoint({RES: dict(self.holder)}, self.now)
        self.collect()

    @rule()
    def fail(self) -> None:
        self.now += 1
        self.tenancy.list_failed(self.now)
        self.collect()

    @rule(blank=st.sampled_from([0.0, 5.0, 60.0, 170.0]), noticed=st.sampled_from([0.0, 4.0]))
    def kubelet_restarts(self, blank: float, noticed: float) -> None:
        self.blank_until = self.now + blank
        if noticed:
            self.now += noticed
            self.tenancy.listed(self.shown(), self.now)
        self.tenancy.kubelet_changed(self.now)
        self.collect()

    def shown(self) -> dict[str, dict[str, str]]:
        if self.now < self.blank_until:
            return {}
        return {
            RES: {
                device_id: owner
                for device_id, owner in self.holder.items()
                if device_id not in self.init_only and self.listed_from[device_id] <= self.now
            }
        }

    def collect(self) -> None:
        for resource, device_id in self.tenancy.released(self.now):
            assert resource == RES
            unlisted = device_id in self.init_only and self.now - self.listed_from[device_id] > self.guards.blind - 100
            assert device_id not in self.holder or unlisted, "released while a pod holds it"
            self.told[device_id] = self.told.get(device_id, 0) + 1
            assert self.told[device_id] <= self.opened[device_id], "a release is told once"

    @invariant()
    def what_is_held_is_known(self) -> None:
        assert set(self.holder) - self.init_only <= self.tenancy.held(RES)

    def teardown(self) -> None:
        if not hasattr(self, "tenancy"):
            return
        for _ in range(400):
            self.now += 5
            self.tenancy.listed(self.shown(), self.now)
            self.tenancy.checkpoint({RES: dict(self.holder)}, self.now)
            self.collect()
        assert self.tenancy.held(RES) == set(self.holder), "what nobody holds is released in the end"


TestRealKubelet = RealKubelet.TestCase
TestRealKubelet.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, database=None)
