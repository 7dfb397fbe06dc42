"""Detach and attach: the probe is gone while the driver is worked on, pods and registrations are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from devherd.cli.main import main
from devherd.control import ControlError, ask
from devherd.run.instance import Instance, Wish
from devherd.sim.node import Node

RESOURCE = "example.com/accelerator"
QUICK = {"probe": {"scan_interval": 0.3, "check_interval": 0.3}, "health": {"recover": 0.2}}


@pytest.fixture
def node() -> Iterator[Instance]:
    wish = Wish(settings=QUICK, programs=["watcher", "generic"], exec_gap=0.2)
    with Instance(wish, "detach") as instance:
        instance.kubelet.client.wait_resource(RESOURCE, allocatable=8, timeout=30)
        yield instance


def front(node: Instance, op: str = "status", **more: Any) -> dict[str, Any]:
    return ask(node.layout.at("run", "generic.control.sock"), {"op": op, **more})


def until(look: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def command(node: Instance, *words: str) -> int:
    return main([*words, "--config", node.layout.config])


def test_a_detached_plugin_has_no_probe_keeps_pods_and_registrations_and_comes_back(node: Instance) -> None:
    client = node.kubelet.client
    client.pod_add("one", {RESOURCE: 1}, wait=20)
    probe = front(node)["probe"]["pid"]
    registrations = {one["name"]: one["registrations"] for one in front(node)["resources"]}
    assert command(node, "detach", "generic", "--reason", "new driver") == 4
    assert not alive(probe)
    client.wait_resource(RESOURCE, allocatable=1, capacity=8, timeout=20)
    assert client.pods("one")[0]["phase"] == "Running"
    reasons = {one["reason"] for one in front(node, "devices", resource=RESOURCE)["devices"] if not one["healthy"]}
    assert reasons == {"detached: new driver"}
    node.kubelet.restart()
    client.wait_resource(RESOURCE, allocatable=1, capacity=8, timeout=20)
    assert client.pods("one")[0]["phase"] == "Running"
    assert front(node)["probe"]["state"] == "detached"
    assert command(node, "attach", "generic") == 0
    client.wait_resource(RESOURCE, allocatable=8, timeout=20)
    assert front(node)["probe"]["pid"] not in (None, probe)
    assert registrations.keys() == {one["name"] for one in front(node)["resources"]}


def test_one_device_is_parked_and_the_others_are_given_from_memory(node: Instance) -> None:
    ids = [one["id"] for one in front(node, "devices", resource=RESOURCE)["devices"]]
    assert command(node, "detach", ids[2]) == 0
    client = node.kubelet.client
    client.wait_resource(RESOURCE, allocatable=7, capacity=8, timeout=20)
    client.pod_add("seven", {RESOURCE: 7}, wait=20)
    assert client.pods("seven")[0]["phase"] == "Running"
    assert front(node)["probe"]["state"] == "detached"


def test_it_outlives_the_front_and_ends_with_the_boot(node: Instance) -> None:
    command(node, "detach", "generic")
    pid = front(node)["pid"]
    os.kill(pid, 9)
    until(lambda: _pid(node) not in (0, pid), "another front")
    client = node.kubelet.client
    client.wait_resource(RESOURCE, allocatable=0, capacity=8, timeout=20)
    assert front(node)["probe"]["state"] == "detached"
    assert isinstance(node.node, Node)
    node.reboot()
    node.kubelet.client.wait_resource(RESOURCE, allocatable=8, timeout=30)


def _pid(node: Instance) -> int:
    try:
        return int(front(node)["pid"])
    except ControlError:
        return 0


def test_unknown_names_are_said_with_what_there_is(node: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(node, "detach", "toaster") == 2
    assert "generic" in capsys.readouterr().err
    assert command(node, "attach", "toaster") == 2
