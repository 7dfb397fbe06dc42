"""Health of NVIDIA GPUs: evidence from events and readings, whom it is about, and what ends it."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devherd.health import HealthEngine, SavedHealth
from devherd.settings import Health as Policy
from devherd.values import Clears, Evidence, Severity
from devherd_gpu.nvidia.health import Monitor
from devherd_gpu.nvidia.healthconfig import Health, unknown_kinds
from devherd_gpu.nvidia.nvml import Nvml, NvmlError
from devherd_gpu.nvidia.standin import StandIn
from devherd_gpu.nvidia.standinstate import Ecc, Fabric, Gpu, Pcie, Remapped
from devherd_gpu.nvidia.xids import SKIPPED, XIDS, Meaning, known
from support.nvmlstate import SimDriver, gpus, mig, mig_uuid

QUICK = Policy(debounce=1, recover=10, boot_grace=0)


class Node:
    """A simulated driver, a monitor that watches it, and the policy that judges what it says."""

    def __init__(self, root: Path, count: int = 8, health: Health | None = None, mig_on: int = -1) -> None:
        made: tuple[Gpu, ...] = gpus(count)
        self.driver = SimDriver(str(root), made)
        if mig_on >= 0:
            self.driver.gpu(mig_on, mig=mig(mig_on))
        self.nvml = Nvml(StandIn(self.driver.path))
        self.nvml.call("nvmlInit")
        self.now = 1000.0
        self.engine = HealthEngine(QUICK, "boot", 0.0)
        self.offered = {f"pci:0000:{number + 0x10:02x}:00.0" for number in range(count)}
        self.offered |= {f"mig:{mig_uuid(mig_on, place)}" for place in range(3)} if mig_on >= 0 else set()
        self.begin(health)

    def begin(self, health: Health | None = None) -> None:
        """A new probe."""
        self.monitor = Monitor(health or Health())
        self.source = self.monitor.sources()[0]
        self.scan()

    def end(self) -> None:
        self.monitor.release()
        self.source.close()

    def thing(self, number: int) -> str:
        return f"pci:{self.driver.state.gpus[number].pci}"

    def scan(self) -> tuple[Evidence, ...]:
        """What the probe does when the front asks for a scan."""
        self.monitor.looked(self.nvml, self.driver.found(), self.offered, 1)
        found = self.monitor.faults()
        self.engine.observe(found, self.now, 1e9, seen=self.offered)
        return found

    def check(self) -> tuple[Evidence, ...]:
        """The same for a check."""
        found = self.monitor.check(self.nvml)
        self.engine.observe(found, self.now, 1e9, source="check", seen=self.offered)
        return found

    def heard(self) -> tuple[Evidence, ...]:
        """Wait for an event's hint, then scan."""
        ready, _, _ = select.select([self.source.fileno()], [], [], 20)
        assert ready, "no hint"
        assert self.source.drain() == "nvml"
        return self.scan()

    def bad(self, after: float = 0.0) -> set[str]:
        """Unhealthy things, some seconds later."""
        self.now += after
        return set(self.engine.verdicts(self.now, frozenset(), {"nvidia.com/gpu": frozenset(self.offered)}))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that ends waits for its listener; in tests not for a second."""
    monkeypatch.setattr("devherd_gpu.nvidia.events.WAIT", 0.1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.end()


def kinds(found: tuple[Evidence, ...]) -> set[str]:
    return {item.kind for item in found if item.bad}


# -- Xids as data


def test_what_the_vendors_plugin_skips_does_not_count_and_everything_else_does() -> None:
    policy = Health().policy()
    assert {number for number in range(1, 200) if not policy.counts(number)} == {13, 31, 43, 45, 68, 109} == SKIPPED


@pytest.mark.parametrize(
    ("health", "counts", "not_counts"),
    [
        (Health(ignore_xids=(79,)), {48, 62}, {79, 13}),
        (Health(count_xids=(13,)), {13, 48}, {31}),
        (Health(xids=False), set(), {48, 79, 9999}),
        (Health(xids=False, count_xids=(79,)), {79}, {48}),
        (Health(ignore_xids=(79,), count_xids=(79,)), {79}, set()),
    ],
)
def test_a_user_may_say_which_count(health: Health, counts: set[int], not_counts: set[int]) -> None:
    assert all(health.policy().counts(number) for number in counts)
    assert not any(health.policy().counts(number) for number in not_counts)


def test_each_number_says_what_it_means_and_what_ends_it() -> None:
    assert all(number == xid.number and xid.text for number, xid in XIDS.items())
    assert known(31).meaning is Meaning.APPLICATION
    assert known(95).ends_by is Clears.RESET
    assert known(79).ends_by is Clears.REBOOT
    assert known(64321) == (64321, Meaning.TRANSIENT, "an error that this version does not know")


def test_the_page_lists_the_numbers_that_need_a_reset_or_a_reboot() -> None:
    page = (Path(__file__).parents[2] / "docs/plugins/gpu-nvidia.md").read_text()
    for meaning in (Meaning.RESET, Meaning.HARDWARE):
        numbers = ", ".join(str(number) for number in sorted(XIDS) if XIDS[number].meaning is meaning)
        assert f" {numbers} |" in page


def test_a_kind_of_evidence_that_there_is_not_is_found() -> None:
    assert unknown_kinds(Health(evidence={"heat": "off", "hat": "off"})) == ["hat"]


# -- whom an event is about


def test_an_xid_lowers_its_gpu_at_once_and_no_other(node: Node) -> None:
    node.driver.event(3, data=119)
    found = node.heard()
    assert found == (
        Evidence(
            node.thing(3),
            "xid-119",
            True,
            "the GPU reported that its firmware does not answer (Xid 119)",
            Severity.HARD,
            Clears.RESET,
        ),
    )
    assert node.bad() == {node.thing(3)}


def test_an_xid_of_an_application_is_no_hint_and_no_fault(node: Node) -> None:
    node.driver.event(3, data=31)
    node.driver.event(4, data=119)
    assert kinds(node.heard()) == {"xid-119"}
    assert node.bad() == {node.thing(4)}


def test_fact_02_an_xid_of_a_lost_gpu_that_cannot_say_its_name_lowers_that_gpu_only(node: Node) -> None:
    node.driver.lose(5)
    node.driver.event(5, data=79)
    assert kinds(node.heard()) == {"xid-79", "gpu-lost"}
    node.check()
    assert node.bad() == {node.thing(5)}


def test_an_xid_of_a_mig_instance_lowers_that_instance_only(tmp_path: Path) -> None:
    node = Node(tmp_path, 2, mig_on=0)
    node.driver.event(0, data=119, gi=8, ci=0)
    node.heard()
    assert node.bad() == {f"mig:{mig_uuid(0, 1)}"}
    node.end()


@pytest.mark.parametrize("instance", [{}, {"gi": 99, "ci": 0}])
def test_an_xid_of_a_mig_gpu_that_names_no_instance_we_know_is_about_the_gpu(
    tmp_path: Path, instance: dict[str, int]
) -> None:
    node = Node(tmp_path, 2, mig_on=0)
    node.driver.event(0, data=119, **instance)
    node.heard()
    assert node.bad() == {node.thing(0)}
    node.end()


def test_an_xid_of_an_instance_whose_gpu_is_offered_whole_is_about_the_gpu(tmp_path: Path) -> None:
    node = Node(tmp_path, 2, mig_on=0)
    node.offered = {node.thing(0), node.thing(1)}
    node.scan()
    node.driver.event(0, data=119, gi=8, ci=0)
    node.heard()
    assert node.bad() == {node.thing(0)}
    node.end()


def test_an_instance_that_was_taken_apart_is_no_fault(tmp_path: Path) -> None:
    node = Node(tmp_path, 2, mig_on=0)
    node.driver.gpu(0, errors={"nvmlDeviceGetMemoryInfo": "unknown"})
    instances = [f"mig:{mig_uuid(0, place)}" for place in range(3)]
    assert {item.thing for item in node.check() if item.bad} == {node.thing(0), *instances}
    node.driver.gpu(0, errors={}, mig=mig(0, 1))
    assert {item.thing for item in node.check() if item.bad} == set(instances[1:])
    node.scan()
    assert [item for item in node.check() if item.bad] == []
    node.end()


# -- what ends it


def test_fact_01_after_a_transient_xid_a_gpu_that_answers_is_healthy_again(node: Node) -> None:
    node.driver.event(2, data=92)
    node.heard()
    assert node.bad() == {node.thing(2)}
    node.check()
    node.scan()
    assert node.bad(after=9) == {node.thing(2)}
    assert node.bad(after=1) == set()


def test_a_transient_xid_stays_as_long_as_the_gpu_does_not_answer(node: Node) -> None:
    node.driver.event(2, data=92)
    node.heard()
    node.driver.gpu(2, errors={"nvmlDeviceGetMemoryInfo": "unknown"})
    node.check()
    assert node.bad(after=60) == {node.thing(2)}
    node.driver.gpu(2, errors={})
    node.check()
    assert node.bad(after=10) == set()


def test_an_xid_that_comes_back_is_told_again_and_waits_longer(node: Node) -> None:
    node.driver.event(2, data=92)
    first = node.heard()
    node.check()
    assert node.bad(after=10) == set()
    node.driver.event(2, data=92)
    again = node.heard()
    assert again != first, "a front that has seen the first report would not look at the same one again"
    node.check()
    assert node.bad(after=11) == {node.thing(2)}
    assert node.bad(after=9) == set()


def test_what_a_reset_ends_is_not_ended_by_good_readings(node: Node) -> None:
    node.driver.event(2, data=95)
    node.heard()
    for _ in range(3):
        node.check()
        node.scan()
        assert node.bad(after=1000) == {node.thing(2)}


def test_a_reset_that_the_driver_shows_ends_what_a_reset_ends(node: Node) -> None:
    node.driver.event(2, data=95)
    node.heard()
    node.driver.gpu(2, recovery_action=1)
    assert kinds(node.check()) == {"xid-95", "recovery-action"}
    node.driver.gpu(2, recovery_action=0)
    node.check()
    node.scan()
    assert node.bad(after=10) == set()


def test_fact_01_a_proven_bad_gpu_stays_bad_after_new_fronts_and_probes(node: Node) -> None:
    node.driver.event(2, data=79)
    node.heard()
    for _ in range(2):
        node.end()
        saved: SavedHealth = node.engine.dump(node.now)
        node.engine = HealthEngine(QUICK, "boot", node.now, saved)
        node.begin()
        node.check()
        assert node.bad(after=500) == {node.thing(2)}


def test_over_a_reboot_only_what_it_does_not_end_is_still_bad(node: Node) -> None:
    node.driver.event(2, data=79)
    node.heard()
    node.driver.gpu(3, remapped=Remapped(failure=1))
    node.check()
    node.end()
    node.engine = HealthEngine(QUICK, "next boot", 10.0, node.engine.dump(node.now))
    node.now = 10.0
    node.begin()
    assert node.bad() == {node.thing(3)}
    node.driver.gpu(3, remapped=Remapped())  # another card in the slot
    node.check()
    assert node.bad(after=10) == set()


def test_a_lost_gpu_that_is_back_is_healthy_again(node: Node) -> None:
    node.driver.lose(1)
    assert kinds(node.check()) == {"gpu-lost"}
    assert node.bad() == {node.thing(1)}
    node.driver.gpu(1, errors={})
    node.check()
    assert node.bad(after=10) == set()


# -- readings


@pytest.mark.parametrize(
    ("fields", "kind", "severity", "clears"),
    [
        ({"ecc": Ecc(volatile_uncorrected=1)}, "ecc", Severity.HARD, Clears.RESET),
        ({"remapped": Remapped(pending=1)}, "remap-pending", Severity.HARD, Clears.RESET),
        ({"remapped": Remapped(failure=1)}, "remap-failure", Severity.HARD, Clears.OPERATOR),
        ({"retired_pending": 1}, "page-retirement", Severity.HARD, Clears.RESET),
        ({"recovery_action": 1}, "recovery-action", Severity.HARD, Clears.RESET),
        ({"recovery_action": 2}, "recovery-action", Severity.HARD, Clears.REBOOT),
        ({"recovery_action": 3}, "recovery-action", Severity.SOFT, Clears.RESET),
        ({"recovery_action": 99}, "recovery-action", Severity.HARD, Clears.RESET),
        ({"clock_reasons": 0x40}, "heat", Severity.SOFT, Clears.PROBE),
        ({"clock_reasons": 0x80}, "power", Severity.SOFT, Clears.PROBE),
        ({"fabric": Fabric(state=2)}, "fabric", Severity.SOFT, Clears.PROBE),
        ({"fabric": Fabric(status=999)}, "fabric", Severity.SOFT, Clears.PROBE),
        ({"fabric": Fabric(health=1)}, "fabric", Severity.SOFT, Clears.PROBE),
        ({"pcie": Pcie(width=8)}, "pcie", Severity.SOFT, Clears.PROBE),
        ({"pcie": Pcie(generation=3)}, "pcie", Severity.SOFT, Clears.PROBE),
        ({"errors": {"nvmlDeviceGetMemoryInfo": "reset_required"}}, "reset-required", Severity.HARD, Clears.RESET),
        ({"errors": {"nvmlDeviceGetMemoryInfo": "unknown"}}, "no-answer", Severity.HARD, Clears.PROBE),
        ({"errors": {"*": "gpu_is_lost"}}, "gpu-lost", Severity.HARD, Clears.PROBE),
    ],
)
def test_a_reading_is_evidence_against_its_gpu_until_it_is_good(
    node: Node, fields: dict[str, object], kind: str, severity: Severity, clears: Clears
) -> None:
    node.driver.gpu(4, fabric=Fabric(), retired_pending=0)
    before = {name: getattr(node.driver.state.gpus[4], name) for name in fields}
    node.driver.gpu(4, **fields)
    found = [item for item in node.check() if item.bad]
    assert [(item.thing, item.kind, item.severity, item.clears) for item in found] == [
        (node.thing(4), kind, severity, clears)
    ]
    assert found[0].reason
    node.now += 2
    node.check()
    assert node.bad(after=2) == {node.thing(4)}
    node.driver.gpu(4, **before)
    node.check()
    assert node.bad(after=10) == set()


@pytest.mark.parametrize(
    "fields",
    [
        {"clock_reasons": 0x24},  # power cap and target temperature, as under any load
        {"pcie": Pcie(generation=1), "clock_reasons": 0x1},  # an idle link sleeps
        {"fabric": Fabric(state=0)},
        {"fabric": Fabric(health=2)},
        {"ecc": None, "remapped": None, "pcie": None, "recovery_action": None},
        {
            "ecc": Ecc(volatile_corrected=5, aggregate_uncorrected=7),
            "remapped": Remapped(correctable=3, uncorrectable=1),
        },
        {"errors": {"nvmlDeviceGetRemappedRows": "unknown"}},
    ],
)
def test_what_is_normal_or_not_there_is_no_evidence(node: Node, fields: dict[str, object]) -> None:
    node.driver.gpu(4, **fields)
    assert [item for item in node.check() if item.bad] == []


def test_a_reading_that_fails_leaves_what_was_known(node: Node) -> None:
    node.driver.gpu(4, ecc=Ecc(volatile_uncorrected=1))
    node.check()
    node.driver.gpu(4, ecc=Ecc(), errors={"nvmlDeviceGetTotalEccErrors": "unknown"})
    assert kinds(node.check()) == {"ecc"}


def test_a_user_may_say_how_much_a_kind_counts(node: Node) -> None:
    node.end()
    node.begin(Health(evidence={"ecc": "off", "remap-pending": "soft", "heat": "hard"}))
    node.driver.gpu(4, ecc=Ecc(volatile_uncorrected=1), remapped=Remapped(pending=1), clock_reasons=0x40)
    found = {item.kind: item.severity for item in node.check() if item.bad}
    assert found == {"remap-pending": Severity.SOFT, "heat": Severity.HARD}


def test_an_event_of_another_kind_has_its_gpu_read_at_once(node: Node) -> None:
    node.driver.gpu(6, ecc=Ecc(volatile_uncorrected=1))
    node.driver.event(6, type=2)
    assert kinds(node.heard()) == {"ecc"}
    assert node.bad() == {node.thing(6)}


def test_a_fabric_that_is_not_ready_for_anybody_is_a_problem_of_the_node(node: Node) -> None:
    for number in range(8):
        node.driver.gpu(number, fabric=Fabric(state=1))
    for _ in range(3):
        node.check()
        assert node.bad(after=2) == set()
    assert "fabric on 8 of 8 devices" in node.engine.node_problems[0]


def test_a_question_about_the_node_is_soft_evidence(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    node.end()
    node.monitor = Monitor(Health(), {"imex-domain": lambda: "not ready"})
    node.scan()
    assert kinds(node.check()) == {"imex-domain"}
    node.monitor.release()


# -- listening


def test_a_gpu_that_cannot_be_listened_to_says_so_and_the_others_are_heard(node: Node) -> None:
    node.end()
    node.driver.gpu(1, errors={"nvmlDeviceRegisterEvents": "unknown"})
    node.begin()
    assert kinds(node.check()) == {"unmonitored"}
    node.driver.event(2, data=119)
    assert kinds(node.heard()) == {"xid-119"}


def test_a_gpu_without_events_is_not_worse_for_it(node: Node) -> None:
    node.end()
    node.driver.gpu(1, event_types=0)
    node.begin()
    assert [item for item in node.check() if item.bad] == []


def test_a_gpu_that_came_is_listened_to(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    node.driver.change(gpus=gpus(3))
    node.scan()
    node.driver.event(2, data=119)
    assert kinds(node.heard()) == {"xid-119"}
    node.end()


def test_a_wait_that_fails_asks_for_a_scan_once_and_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devherd_gpu.nvidia.events._RETRY", (0.0, 0.0))
    node.driver.change(errors={"nvmlEventSetWait": "unknown"})
    assert node.heard() == ()
    node.driver.change(errors={})
    node.end()
    node.begin()
    node.driver.event(0, data=119)
    assert kinds(node.heard()) == {"xid-119"}


def test_a_wait_that_hangs_is_said_and_readings_go_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devherd_gpu.nvidia.events.SILENT", 0.3)
    node.driver.change(hang=("nvmlEventSetWait",))
    node.driver.gpu(3, ecc=Ecc(volatile_uncorrected=1))
    end = time.monotonic() + 10
    while "unmonitored" not in kinds(node.check()) and time.monotonic() < end:
        time.sleep(0.05)
    assert kinds(node.check()) == {"unmonitored", "ecc"}
    node.driver.change(hang=())


def test_without_events_gpus_are_asked(tmp_path: Path) -> None:
    node = Node(tmp_path, 2, Health(events=False))
    node.driver.lose(1)
    assert kinds(node.check()) == {"gpu-lost"}
    node.end()


def test_a_driver_that_is_gone_is_no_word_about_a_gpu(node: Node) -> None:
    node.driver.event(3, data=95)
    node.heard()
    node.driver.change(init="driver_not_loaded")
    with pytest.raises(NvmlError):
        node.check()
    assert kinds(node.monitor.known()) == {"xid-95"}
