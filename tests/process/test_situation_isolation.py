"""One vendor's crash loop, hang or memory blow-up changes no figure of another's."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.control import ControlError
from support.naughty_vendor import COUNT, RESOURCE
from support.two_vendors import MEMORY, TwoVendors

ACCELERATOR = "example.com/accelerator"
CALLS = 400
RATIO = 8.0
"""Two cores that tests share with others are no measuring room: what would show is a call that waits."""
FLOOR = 0.010
MOODS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "crash": lambda status: status["probe"]["replaced"] >= 2,
    "hang": lambda status: status["probe"]["replaced"] >= 1,
    "memory": lambda status: "MemoryError" in status["probe"]["error"] or status["probe"]["replaced"] >= 1,
}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoVendors]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with TwoVendors("i") as running:
        running.kubelet.client.wait_resource(ACCELERATOR, allocatable=8, timeout=20)
        running.kubelet.client.wait_resource(RESOURCE, allocatable=COUNT, timeout=20)
        yield running
    shutil.rmtree(folder, ignore_errors=True)


class Client:
    """Allocates from the well-behaved vendor, as the kubelet does."""

    def __init__(self, node: TwoVendors) -> None:
        shown = node.kubelet.client.node()["resources"][ACCELERATOR]
        self._ids = shown["healthy"][:2]
        path = f"unix:{node.layout.device_plugins}/{shown['endpoint']}"
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.insecure_channel(path, options=options)
        self._call: Any = self._channel.unary_unary("/v1beta1.DevicePlugin/Allocate")

    def p99(self) -> float:
        """Seconds, of many calls one after the other."""
        asked = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=self._ids)])
        message, took = asked.SerializeToString(), []
        for _ in range(CALLS):
            start = time.perf_counter()
            self._call(message, timeout=5)
            took.append(time.perf_counter() - start)
        return sorted(took)[int(CALLS * 0.99)]

    def close(self) -> None:
        self._channel.close()


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except ControlError:
            pass
        assert time.monotonic() < end
        time.sleep(0.02)


def told(before: float, during: float, after: float, what: str) -> None:
    print(
        f"{what}: Allocate p99 of the other vendor {before * 1e3:.2f} ms before, {during * 1e3:.2f} during "
        f"(ratio {during / before:.1f}), {after * 1e3:.2f} after (ratio {after / before:.1f})"
    )
    for value in (during, after):
        assert value <= max(FLOOR, before * RATIO)


@pytest.mark.parametrize("mood", [*MOODS, "kill"])
def test_a_misbehaving_vendor_changes_no_figure_of_another(node: TwoVendors, mood: str) -> None:
    client = node.kubelet.client
    client.pod_add("held", {ACCELERATOR: 2}, wait=10)
    other = Client(node)
    other.p99()
    before, status = other.p99(), node.front("generic")
    naughty = node.front("naughty")["pid"]
    node.mood(mood)
    if mood == "kill":
        # The front itself is killed: supervisord restarts it, again and again.
        until(lambda: node.front("naughty")["pid"] != naughty)
    else:
        until(lambda: MOODS[mood](node.front("naughty")))
    during = other.p99()
    pod = client.pod_add("during", {ACCELERATOR: 1}, wait=10)
    assert pod["phase"] == "Running", pod
    if mood != "kill":
        # Its own pods are served too, from memory.
        assert client.node()["resources"][RESOURCE]["allocatable"] == COUNT
        assert client.pod_add("own", {RESOURCE: 1}, wait=10)["phase"] == "Running"
        assert node.front("naughty")["pid"] == naughty
    node.kubelet.restart(hard=True)
    client.wait_resource(ACCELERATOR, allocatable=8, timeout=5)
    node.mood("good")
    client.wait_resource(RESOURCE, allocatable=COUNT, timeout=60)
    after, now = other.p99(), node.front("generic")
    other.close()
    assert now["pid"] == status["pid"]
    row = next(row for row in now["resources"] if row["name"] == ACCELERATOR)
    assert row["registrations"] == 2
    assert (now["probe"]["pid"], now["probe"]["replaced"]) == (status["probe"]["pid"], 0)
    assert all(pod["phase"] == "Running" for pod in client.pods())
    told(before, during, after, mood)


def test_the_launchers_memory_limit_holds_for_the_probe(node: TwoVendors) -> None:
    probe = node.front("naughty")["probe"]["pid"]
    with open(f"/proc/{probe}/limits", encoding="ascii") as file:
        row = next(line for line in file if line.startswith("Max data size"))
    assert row.split()[3] == str(MEMORY << 20)
