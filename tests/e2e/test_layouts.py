"""Where the sockets are, and what a kubelet makes of a name that it knows already."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from devherd.control import ControlError

from e2e.compare.plugin import Loop
from e2e.node import pods_after
from e2e.programs import wait
from e2e.rig import Rig, name
from e2e.test_odd_plugins import register

CAM = name("cam")
_WITHOUT_SUBFOLDER = (
    *("unshare", "--mount", "--", "/bin/sh", "-c"),
    # Shared, or the kubelet would mount its folder over itself to make it so.
    "mount --make-shared /var/lib/kubelet && "
    'mount -t tmpfs -o mode=700 tmpfs /var/lib/kubelet/device-plugins/devherd && exec "$@"',
    "kubelet",
)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.mark.skew
def test_a_kubelet_that_does_not_reach_subfolders(rig: Rig) -> None:
    """No kubelet refuses them yet. One that looks into another folder there fails in the same place: its dial."""
    suite = rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    device = rig.got(pod)
    assert suite.front()["layout"] == "subfolder"
    rig.node.wrapper = _WITHOUT_SUBFOLDER
    rig.node.kubelet_restart()
    suite.wait_registered(CAM, timeout=40)  # the kubelet dials for 10 s
    assert suite.front()["layout"] == "top"
    assert rig.got(pod) == device
    # Remembered: from now on a boot costs no failed call, so no pod either.
    rig.calm()
    rig.node.reboot(suite.power_cycle)
    assert not pods_after(rig.node, [pod])[pod].failed
    assert len(rig.node.log().registrations()) == 1
    assert rig.got(pod) == device


@pytest.mark.skew
@pytest.mark.parametrize("layout", ["subfolder", "top"])
def test_a_name_that_the_kubelet_counts_as_connected_for_ever(rig: Rig, loop: Loop, layout: str) -> None:
    """From 1.37 on a kubelet tells a resource's connections apart by path, and refuses one that it still has.

    Two calls for one path that cross (one given up by its caller, say, while the kubelet was frozen) make it forget to
    watch the connection: its end goes unnoticed, and the path is refused until the kubelet ends.
    """
    suite = rig.devherd({"cam": 2}, {"kubelet": {"layout": layout}})
    pod = rig.node.static("one", {CAM: 1})
    device = rig.got(pod)
    register(loop, suite.states()[CAM]["socket"], CAM)
    for turn in range(3):
        _kill_front(rig)
        suite.wait_registered(CAM, timeout=20)
        rig.wait_allocatable("cam", 2)
        other = rig.node.static(f"p{turn}", {CAM: 1})
        assert rig.got(other) != device
        rig.node.unstatic(f"p{turn}")
        register(loop, suite.states()[CAM]["socket"], CAM)
    assert suite.front()["layout"] == layout
    rig.node.kubelet_restart()
    rig.wait_allocatable("cam", 2)
    assert rig.got(pod) == device


@pytest.mark.skew
def test_a_frozen_kubelet_thaws_to_an_ended_stream_and_a_new_front(rig: Rig) -> None:
    """Both at once, in any order."""
    suite = rig.devherd({"cam": 2})
    for turn in range(3):
        old = suite.front()["pid"]
        rig.node.kubelet_freeze()
        os.kill(old, signal.SIGKILL)
        wait(lambda old=old: _registering(rig, old), 60, "the next front asks the frozen kubelet")  # type: ignore[misc]
        rig.node.kubelet_thaw()
        suite.wait_registered(CAM, timeout=20)
        rig.wait_allocatable("cam", 2)
        pod = rig.node.static(f"p{turn}", {CAM: 2})
        assert len(rig.got(pod)) == 2
        rig.node.unstatic(f"p{turn}")


@pytest.mark.skew
def test_a_kubelet_frozen_for_longer_than_register_may_take(rig: Rig) -> None:
    suite = rig.devherd({"cam": 2})
    old = suite.front()["pid"]
    rig.node.kubelet_freeze()
    os.kill(old, signal.SIGKILL)
    wait(lambda: _registering(rig, old), 60, "the next front asks the frozen kubelet")
    time.sleep(20)  # past the deadline of a Register call
    rig.node.kubelet_thaw()
    suite.wait_registered(CAM, timeout=20)
    rig.wait_allocatable("cam", 2)
    for turn in range(2):
        assert len(rig.got(rig.node.static(f"p{turn}", {CAM: 2}))) == 2
        rig.node.unstatic(f"p{turn}")
        _kill_front(rig)
        suite.wait_registered(CAM, timeout=20)
        rig.wait_allocatable("cam", 2)


def _kill_front(rig: Rig) -> None:
    """Kill it, and wait for the next one."""
    assert rig.suite is not None
    old = rig.suite.front()["pid"]
    os.kill(old, signal.SIGKILL)
    wait(lambda: _front(rig).get("pid", old) != old, 60, "another front")


def _front(rig: Rig) -> dict[str, object]:
    assert rig.suite is not None
    try:
        return rig.suite.front()
    except ControlError:
        return {}


def _registering(rig: Rig, old: int) -> bool:
    front = _front(rig)
    resources = front.get("resources")
    return bool(
        front and front["pid"] != old and isinstance(resources, list) and resources[0]["state"] == "registering"
    )
