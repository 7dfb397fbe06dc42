"""Topology manager with policy single-numa-node: aligned devices, and no crash whatever is held, missing or withdrawn.

The kubelet once read a device's topology without a look whether it still knows the device. Numbers in names are those
of the acceptance cases (README.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from e2e import podresources, sandbox
from e2e.cards import RESOURCE
from e2e.node import RealNode, pods_after
from e2e.pods import container
from e2e.programs import wait
from e2e.rig import QUICK
from e2e.suite import Suite

_CARDS = {"a0": 0, "a1": 0, "b0": 1, "b1": 1}


class Cards:
    """A node, devherd with the test's cards on it, and the file that says which cards there are."""

    def __init__(self, node: RealNode, folder: Path) -> None:
        self.node = node
        self.prepared = folder / "prepared"
        self._file = folder / "cards.json"
        self.put(_CARDS)
        self.config = {"cards": str(self._file), "prepared": str(self.prepared)}
        settings = {**QUICK, "probe": {"scan_interval": 0.5}}
        self.suite = Suite({}, settings, vendors={"cards": ("cards:MANIFEST", self.config)})

    def put(self, cards: dict[str, int]) -> None:
        """These cards are there from the next scan on."""
        self._file.write_text(json.dumps(cards))

    def wait_healthy(self, *names: str) -> None:
        """Wait until the kubelet has exactly these as healthy."""
        wait(lambda: _allocatable() == set(names), 30, f"{names} are allocatable")

    def got(self, pod: str, container: str = "c") -> set[str]:
        """Cards a container has."""
        return set(self.node.look(pod, container).env["CARD"].split(","))


def _allocatable() -> set[str] | None:
    try:
        return podresources.allocatable().get(RESOURCE, set())
    except grpc.RpcError:
        return None


@pytest.fixture(scope="module")
def two_nodes(folder: Path, kubelet: Path) -> Iterator[RealNode]:
    """A node that the kubelet sees two NUMA nodes on."""
    sandbox.two_numa_nodes(folder / "numa")
    node = RealNode(folder / "topology", kubelet, topology="single-numa-node")
    yield node
    node.down()
    sandbox.own_numa_nodes()


@pytest.fixture
def cards(two_nodes: RealNode, tmp_path: Path) -> Iterator[Cards]:
    two_nodes.fresh()
    made = Cards(two_nodes, tmp_path)
    made.suite.start()
    made.wait_healthy(*_CARDS)
    yield made
    made.suite.stop()
    pid = two_nodes.kubelet.pid
    two_nodes.kubelet_stop()
    assert pid, "the kubelet ended by itself"
    assert not two_nodes.panics(), "the kubelet crashed"


@pytest.mark.skew
def test_case_42_devices_of_one_pod_are_on_one_node(cards: Cards) -> None:
    node = cards.node
    first = node.static("first", {RESOURCE: 2})
    second = node.static("second", {RESOURCE: 1})
    assert cards.got(first) in ({"a0", "a1"}, {"b0", "b1"})
    third = node.static("third", {RESOURCE: 1})
    assert len(cards.got(first) | cards.got(second) | cards.got(third)) == 4


@pytest.mark.skew
def test_case_42_what_fits_on_no_node_is_refused_and_init_devices_are_used_again(cards: Cards) -> None:
    node = cards.node
    view = node.wait_pod(node.static("three", {RESOURCE: 3}), "Failed")
    assert view.reason == "TopologyAffinityError"
    reuse = node.static(
        "reuse", init=[container("i", {RESOURCE: 2}, "exit 0")], containers=[container("c", {RESOURCE: 2})]
    )
    assert cards.got(reuse) in ({"a0", "a1"}, {"b0", "b1"})


@pytest.mark.skew
def test_case_36_prestart_comes_with_all_ids_and_not_for_none(cards: Cards) -> None:
    node = cards.node
    pod = node.static("two", containers=[container("c", {RESOURCE: 2}), container("none", {RESOURCE: 0})])
    got = cards.got(pod)
    assert cards.prepared.read_text().splitlines() == [",".join(sorted(got))]
    old = node.wait_pod(pod).containers["c"].id
    node.containerd.ctr("tasks", "kill", "-s", "SIGKILL", old)
    wait(lambda: len(cards.prepared.read_text().splitlines()) == 2, 60, "called for the next container too")


@pytest.mark.skew
@pytest.mark.parametrize("what", ["missing", "withdrawn", "stopped"])
def test_a_held_device_goes_and_the_kubelet_lives(cards: Cards, what: str) -> None:
    node, suite = cards.node, cards.suite
    pod = node.static("holder", {RESOURCE: 2})
    got = cards.got(pod)
    before = node.wait_pod(pod).containers["c"].id
    others = set(_CARDS) - got
    if what == "missing":
        cards.put({name: _CARDS[name] for name in others})
        cards.wait_healthy(*others)
    elif what == "withdrawn":
        suite.reconfigure("cards", {**cards.config, "withdrawn": True})
        cards.wait_healthy()
    else:
        suite.supervisor.stop(30)
        cards.wait_healthy()
    # Admission asks for hints with what is left; a restart does so for the pod that holds what is gone.
    asks = node.static("asks", {RESOURCE: 2})
    views = pods_after(node, [asks])
    assert views[asks].failed == (what != "missing"), views
    for _ in range(2):
        node.kubelet_restart()
        assert node.wait_pod(pod).containers["c"].id == before
        node.containerd.ctr("tasks", "kill", "-s", "SIGKILL", node.wait_pod(pod).containers["c"].id)
        wait(lambda: _restarted(node, pod, before), 120, "the kubelet dealt with the container's end")  # noqa: B023
        view = node.pod(pod)
        assert view is not None
        before = view.containers["c"].id
        if not view.running:
            break
    assert node.kubelet.running
    cards.put(_CARDS)
    if what == "withdrawn":
        suite.reconfigure("cards", cards.config)
    if what == "stopped":
        suite.boot()
    cards.wait_healthy(*_CARDS)
    node.unstatic("asks")
    assert cards.got(node.static("after", {RESOURCE: 2})) == others


def _restarted(node: RealNode, pod: str, old: str) -> bool:
    """Another container runs, or the kubelet says why none does."""
    view = node.pod(pod)
    if view is None:
        return False
    state = view.containers.get("c")
    return view.failed or (state is not None and ((state.running and state.id != old) or bool(state.waiting)))
