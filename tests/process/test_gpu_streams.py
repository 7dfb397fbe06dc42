"""Each GPU plugin while the kubelet drops its stream or restarts: no process ends, and every device is offered again.

Facts 4 and 7: the vendors' plugins do not notice the first, or end with status 1 at either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.frontnode import FrontNode

RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
COUNT = 4


class GpuNode(FrontNode):
    """A node with GPUs of one vendor."""

    def __init__(self, vendor: str, config: dict[str, Any], **options: Any) -> None:
        self.gpu = RESOURCES[vendor]
        plugin = f"gpu-{vendor}"
        spec = {"name": "test", "hardware": [{"plugin": plugin, "options": options}]}
        super().__init__(spec, config, plugin=plugin, manifest=f"devherd_gpu.{vendor}.manifest:MANIFEST")

    def pids(self) -> tuple[int, int]:
        """Front and probe."""
        assert self.front is not None
        assert self.front.poll() is None
        return self.front.pid, self.status()["probe"]["pid"]


@pytest.fixture(params=sorted(RESOURCES))
def node(request: pytest.FixtureRequest) -> Iterator[GpuNode]:
    with GpuNode(request.param, {}, count=COUNT) as node:
        assert isinstance(node, GpuNode)
        node.up(allocatable=COUNT, resource=node.gpu)
        yield node


def test_fact_04_a_dropped_stream_is_opened_again(node: GpuNode) -> None:
    before = node.pids()
    for _ in range(2):
        since = node.kubelet.client.events()[-1]["seq"]
        node.kubelet.client.ask("cut", resource=node.gpu)
        node.kubelet.client.wait(5, event="register", since=since, resource=node.gpu)
        node.kubelet.client.wait_resource(node.gpu, allocatable=COUNT, stopped=False, timeout=5)
    assert node.pids() == before


def test_fact_07_kubelet_restarts_end_no_process(node: GpuNode) -> None:
    before = node.pids()
    for _ in range(3):
        node.kubelet.restart(hard=True)
        node.kubelet.client.wait_resource(node.gpu, allocatable=COUNT, timeout=20)
    assert node.pids() == before
