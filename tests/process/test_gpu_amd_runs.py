"""gpu-amd as it runs: under supervisord on a simulated node with AMD GPUs, against the simulated kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from devherd.control import ask
from devherd.run.instance import Instance, Wish
from devherd.sim.hardware import Hardware
from devherd.sim.node import Node
from devherd.sim.nodespec import NodeSpec

QUICK = {
    "health": {"recover": 0.3, "debounce": 0.2, "boot_grace": 0.0, "flap_window": 0.0},
    "probe": {"scan_interval": 0.3, "check_interval": 0.3},
}
GPU = "amd.com/gpu"


class AmdNode(Instance):
    def __init__(self, name: str, **options: Any) -> None:
        spec = NodeSpec(name="amd", hardware=(Hardware("gpu-amd", options),))
        super().__init__(Wish(node=spec, settings=QUICK, programs=["watcher", "gpu-amd"], exec_gap=0.2), name)

    def alter(self, **options: Any) -> None:
        assert isinstance(self.node, Node)
        self.node.alter("gpu-amd", options)

    def wait(self, allocatable: int, resource: str = GPU, **more: int) -> None:
        self.kubelet.client.wait_resource(resource, allocatable=allocatable, timeout=30, **more)

    def devices(self) -> dict[str, dict[str, Any]]:
        reply = ask(self.layout.at("run", "gpu-amd.control.sock"), {"op": "devices"})
        return {one["id"]: one for one in reply["devices"]}


@pytest.fixture
def node() -> Iterator[AmdNode]:
    with_gpus = AmdNode("gpuamd", count=8)
    with_gpus.start()
    try:
        with_gpus.wait(8)
        yield with_gpus
    finally:
        left = with_gpus.stop()
    assert not left.processes


def test_a_lost_gpu_is_that_gpu_only_before_and_after_a_kubelet_restart(node: AmdNode) -> None:
    client = node.kubelet.client
    client.pod_add("two", {GPU: 2})
    client.wait_pod("two", timeout=20)
    held = {id for id, one in node.devices().items() if one["held_by"]}
    lost = next(n for n in range(8) if f"0000:{5 + 16 * n:02x}:00.0" not in held)
    node.alter(lost=[lost])
    node.wait(7, capacity=8)
    (bad,) = [one for one in node.devices().values() if not one["healthy"]]
    assert bad["id"] == f"0000:{5 + 16 * lost:02x}:00.0"
    assert "gone" in bad["kind"]
    node.kubelet.restart()
    node.wait(7, capacity=8)
    client.pod_add("five", {GPU: 5})
    client.wait_pod("five", timeout=20)
    node.alter(lost=[])
    node.wait(8)


def test_a_gpu_the_compute_driver_dropped_comes_back_by_policy(node: AmdNode) -> None:
    node.alter(no_kfd=[3])
    node.wait(7, capacity=8)
    assert [one["kind"] for one in node.devices().values() if not one["healthy"]] == ["kfd"]
    node.alter(no_kfd=[])
    node.wait(8)


def test_another_split_moves_devices_and_pods_keep_theirs(node: AmdNode) -> None:
    client = node.kubelet.client
    client.pod_add("one", {GPU: 1})
    client.wait_pod("one", timeout=20)
    node.alter(compute="DPX", memory="NPS1")
    node.wait(16)
    assert client.pods("one")[0]["phase"] == "Running"
