"""gpu-intel as it runs: under supervisord on a simulated node with Intel GPUs, against the simulated kubelet."""

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
I915 = "gpu.intel.com/i915"


class IntelNode(Instance):
    def __init__(self, name: str, config: str, **options: Any) -> None:
        spec = NodeSpec(name="intel", hardware=(Hardware("gpu-intel", options),))
        wish = Wish(
            node=spec,
            settings=QUICK,
            plugin_configs={"gpu-intel": config},
            programs=["watcher", "gpu-intel"],
            kubelet_options={"cdi_dirs": []},
            exec_gap=0.2,
        )
        super().__init__(wish, name)

    def alter(self, **options: Any) -> None:
        assert isinstance(self.node, Node)
        self.node.alter("gpu-intel", options)

    def wait(self, allocatable: int, resource: str = I915, **more: int) -> None:
        self.kubelet.client.wait_resource(resource, allocatable=allocatable, timeout=30, **more)

    def devices(self) -> dict[str, dict[str, Any]]:
        reply = ask(self.layout.at("run", "gpu-intel.control.sock"), {"op": "devices"})
        return {one["id"]: one for one in reply["devices"]}


@pytest.fixture
def node() -> Iterator[IntelNode]:
    with_gpus = IntelNode("gpuintel", "shared: 2\n", count=3)
    with_gpus.start()
    try:
        with_gpus.wait(6)
        yield with_gpus
    finally:
        left = with_gpus.stop()
    assert not left.processes


def test_changes_after_a_kubelet_restart_reach_the_kubelet_each_time(node: IntelNode) -> None:
    """Facts 5 and 6: the vendor's plugin loses the first, and stops at the second."""
    node.kubelet.restart()
    node.wait(6)
    node.alter(lost=[2])
    node.wait(4, capacity=6)
    node.alter(lost=[1, 2])
    node.wait(2, capacity=6)
    node.alter(lost=[])
    node.wait(6)


def test_heat_takes_all_shares_of_that_card_and_no_other(node: IntelNode) -> None:
    node.alter(temperature={"1": 120})
    node.wait(4, capacity=6)
    assert sorted(id for id, one in node.devices().items() if not one["healthy"]) == ["card1-0", "card1-1"]
    node.alter(temperature={})
    node.wait(6)
