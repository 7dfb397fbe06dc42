"""gpu-nvidia as it runs: under supervisord on a simulated node with NVIDIA GPUs, against the simulated kubelet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from devherd.control import ask
from devherd.run.instance import Instance, Wish
from devherd.sim.hardware import Hardware
from devherd.sim.node import Node
from devherd.sim.nodespec import NodeSpec

QUICK = {
    "health": {"recover": 0.3, "debounce": 0.2, "boot_grace": 0.0, "flap_window": 0.0},
    "probe": {"scan_interval": 0.5, "check_interval": 0.3},
}
GPU = "nvidia.com/gpu"
TRANSIENT, OFF_THE_BUS = 59, 79


class NvidiaInstance(Instance):
    def __init__(self, name: str, config: dict[str, Any], **options: Any) -> None:
        spec = NodeSpec(name="nvidia", hardware=(Hardware("gpu-nvidia", options),))
        wish = Wish(
            node=spec,
            settings=QUICK,
            programs=["watcher", "gpu-nvidia"],
            plugin_configs={"gpu-nvidia": json.dumps(config)},
            exec_gap=0.2,
        )
        super().__init__(wish, name)

    def alter(self, **options: Any) -> None:
        assert isinstance(self.node, Node)
        self.node.alter("gpu-nvidia", options)

    def wait(self, allocatable: int, resource: str = GPU, **more: int) -> None:
        self.kubelet.client.wait_resource(resource, allocatable=allocatable, timeout=30, **more)

    def front(self) -> psutil.Process:
        """The front's process; waits for one that is being started."""
        end = time.monotonic() + 20
        while True:
            for process in psutil.process_iter(["cmdline"]):
                words = process.info["cmdline"] or []
                if "devherd.front" in words and "gpu-nvidia" in words and self.layout.config in words:
                    return process
            assert time.monotonic() < end, "no front"
            time.sleep(0.05)

    def devices(self) -> dict[str, dict[str, Any]]:
        reply = ask(self.layout.at("run", "gpu-nvidia.control.sock"), {"op": "devices"})
        return {one["id"]: one for one in reply["devices"]}


@pytest.fixture
def node() -> Iterator[NvidiaInstance]:
    running = NvidiaInstance("gpunv", {"device_list": ["envvar"], "pass_device_specs": True}, count=8)
    running.start()
    try:
        running.wait(8)
        yield running
    finally:
        left = running.stop()
    assert not left.processes


@pytest.fixture
def shared() -> Iterator[NvidiaInstance]:
    running = NvidiaInstance("gpunvs", {"sharing": [{"replicas": 4}]}, count=4)
    running.start()
    try:
        running.wait(16)
        yield running
    finally:
        left = running.stop()
    assert not left.processes


def test_a_lost_gpu_of_eight_leaves_seven_before_and_after_a_kubelet_restart(node: NvidiaInstance) -> None:
    client = node.kubelet.client
    client.pod_add("two", {GPU: 2})
    client.wait_pod("two", timeout=20)
    held = {id for id, one in node.devices().items() if one["held_by"]}
    lost = next(n for n in range(8) if not any(id.startswith(f"GPU-{n:08x}") for id in held))
    node.alter(lost=[lost])
    node.wait(7, capacity=8)
    (bad,) = [one for one in node.devices().values() if not one["healthy"]]
    assert bad["id"].startswith(f"GPU-{lost:08x}")
    node.kubelet.restart()
    node.wait(7, capacity=8)
    client.pod_add("five", {GPU: 5})
    client.wait_pod("five", timeout=20)
    node.alter(lost=[])
    node.wait(8)


def test_explain_gpu_says_of_every_gpu_where_it_is_and_why() -> None:
    config = {"mig": "mixed", "exclude": ["2"], "sharing": [{"replicas": 2, "resource": "gpu"}]}
    running = NvidiaInstance("gpunvwhy", config, count=4, mig={1: ["3g.40gb"], 3: []})
    running.start()
    try:
        running.wait(2)
        reply = ask(running.layout.at("run", "gpu-nvidia.control.sock"), {"op": "explain", "what": "gpu"})
        texts = sorted(row["text"] for row in reply["found"])
        said = "\n".join(texts)
        assert "::1 is in nvidia.com/gpu by sharing[0]: healthy" in said
        assert "is in nvidia.com/mig-3g.40gb by mig: mixed: healthy" in said
        assert "is in no resource: a selector of exclude means it (exclude)" in said
        assert "is in no resource: MIG is on and it has no MIG device" in said
        assert len(texts) == 5
    finally:
        left = running.stop()
    assert not left.processes


def test_a_driver_that_goes_and_comes_back(node: NvidiaInstance) -> None:
    node.alter(init="driver_not_loaded")
    node.wait(0, capacity=8)
    assert all("not loaded" in one["reason"] for one in node.devices().values())
    node.alter(init="ok")
    node.wait(8)


def test_the_probe_stays_small(node: NvidiaInstance) -> None:
    """12 MB is the budget; without its siblings a probe has the interpreter's own pages to itself as well."""
    (probe,) = node.front().children()
    private = sum(area.private_clean + area.private_dirty for area in probe.memory_maps())
    assert private < 14_000_000


def test_an_xid_on_a_shared_gpu_lowers_all_of_its_shares_and_those_only(shared: NvidiaInstance) -> None:
    shared.alter(xids=[[1, TRANSIENT]])
    shared.wait(12, capacity=16)
    bad = [id for id, one in shared.devices().items() if not one["healthy"]]
    assert sorted(bad) == sorted(id for id in shared.devices() if id.startswith("GPU-00000001"))
    shared.wait(16)


def test_a_gpu_that_an_xid_proved_bad_stays_bad_over_restarts(shared: NvidiaInstance) -> None:
    shared.alter(xids=[[1, OFF_THE_BUS]])
    shared.wait(12, capacity=16)
    shared.kubelet.restart()
    before = shared.front()
    before.kill()
    before.wait(10)
    shared.wait(12, capacity=16)
    assert shared.front().pid != before.pid
    assert all(f"Xid {OFF_THE_BUS}" in one["reason"] for one in shared.devices().values() if not one["healthy"])


def test_another_mig_geometry_moves_resources_live() -> None:
    running = NvidiaInstance("gpunvmig", {"mig": "mixed"}, count=2, mig={1: ["3g.40gb", "3g.40gb"]})
    running.start()
    try:
        running.wait(1)
        running.wait(2, "nvidia.com/mig-3g.40gb")
        running.alter(mig={1: ["1g.10gb"] * 7})
        running.wait(7, "nvidia.com/mig-1g.10gb")
        running.wait(0, "nvidia.com/mig-3g.40gb")
        running.wait(1)
    finally:
        left = running.stop()
    assert not left.processes
