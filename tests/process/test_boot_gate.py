"""`devherd wait --boot` on whole simulated nodes: what it saves, what it costs, and when it does not wait."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from devherd.expected import AFTER, BEFORE, Known, Record, expected_file
from devherd.run.instance import Instance, Wish
from devherd.settings import Paths
from devherd.sim.nodespec import NodeSpec

FAST, SLOW = "example.com/fast", "example.com/slow"
LATE_BY = 3.0
"""Seconds after the start of devherd at which the slow driver makes its devices."""
SPEC = {
    "name": "boot",
    "devices": [{"path": "/dev/fast{n}", "count": 2}, {"path": "/dev/slow{n}", "count": 2, "minor": 100}],
}
CONFIG: dict[str, Any] = {
    "domain": "example.com",
    "devices": [{"name": name, "groups": [{"paths": [{"path": f"/dev/{name}*"}]}]} for name in ("fast", "slow")],
}
SETTINGS: dict[str, Any] = {"kubelet": {"poll": 0.2}, "probe": {"scan_interval": 1.0}, "health": {"recover": 0.1}}
DEVICES = ("/dev/slow0", "/dev/slow1")


class Node(Instance):
    """A node whose devices may come late at a boot. `gate`: `devherd wait --boot` runs before each kubelet."""

    def __init__(self, **settings: Any) -> None:
        wish = Wish(
            node=msgspec.convert(SPEC, NodeSpec),
            plugin_configs={"generic": json.dumps(CONFIG)},
            settings={**SETTINGS, **settings},
            programs=["watcher", "generic"],
        )
        super().__init__(wish, "t")
        self.gate = False
        self.late: Sequence[str] = ()
        self.before_boot: Callable[[], None] = lambda: None
        self.said: dict[str, Any] = {}

    def __enter__(self) -> Node:
        self.start()
        return self

    def _boot(self, timeout: float) -> None:
        self.before_boot()
        timer = threading.Timer(LATE_BY, self.find, (self.late,))
        self.supervisor.start(timeout)
        timer.start()
        if self.gate:
            self.said = self.wait_boot()
        else:
            time.sleep(self.wish.exec_gap)
        self.kubelet.start(timeout=timeout)
        timer.join()

    def wait_boot(self, *more: str, code: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run the gate; what it says, with `began` and `ended` in monotonic seconds."""
        command = [sys.executable, "-m", "devherd.cli.main", "wait", "--boot", "--json", "--config", self.layout.config]
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=100)
        assert done.returncode in code, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    def lose(self, paths: Sequence[str]) -> None:
        assert self.node is not None
        for path in paths:
            self.node.break_device(path)

    def find(self, paths: Sequence[str]) -> None:
        assert self.node is not None
        for path in paths:
            self.node.heal_device(path)

    def boot_with(self, late: Sequence[str] = (), gate: bool = False) -> None:
        """A reboot after which these devices come late."""
        self.gate, self.late = gate, late
        self.lose(late)
        self.reboot()

    @property
    def record(self) -> Record:
        paths = Paths(state=self.layout.state, machine_id=self.layout.at("node", "etc", "machine-id"))
        found = expected_file(paths, "generic").load(set_aside=False)
        return found.value or Record()

    def known(self, resource: str, **wanted: Any) -> Known:
        """What the front has written down, once it is as wanted."""
        end = time.monotonic() + 30
        while True:
            known = self.record.resources.get(resource)
            if known is not None and all(getattr(known, name) == value for name, value in wanted.items()):
                return known
            assert time.monotonic() < end, f"{known} is not {wanted}"
            time.sleep(0.05)

    def pod(self, name: str) -> dict[str, Any]:
        [found] = self.kubelet.client.pods(name)
        return found

    def lost(self) -> set[str]:
        """Names of failed pods, once every pod runs or has failed."""
        end = time.monotonic() + 30
        while True:
            phases = {pod["name"]: pod["phase"] for pod in self.kubelet.client.pods()}
            if set(phases.values()) <= {"Running", "Failed"}:
                return {name for name, phase in phases.items() if phase == "Failed"}
            assert time.monotonic() < end, phases
            time.sleep(0.05)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def node() -> Iterator[Node]:
    """A node that has been up once with everything in time, and a pod for each device."""
    with Node() as one:
        client = one.kubelet.client
        for resource in (FAST, SLOW):
            client.wait_resource(resource, allocatable=2, timeout=30)
            one.known(resource, count=2, when=BEFORE)
            for n in range(2):
                client.pod_add(f"{resource[12:]}-{n}", {resource: 1}, wait=20)
        yield one


def test_a_kubelet_that_waits_for_a_slow_driver_loses_no_pod(node: Node) -> None:
    node.boot_with(late=DEVICES, gate=True)
    assert node.said["ready"]
    assert node.said["fit"]
    assert node.lost() == set()
    assert node.known(SLOW).missed == 0


def test_without_the_gate_exactly_the_pods_of_the_slow_driver_are_lost(node: Node) -> None:
    node.boot_with(late=DEVICES)
    assert node.lost() == {"slow-0", "slow-1"}
    assert node.known(SLOW, missed=1).when == BEFORE
    # One slow boot is no design: the next one waits.
    assert not node.wait_boot("--timeout", "0")["missing"]


@pytest.mark.parametrize("gate", [False, True])
def test_a_resource_unknown_to_a_fresh_kubelet_starts_pods_without_a_device_unless_the_gate_waits(
    node: Node, gate: bool
) -> None:
    def fresh_kubelet_and_a_slow_program() -> None:
        os.unlink(Path(node.layout.device_plugins, "kubelet_internal_checkpoint"))
        until = time.monotonic() + 2 * LATE_BY
        Path(node.layout.run, "generic.hold").write_text(f"until {until}\nslow to start\n")

    node.before_boot = fresh_kubelet_and_a_slow_program
    node.boot_with(gate=gate)
    node.kubelet.client.wait_resource(SLOW, allocatable=2, timeout=30)
    assert node.lost() == set()
    assert [len(_devices(node, name)) for name in ("slow-0", "slow-1")] == ([1, 1] if gate else [0, 0])


def _devices(node: Node, pod: str) -> list[str]:
    held = [one["devices"] for one in node.pod(pod)["containers"]]
    return [id for resources in held for ids in resources.values() for id in ids]


def test_two_misses_stop_delaying_and_are_named_until_it_is_back(node: Node) -> None:
    node.lose(DEVICES[:1])
    for missed in (1, 2):
        node.boot_with()
        node.known(SLOW, missed=missed)
        said = node.wait_boot("--timeout", "0", code=(0, 5))
        assert [lack["resource"] for lack in said["missing"]] == [SLOW]
        assert said["ready"] == (missed == 2)
    began = time.monotonic()
    said = node.wait_boot("--timeout", "60")
    assert time.monotonic() - began < 30
    assert (said["missing"][0]["expected"], said["missing"][0]["have"]) == (2, 1)
    assert "2 boots" in said["missing"][0]["spared"]
    node.find(DEVICES[:1])
    node.boot_with()
    assert node.known(SLOW, missed=0).when == BEFORE


def test_what_only_came_after_the_kubelet_is_not_waited_for(place: str) -> None:
    with Node() as one:
        one.known(FAST, count=2, when=BEFORE)
        # As on a node that has never had it.
        os.unlink(Path(one.layout.state, "generic.expected.json"))
        one.boot_with(late=DEVICES)
        one.known(SLOW, count=2, when=AFTER)
        began = time.monotonic()
        one.boot_with(late=DEVICES, gate=True)
        assert one.said["ready"]
        assert one.said["seconds"] < LATE_BY
        assert time.monotonic() - began < 60
        assert ["late by design" in lack["spared"] for lack in one.said["missing"]] == [True]


def test_what_the_configuration_expects_is_waited_for_until_the_time_is_up(place: str) -> None:
    with Node(expect={FAST: 2, SLOW: 3, "example.com/typo": 1}) as one:
        one.known(SLOW, count=2)
        said = one.wait_boot("--timeout", "0.5", code=(5,))
        assert not said["ready"]
        assert not said["fit"]
        assert said["seconds"] >= 0.5
        lacks = {lack["resource"]: lack for lack in said["missing"]}
        assert set(lacks) == {SLOW, "example.com/typo"}
        assert (lacks[SLOW]["expected"], lacks[SLOW]["have"], lacks[SLOW]["source"]) == (3, 2, "expect")
        assert "no plugin offers it" in lacks["example.com/typo"]["why"]


def test_a_program_that_does_not_run_is_named(node: Node) -> None:
    node.kubelet.kill()
    node.supervisor.crash(spare=(node.kubelet.helper_pid,))
    said = node.wait_boot("--timeout", "0.3", code=(5,))
    assert {lack["resource"] for lack in said["missing"]} == {FAST, SLOW}
    assert all("program not running" in lack["why"] for lack in said["missing"])


def test_damaged_files_and_settings_delay_nothing(node: Node) -> None:
    path = Path(node.layout.state, "generic.expected.json")
    path.write_bytes(b"\0\1\2")
    said = node.wait_boot("--timeout", "60")
    assert (said["ready"], said["expected"]) == (True, 0)
    assert "damaged" in said["notes"][0]
    assert path.read_bytes() == b"\0\1\2"
    Path(node.layout.config).write_text("nonsense: [")
    said = node.wait_boot("--timeout", "60")
    assert said["ready"]
    assert "configuration broken" in said["notes"][0]


def test_another_configuration_is_a_new_beginning(node: Node) -> None:
    smaller = {**CONFIG, "devices": CONFIG["devices"][:1]}
    Path(node.layout.etc, "plugins.d", "generic.yaml").write_text(json.dumps(smaller))
    node.reboot()
    end = time.monotonic() + 30
    while set(node.record.resources) != {FAST}:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert node.wait_boot("--timeout", "60")["ready"]
