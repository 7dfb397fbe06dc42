"""The list a kubelet is sent: nothing held ever vanishes, nothing is half said, nothing passes 4 MiB."""

from __future__ import annotations

import time

from devherd.api import deviceplugin_v1beta1_pb2 as api
from devherd.snapshot import DEFAULT_LIMIT, RECEIVE_LIMIT, Remembered, build, encoded_size, expire, remember
from devherd.values import Device, Member, Parts, Snapshot, Verdict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

NAME = "vendor.example/nic"
BAD = Verdict(False, "no carrier", "link", 5.0)


def device(device_id: str, numa: tuple[int, ...] = (), things: tuple[str, ...] | None = None) -> Device:
    return Device(device_id, (f"thing-{device_id}",) if things is None else things, Parts(), numa)


def found(*devices: Device) -> dict[str, Device]:
    return {each.id: each for each in devices}


def snapshot(
    devices: dict[str, Device],
    remembered: dict[str, Remembered] | None = None,
    held: frozenset[str] = frozenset(),
    verdicts: dict[str, Verdict] | None = None,
    stale: dict[str, str] | None = None,
    parked: dict[str, str] | None = None,
    conflicts: dict[str, str] | None = None,
    limit: int = DEFAULT_LIMIT,
    listed: frozenset[str] = frozenset(),
) -> Snapshot:
    return build(
        NAME,
        7,
        devices,
        remembered or {},
        held,
        verdicts or {},
        stale or {},
        parked or {},
        conflicts or {},
        limit=limit,
        listed=listed,
    )


def encoded(members: tuple[Member, ...]) -> bytes:
    """The message as the kubelet receives it."""
    return api.ListAndWatchResponse(
        devices=[
            api.Device(
                ID=member.id,
                health="Healthy" if member.healthy else "Unhealthy",
                topology=api.TopologyInfo(nodes=[api.NUMANode(ID=node) for node in member.numa])
                if member.numa
                else None,
            )
            for member in members
        ]
    ).SerializeToString()


def test_found_devices_are_healthy_and_ordered_by_id() -> None:
    result = snapshot(found(device("b", (1,)), device("a", (0,))))
    assert result == Snapshot(NAME, 7, (Member("a", True, (0,)), Member("b", True, (1,))))


def test_an_unhealthy_thing_lowers_every_device_that_stands_on_it_and_only_those() -> None:
    devices = found(device("a", things=("x",)), device("b", things=("y", "x")), device("c", things=("y",)))
    members = snapshot(devices, verdicts={"x": BAD, "other": BAD}).members
    assert members == (
        Member("a", False, (), "no carrier", "link"),
        Member("b", False, (), "no carrier", "link"),
        Member("c", True),
    )


def test_of_several_bad_things_the_longest_bad_one_is_shown() -> None:
    devices = found(device("a", things=("x", "y")))
    older = Verdict(False, "fell off the bus", "xid-79", 1.0)
    assert snapshot(devices, verdicts={"x": BAD, "y": older}).members[0].kind == "xid-79"


def test_a_healthy_verdict_lowers_nothing() -> None:
    assert snapshot(found(device("a")), verdicts={"thing-a": Verdict(True)}).members[0].healthy


def test_what_vanished_stays_unhealthy_with_its_last_numa_node() -> None:
    memory = {"b": Remembered("b", (1,), ("y",), 10.0)}
    result = snapshot(found(device("a", (0,))), memory)
    assert result.members[1].numa == (1,)
    assert not result.members[1].healthy
    assert result.members[1].kind == "gone"
    assert result.members[1].reason


def test_a_vanished_device_tells_what_the_vendor_said_about_it() -> None:
    memory = {"b": Remembered("b", (), ("y",), 10.0)}
    verdicts = {"y": Verdict(False, "/dev/y is missing", "gone", 1.0)}
    assert snapshot({}, memory, verdicts=verdicts).members[0].reason == "/dev/y is missing"


def test_an_id_that_only_the_checkpoint_knows_is_listed() -> None:
    result = snapshot({}, held=frozenset({"lost"}))
    assert [(m.id, m.healthy, m.kind) for m in result.members] == [("lost", False, "gone")]


def test_reasons_in_order_gone_stale_conflict_verdict_parked() -> None:
    texts = {"a": "why"}
    kinds = []
    inputs = {
        "stale": dict(texts),
        "conflicts": dict(texts),
        "verdicts": {"thing-a": BAD},
        "parked": dict(texts),
    }
    gone = snapshot({}, {"a": Remembered("a")}, **inputs)  # type: ignore[arg-type]
    kinds.append(gone.members[0].kind)
    for name in list(inputs):
        kinds.append(snapshot(found(device("a")), **inputs).members[0].kind)  # type: ignore[arg-type]
        del inputs[name]
    assert kinds == ["gone", "stale", "conflict", "link", "parked"]
    assert snapshot(found(device("a"))).members[0].healthy


def test_each_reason_has_its_text() -> None:
    for name, kind in (("stale", "stale"), ("conflicts", "conflict"), ("parked", "parked")):
        member = snapshot(found(device("a")), **{name: {"a": "because"}}).members[0]  # type: ignore[arg-type]
        assert (member.healthy, member.reason, member.kind) == (False, "because", kind)


def test_numa_is_all_or_nothing() -> None:
    assert all(m.numa for m in snapshot(found(device("a", (0,)), device("b", (0, 1)))).members)
    assert not any(m.numa for m in snapshot(found(device("a", (0,)), device("b"))).members)
    assert not any(m.numa for m in snapshot(found(device("a", (0,))), held=frozenset({"unknown"})).members)


def test_an_unknown_numa_node_is_unset_not_minus_one() -> None:
    assert snapshot(found(device("a", (-1,)))).members[0].numa == ()
    assert snapshot(found(device("a", (0, -1)))).members[0].numa == ()
    assert snapshot(found(device("a", (1, 0, 1)))).members[0].numa == (0, 1)


def test_remembering_and_expiring() -> None:
    memory = remember({"old": Remembered("old", (1,), ("t",), 50.0)}, found(device("a", (0,))), 100.0)
    assert memory == {
        "old": Remembered("old", (1,), ("t",), 50.0),
        "a": Remembered("a", (0,), ("thing-a",), 100.0),
    }
    assert set(expire(memory, frozenset(), 350.0, 300.0)) == {"old", "a"}
    assert set(expire(memory, frozenset(), 350.1, 300.0)) == {"a"}
    assert set(expire(memory, frozenset({"old"}), 1e9, 300.0)) == {"old"}


def test_a_clock_that_was_set_back_keeps_nothing_for_ever() -> None:
    memory = {"a": Remembered("a", (), (), 1e9)}
    memory = expire(memory, frozenset(), 100.0, 300.0)
    assert set(memory) == {"a"}
    assert expire(memory, frozenset(), 401.0, 300.0) == {}


def test_ten_thousand_devices_are_quick_and_in_one_list() -> None:
    devices = found(*(device(f"{i:040d}", (i % 2,)) for i in range(10_000)))
    memory = remember({}, devices, 1.0)
    best = min(_seconds(lambda: snapshot(devices, memory, verdicts={"thing-x": BAD})) for _ in range(5))
    assert best < 0.1
    assert len(snapshot(devices, memory).members) == 10_000


def _seconds(work: object) -> float:
    began = time.thread_time()
    work()  # type: ignore[operator]
    return time.thread_time() - began


def test_over_four_mebibytes_held_ids_stay_and_the_rest_is_named() -> None:
    devices = found(*(device(f"{i:060d}", (0,)) for i in range(60_000)))
    held = frozenset(list(devices)[-100:])
    result = snapshot(devices, held=held)
    ids = {member.id for member in result.members}
    assert held <= ids
    assert ids.isdisjoint(result.left_out)
    assert ids | set(result.left_out) == set(devices)
    assert len(encoded(result.members)) <= RECEIVE_LIMIT
    assert encoded_size(result.members) > DEFAULT_LIMIT - 200, "what fits is used"
    assert [m.id for m in result.members] == sorted(ids)


def test_a_new_id_does_not_push_out_a_listed_one() -> None:
    devices = found(*(device(f"d{i}") for i in range(1, 10)))
    room = encoded_size([Member("d1", True)] * 5)
    before = snapshot(devices, limit=room)
    listed = frozenset(member.id for member in before.members)
    assert len(listed) == 5
    devices["d0"] = device("d0")
    assert {m.id for m in snapshot(devices, limit=room, listed=listed).members} == listed


def test_health_does_not_change_what_fits() -> None:
    devices = found(*(device(f"d{i}") for i in range(10)))
    room = encoded_size([Member("d1", False)] * 5) + 3
    well = snapshot(devices, limit=room)
    sick = snapshot(devices, limit=room, verdicts={f"thing-d{i}": BAD for i in range(10)})
    assert [m.id for m in well.members] == [m.id for m in sick.members]


def test_topology_goes_before_a_held_id_does() -> None:
    devices = found(*(device(f"d{i}", (3,)) for i in range(10)))
    room = encoded_size([Member("d1", False)] * 10)
    result = snapshot(devices, held=frozenset(devices), limit=room)
    assert len(result.members) == 10
    assert not any(member.numa for member in result.members)


def test_an_id_that_cannot_be_sent_is_left_out() -> None:
    result = snapshot(found(device("\udcff"), device(""), device("good")), held=frozenset({"\udcff"}))
    assert [member.id for member in result.members] == ["good"]
    assert set(result.left_out) == {"", "\udcff"}


ids = st.text(min_size=1, max_size=140)
nodes = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**31)), max_size=3).map(tuple)


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.builds(Member, ids, st.just(False), nodes), max_size=20))
def test_the_computed_size_is_the_encoded_size(members: list[Member]) -> None:
    sendable = [m for m in members if m.id.encode("utf-8", "ignore").decode() == m.id]
    assert encoded_size(sendable) == len(encoded(tuple(sendable)))


few = st.sampled_from([f"d{i}" for i in range(12)])


@settings(max_examples=200, deadline=None, database=None)
@given(
    present=st.dictionaries(few, nodes),
    known=st.dictionaries(few, nodes),
    held=st.frozensets(few),
    listed=st.frozensets(few),
    bad=st.frozensets(few),
    limit=st.integers(0, 400),
)
def test_every_list_keeps_its_promises(
    present: dict[str, tuple[int, ...]],
    known: dict[str, tuple[int, ...]],
    held: frozenset[str],
    listed: frozenset[str],
    bad: frozenset[str],
    limit: int,
) -> None:
    devices = found(*(device(i, numa) for i, numa in present.items()))
    memory = {i: Remembered(i, numa) for i, numa in known.items()}
    verdicts = {f"thing-{i}": BAD for i in bad}
    result = snapshot(devices, memory, held, verdicts, limit=limit, listed=listed)
    listed_now = [m.id for m in result.members]
    assert listed_now == sorted(set(listed_now))
    assert set(listed_now) | set(result.left_out) == present.keys() | known.keys() | held
    assert not set(listed_now) & set(result.left_out)
    assert len(encoded(result.members)) <= limit
    assert len({bool(m.numa) for m in result.members}) <= 1
    for member in result.members:
        assert member.healthy == (member.id in present and member.id not in bad)
        assert bool(member.reason) != member.healthy
    bare = snapshot({i: device(i) for i in held}, {}, held)
    if encoded_size(bare.members) <= limit:
        assert held <= set(listed_now)


class HeldIdsStay(RuleBasedStateMachine):
    """Hardware comes and goes, pods too; what the kubelet was shown and a pod holds is in every later list."""

    @initialize()
    def begin(self) -> None:
        self.now = 1e9
        self.present: dict[str, Device] = {}
        self.memory: dict[str, Remembered] = {}
        self.held: frozenset[str] = frozenset()
        self.last = Snapshot(NAME, 0, ())
        self.send()

    def send(self) -> None:
        self.memory = expire(remember(self.memory, self.present, self.now), self.held, self.now, 300.0)
        self.last = snapshot(
            self.present, self.memory, self.held, limit=encoded_size([Member("d1", False, (0,))] * 7),
            listed=frozenset(m.id for m in self.last.members),
        )  # fmt: skip
        assert self.held <= {m.id for m in self.last.members}

    @rule(present=st.dictionaries(few, nodes))
    def hardware(self, present: dict[str, tuple[int, ...]]) -> None:
        self.present = found(*(device(i, numa) for i, numa in present.items()))
        self.send()

    @rule(data=st.data())
    def pods(self, data: st.DataObject) -> None:
        offered = [m.id for m in self.last.members if m.healthy or m.id in self.held]
        self.held = frozenset(data.draw(st.lists(st.sampled_from(offered), max_size=6) if offered else st.just([])))
        self.send()

    @rule(seconds=st.sampled_from([-1e6, 1.0, 299.0, 301.0, 1e6]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.send()

    @rule()
    def restart_without_memory(self) -> None:
        self.memory = {}
        self.send()

    @invariant()
    def nothing_is_kept_for_ever(self) -> None:
        later = expire(expire(self.memory, (), self.now, 300.0), (), self.now + 1000.0, 300.0)
        assert later == {}


TestHeldIdsStay = HeldIdsStay.TestCase
TestHeldIdsStay.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, database=None)
