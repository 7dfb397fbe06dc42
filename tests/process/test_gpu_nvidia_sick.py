"""gpu-nvidia while GPUs fail and the driver hangs: a real front and probe, the simulated kubelet, and both stand-ins
for NVML, the compiled library loaded by pynvml among them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.trail import Wanted, read_events
from devherd_gpu.nvidia.standinstate import Remapped
from support.frontnode import FrontNode
from support.nvmlbuild import install, no_compiler
from support.nvmlstate import SimDriver

GPU = "nvidia.com/gpu"
SETTLED = str(Path(__file__).parents[1] / "support" / "settled")
SETTINGS = {
    "health": {"recover": 0.3, "debounce": 0.2, "boot_grace": 0.0, "flap_window": 0.0},
    "probe": {"scan_interval": 1.0, "check_interval": 0.3, "deadline": 2.5, "first_scan": 1.0},
    "kubelet": {"poll": 1.0},
}
LASTING, TRANSIENT, OFF_THE_BUS = 119, 92, 79


class GpuNode(FrontNode):
    """A node with NVIDIA GPUs; `driver` changes what the driver says."""

    def __init__(self, compiled: bool, config: dict[str, Any], pythonpath: str = "", **options: Any) -> None:
        spec = {"name": "test", "hardware": [{"plugin": "gpu-nvidia", "options": options}]}
        super().__init__(
            spec,
            config={"device_list": ["envvar"], **config},
            settings=SETTINGS,
            plugin="gpu-nvidia",
            manifest="devherd_gpu.nvidia.manifest:MANIFEST",
            pythonpath=pythonpath,
        )
        root = f"{self.folder}/node"
        if compiled:
            install(Path(root))
        self.driver = SimDriver.of(root)

    def __enter__(self) -> GpuNode:
        return self

    def rows(self, resource: str = GPU) -> dict[str, dict[str, Any]]:
        """The resource's devices by id."""
        return {row["id"]: row for row in self.ask("devices", resource=resource)["devices"]}

    def bad(self, resource: str = GPU) -> set[str]:
        """Ids that are listed Unhealthy."""
        return {id for id, row in self.rows(resource).items() if not row["healthy"]}

    def until_bad(self, ids: set[str], resource: str = GPU) -> None:
        """These and no others are Unhealthy."""
        self.until(lambda: self.bad(resource) == ids, timeout=20, what=f"{sorted(ids)} Unhealthy")

    def uuid(self, number: int) -> str:
        return self.driver.state.gpus[number].uuid

    def shares(self, number: int, replicas: int = 4) -> set[str]:
        return {f"{self.uuid(number)}::{n}" for n in range(replicas)}

    def kill_probe(self) -> None:
        """The probe dies; the next one starts from nothing."""
        pid = self.status()["probe"]["pid"]
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: self.status()["probe"]["pid"] not in (None, pid), timeout=20, what="another probe")

    def tool(self) -> None:
        """An nvidia-smi whose reset works: the driver has no wish any more for that GPU."""
        path = Path(self.folder) / "node/usr/bin/nvidia-smi"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TOOL.format(python=sys.executable, state=self.driver.path))
        path.chmod(0o755)


TOOL = """#!{python} -I
import json, os, sys
assert sys.argv[1:3] == ["--gpu-reset", "-i"], sys.argv
with open({state!r}) as file:
    state = json.load(file)
for gpu in state["gpus"]:
    if gpu["pci"] == sys.argv[3]:
        gpu["recovery_action"] = 0
with open({state!r} + ".reset", "w") as file:
    json.dump(state, file)
os.replace({state!r} + ".reset", {state!r})
"""


@pytest.fixture(params=["compiled", "inside"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Which stand-in answers."""
    if request.param == "compiled" and no_compiler():
        pytest.skip(no_compiler())
    return bool(request.param == "compiled")


@pytest.fixture
def eight(compiled: bool) -> Iterator[GpuNode]:
    with GpuNode(compiled, {}, count=8) as node:
        node.up(allocatable=8, resource=GPU)
        yield node


def test_fact_01_a_gpu_with_a_transient_xid_comes_back_and_a_proven_bad_one_does_not(eight: GpuNode) -> None:
    eight.driver.event(2, data=OFF_THE_BUS)
    eight.driver.event(3, data=TRANSIENT)
    eight.kubelet.client.wait_resource(GPU, allocatable=6, timeout=20)
    eight.until_bad({eight.uuid(2)})
    eight.kubelet.restart(hard=True)
    eight.kubelet.client.wait_resource(GPU, allocatable=7, timeout=20)
    eight.kill_probe()
    eight.ask("rescan")
    scans = eight.status()["counters"]["scans"]
    eight.until(lambda: eight.status()["counters"]["scans"] >= scans + 2, what="scans by the new probe")
    assert eight.bad() == {eight.uuid(2)}
    eight.end_front(signal.SIGKILL)
    pid = eight.start_front()
    # The kubelet's count is as before, and may be of before.
    eight.until(lambda: eight.status()["pid"] == pid and eight.resource(GPU)["state"] == "registered", timeout=20)
    eight.kubelet.client.wait_resource(GPU, allocatable=7, timeout=20)
    row = eight.rows()[eight.uuid(2)]
    assert "(Xid 79)" in row["reason"]
    assert "reboot" in row["reason"]


def test_fact_01_over_a_reboot_only_what_it_does_not_end_is_bad(eight: GpuNode) -> None:
    eight.driver.event(2, data=OFF_THE_BUS)
    eight.driver.gpu(5, remapped=Remapped(failure=1))
    eight.until_bad({eight.uuid(2), eight.uuid(5)})
    eight.end_front()
    # The new boot's driver starts without events; for a moment it hides what it found before.
    eight.driver.gpu(5, hang=("nvmlDeviceGetRemappedRows",))
    eight.driver.change(events=())
    eight.node.reboot()
    eight.start_front()
    eight.kubelet.restart(hard=True)
    eight.kubelet.client.wait_resource(GPU, allocatable=7, timeout=20)
    eight.until_bad({eight.uuid(5)})


def test_fact_02_a_lost_gpu_costs_no_other_one(eight: GpuNode) -> None:
    eight.driver.lose(5)
    eight.driver.event(5, data=OFF_THE_BUS)
    eight.kubelet.client.wait_resource(GPU, allocatable=7, timeout=20)
    front = eight.status()["pid"]
    eight.until_bad({eight.uuid(5)})
    assert eight.run_pod("four", {GPU: 4})["phase"] == "Running"
    for _ in range(2):
        eight.kubelet.restart(hard=True)
        eight.kubelet.client.wait_resource(GPU, allocatable=7, timeout=20)
    assert eight.run_pod("three", {GPU: 3})["phase"] == "Running"
    assert set(eight.ids("three", GPU)).isdisjoint(eight.ids("four", GPU))
    assert eight.status()["pid"] == front
    assert eight.bad() == {eight.uuid(5)}


def test_fact_03_an_xid_lowers_all_shares_of_its_gpu_and_only_those(compiled: bool) -> None:
    with GpuNode(compiled, {"sharing": [{"replicas": 4}]}, count=3) as node:
        node.up(allocatable=12, resource=GPU)
        node.driver.event(1, data=LASTING)
        node.kubelet.client.wait_resource(GPU, allocatable=8, timeout=20)
        node.until_bad(node.shares(1))


def test_fact_03_an_xid_of_a_mig_instance_lowers_the_shares_of_that_instance_only(compiled: bool) -> None:
    config = {"mig": "mixed", "sharing": [{"replicas": 2}]}
    with GpuNode(compiled, config, count=2, mig={1: ["1g.10gb"] * 3}) as node:
        resource = "nvidia.com/mig-1g.10gb"
        node.up(allocatable=6, resource=resource)
        node.driver.event(1, data=LASTING, gi=2, ci=0)
        split = node.driver.state.gpus[1].mig
        assert split is not None
        hit = next(device.uuid for device in split.devices if device.gi == 2)
        node.until_bad({f"{hit}::0", f"{hit}::1"}, resource)
        assert node.bad() == set()
        node.driver.event(1, data=LASTING)
        node.until_bad(set(node.rows(resource)), resource)


@pytest.mark.parametrize("hang", ["nvmlDeviceGet*", "nvml*", "nvmlEventSetWait"])
def test_a_hung_driver_keeps_nobody_waiting(eight: GpuNode, hang: str) -> None:
    eight.until(lambda: eight.resource(GPU)["state"] == "registered")
    registrations = eight.resource(GPU)["registrations"]
    eight.driver.change(hang=(hang,))
    eight.ask("rescan")
    end = time.monotonic() + 5.0  # longer than a probe may take
    slowest = 0.0
    pods = 0
    while time.monotonic() < end:
        started = time.monotonic()
        eight.run_pod(f"pod{pods}", {GPU: 1})
        slowest = max(slowest, time.monotonic() - started)
        eight.kubelet.client.pod_rm(f"pod{pods}", wait=10)
        pods += 1
    assert pods > 5
    assert slowest < 2.0
    resource = eight.resource(GPU)
    assert (resource["state"], resource["registrations"]) == ("registered", registrations)
    eight.kubelet.restart(hard=True)
    eight.kubelet.client.wait_resource(GPU, allocatable=8, timeout=5)
    assert eight.run_pod("after", {GPU: 4})["phase"] == "Running"
    eight.driver.change(hang=())
    eight.driver.event(4, data=OFF_THE_BUS)  # seen by whatever probe has come to work
    scans = eight.status()["counters"]["scans"]
    eight.until(lambda: eight.status()["counters"]["scans"] > scans + 1, timeout=20, what="scans again")
    eight.driver.event(6, data=OFF_THE_BUS)
    eight.until(lambda: eight.uuid(6) in eight.bad(), timeout=20, what="events heard again")


def test_a_gpu_that_needs_a_reset_gets_it_when_no_pod_holds_it(compiled: bool) -> None:
    with GpuNode(compiled, {"health": {"reset": True}}, pythonpath=SETTLED, count=2) as node:
        node.tool()
        node.up(allocatable=2, resource=GPU)
        node.run_pod("holder", {GPU: 1})
        (held,) = node.ids("holder", GPU)
        free = next(number for number in range(2) if node.uuid(number) != held)
        for number in range(2):
            node.driver.event(number, data=LASTING)
            node.driver.gpu(number, recovery_action=1)
        node.until_bad({node.uuid(0), node.uuid(1)})
        node.until_bad({held})
        (event,) = read_events(f"{node.folder}/log/events", Wanted(kinds=("repaired",)))
        assert event["thing"] == f"pci:{node.driver.state.gpus[free].pci}"
        assert event["reason"] == ""
        assert "reset" in node.rows()[held]["reason"]
