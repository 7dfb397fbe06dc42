"""Pods and devices on a kubelet that stands alone. Numbers in names are those of the acceptance cases (README.md)."""

from __future__ import annotations

import contextlib
import os
import signal

import grpc
import pytest
from devherd.control import ControlError

from e2e import podresources
from e2e.node import pods_after
from e2e.pods import container
from e2e.programs import wait
from e2e.rig import Rig, name

CAM = name("cam")


@pytest.mark.skew
def test_case_1_a_pod_gets_one_of_two_devices(rig: Rig) -> None:
    rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    got = rig.got(pod)
    assert len(got) == 1
    for version in ("v1", "v1alpha1"):
        held = podresources.held(version)[CAM]
        assert list(held.values()) == [(f"{pod}/c",)], version
    assert rig.health(pod, "cam") == {"Healthy"}


@pytest.mark.skew
def test_case_3_a_container_that_ends_keeps_its_device(rig: Rig) -> None:
    rig.devherd({"cam": 2})
    pod = rig.node.static("first", {CAM: 1})
    before, device = rig.node.wait_pod(pod).containers["c"], rig.got(pod)
    rig.node.containerd.ctr("tasks", "kill", "-s", "SIGKILL", before.id)
    _again(rig, pod, before.id)
    assert rig.got(pod) == device
    other = rig.node.static("second", {CAM: 1})
    assert sorted(device + rig.got(other)) == ["/dev/cam/cam0", "/dev/cam/cam1"]


@pytest.mark.skew
@pytest.mark.parametrize("layout", ["subfolder", "top"])
def test_case_4_a_kubelet_restart_costs_nothing(rig: Rig, layout: str) -> None:
    rig.devherd({"cam": 2}, {"kubelet": {"layout": layout}})
    pod = rig.node.static("one", {CAM: 1})
    before, device, held = rig.node.wait_pod(pod), rig.got(pod), rig.holds(pod)
    for number in (signal.SIGTERM, signal.SIGKILL):
        rig.node.kubelet_restart(number)
        rig.wait_allocatable("cam", 2)
        _same(rig, pod, before.containers["c"].id)
        assert rig.got(pod) == device
        wait(lambda: rig.holds(pod) == held, 30, "PodResources knows the pod again")


@pytest.mark.skew
def test_case_5_container_restart_then_kubelet_restart(rig: Rig) -> None:
    rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    before, device, held = rig.node.wait_pod(pod).containers["c"], rig.got(pod), rig.holds(pod)
    rig.node.containerd.ctr("tasks", "kill", "-s", "SIGKILL", before.id)
    _again(rig, pod, before.id)
    rig.node.kubelet_restart()
    rig.node.wait_pod(pod)
    assert rig.got(pod) == device
    wait(lambda: rig.holds(pod) == held, 30, "PodResources knows the pod again")


@pytest.mark.skew
def test_case_7_a_plugin_that_is_killed_comes_back(rig: Rig) -> None:
    suite = rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    before, device = rig.node.wait_pod(pod), rig.got(pod)
    old = suite.front()["pid"]
    os.kill(old, signal.SIGKILL)
    wait(lambda: _pid(rig) not in (0, old), 30, "another front")
    suite.wait_registered(CAM)
    rig.wait_allocatable("cam", 2)
    _same(rig, pod, before.containers["c"].id)
    assert rig.got(pod) == device
    second = rig.node.static("two", {CAM: 1})
    assert rig.got(second) != device


@pytest.mark.skew
def test_case_8_kubelet_restart_then_the_plugin_is_started_again(rig: Rig) -> None:
    suite = rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    before, device = rig.node.wait_pod(pod), rig.got(pod)
    suite.supervisor.stop(30)
    rig.node.kubelet_restart()
    assert rig.allocatable("cam") == 0
    suite.boot()
    rig.wait_allocatable("cam", 2)
    _same(rig, pod, before.containers["c"].id)
    assert rig.got(pod) == device


@pytest.mark.skew
def test_case_10_init_container_sidecar_and_container(rig: Rig) -> None:
    rig.devherd({"cam": 2})
    pod = rig.node.static(
        "trio",
        init=[
            container("first", {CAM: 1}, "ls /dev/cam > /dev/termination-log"),
            container("side", {CAM: 1}, restartPolicy="Always"),
        ],
        containers=[container("c", {CAM: 1})],
    )
    view = rig.node.wait_pod(pod)
    side, regular = rig.got(pod, "side"), rig.got(pod)
    assert f"/dev/cam/{_said(view.raw, 'first')}" in side
    assert sorted(side + regular) == ["/dev/cam/cam0", "/dev/cam/cam1"]
    assert _owners() == [f"{pod}/c", f"{pod}/side"]


@pytest.mark.skew
def test_case_11_and_12_a_reboot_without_the_plugin_costs_the_pod(rig: Rig) -> None:
    suite = rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    rig.node.wait_pod(pod)
    rig.node.reboot(suite.crash)
    rig.wait_lost(pod, "no healthy devices present; cannot allocate unhealthy devices")
    assert pod not in str(podresources.held())
    assert rig.allocatable("cam") == 0


@pytest.mark.skew
@pytest.mark.parametrize("layout", ["subfolder", "top"])
def test_a_reboot_with_the_plugin_costs_no_pod(rig: Rig, layout: str) -> None:
    """What devherd is for: the other half of cases 11 and 12."""
    suite = rig.devherd({"cam": 2, "tape": 1}, {"kubelet": {"layout": layout}})
    pods = [rig.node.static("cams", {CAM: 2}), rig.node.static("tapes", {name("tape"): 1})]
    before = {pod: rig.got(pod) for pod in pods}

    for _ in range(3):
        rig.calm()
        rig.node.reboot(suite.power_cycle)
        views = pods_after(rig.node, pods)
        assert not [view for view in views.values() if view.failed]
        assert {pod: rig.got(pod) for pod in pods} == before


def test_case_20_the_pods_status_says_that_its_device_is_unhealthy(rig: Rig) -> None:
    rig.devherd({"cam": 1})
    pod = rig.node.static("one", {CAM: 1})
    rig.node.wait_pod(pod)
    wait(lambda: rig.health(pod, "cam") == {"Healthy"}, 30, "Healthy in the pod's status")
    rig.lose("cam", 0)
    wait(lambda: rig.health(pod, "cam") == {"Unhealthy"}, 30, "Unhealthy in the pod's status")
    rig.find("cam", 0)
    wait(lambda: rig.health(pod, "cam") == {"Healthy"}, 30, "Healthy again")


def test_case_21_the_same_for_a_pod_whose_image_is_missing(rig: Rig) -> None:
    rig.devherd({"cam": 1})
    pod = rig.node.static("one", {CAM: 1}, image="localhost/missing:1")
    wait(lambda: rig.health(pod, "cam") == {"Healthy"}, 30, "Healthy in the pod's status")
    rig.lose("cam", 0)
    wait(lambda: rig.health(pod, "cam") == {"Unhealthy"}, 30, "Unhealthy in the pod's status")
    view = rig.node.pod(pod)
    assert view is not None
    assert view.containers["c"].waiting in ("ErrImageNeverPull", "ImagePullBackOff")


@pytest.mark.skew
def test_case_22_podresources_asked_too_often_misleads_nobody(rig: Rig) -> None:
    suite = rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    rig.node.wait_pod(pod)
    refused = podresources.ask_for(8.0)
    assert refused
    state = suite.states()[CAM]
    assert (state["state"], state["healthy"]) == ("registered", 2)
    wait(lambda: suite.states()[CAM]["held"] == 1, 30, "devherd knows who holds the device")


@pytest.mark.skew
def test_case_23_and_24_only_active_pods_are_listed(rig: Rig, line: str) -> None:
    rig.devherd({"cam": 3})
    ended = rig.node.static("ended", {CAM: 1}, command="exit 0", restartPolicy="Never")
    runs = rig.node.static("runs", {CAM: 1})
    rig.node.wait_pod(ended, "Succeeded")
    rig.node.wait_pod(runs)
    _wait_owners(f"{runs}/c")
    assert podresources.held_by(runs) == {CAM: dict.fromkeys(rig.holds(runs), (f"{runs}/c",))}
    for _ in range(2):
        _wait_owners(f"{runs}/c")
        if line not in ("1.34", "1.35"):  # these answer for any pod
            with pytest.raises(grpc.RpcError):
                podresources.held_by(ended)
        before = rig.holds(runs)
        rig.node.kubelet_restart()
        wait(lambda: rig.holds(runs) == before, 30, "PodResources knows the pod again")  # noqa: B023


@pytest.mark.skew
def test_case_25_other_sockets_replace_the_old_ones(rig: Rig) -> None:
    suite = rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    device = rig.got(pod)
    for layout in ("top", "subfolder"):
        suite.supervisor.stop(30)
        suite.write_settings({**suite.wish.settings, "kubelet": {"layout": layout}})
        suite.boot()
        suite.wait_registered(CAM)
        rig.wait_allocatable("cam", 2)
        assert suite.front()["layout"] == layout
    assert rig.got(pod) == device
    assert rig.got(rig.node.static("two", {CAM: 1})) != device


@pytest.mark.skew
def test_case_27_allocatable_devices_follow_health_for_each_resource(rig: Rig) -> None:
    rig.devherd({"cam": 2, "tape": 2})
    both = rig.ids("cam")
    rig.lose("cam", 1)
    rig.wait_allocatable("cam", 1)
    assert rig.ids("cam") < both
    assert rig.allocatable("tape") == 2
    rig.find("cam", 1)
    rig.wait_allocatable("cam", 2)
    assert rig.ids("cam") == both


@pytest.mark.skew
def test_case_29_too_many_devices(rig: Rig) -> None:
    rig.devherd({"cam": 2})
    pod = rig.node.static("three", {CAM: 3})
    rig.wait_lost(pod, f"requested number of devices unavailable for {CAM}. Requested: 3, Available: 2")
    assert len(rig.got(rig.node.static("two", {CAM: 2}))) == 2


def test_case_30_the_admission_errors(rig: Rig) -> None:
    suite = rig.devherd({"cam": 1, "tape": 1})
    holder = rig.node.static("holder", {name("tape"): 1})
    rig.node.wait_pod(holder)
    rig.lose("cam", 0)
    rig.wait_allocatable("cam", 0)
    rig.wait_lost(
        rig.node.static("unhealthy", {CAM: 1}), "no healthy devices present; cannot allocate unhealthy devices"
    )
    # A pod whose device is lost while the node is down is told so, and gets no other one.
    rig.node.kubelet_stop(signal.SIGKILL)
    rig.node.containerd.containers_gone()
    rig.lose("tape", 0)
    wait(lambda: suite.healthy(name("tape")) == 0, 30, "devherd noticed")
    rig.node.kubelet_start()
    rig.wait_lost(holder, "cannot allocate unhealthy devices")


def test_case_31_pods_that_come_and_go_at_once(rig: Rig) -> None:
    """With preferred allocation asked for while devices become free."""
    rig.devherd({"cam": 4})
    for turn in range(3):
        pods = [rig.node.static(f"p{turn}{n}", {CAM: 2}, command="exit 0", restartPolicy="Never") for n in range(4)]
        wait(
            lambda pods=pods: all(
                view is not None and view.phase in ("Succeeded", "Failed") for view in map(rig.node.pod, pods)
            ),  # type: ignore[misc]
            60,
            "every pod came to an end",
        )
        for pod in pods:
            rig.node.unstatic(pod.removesuffix("-n1"))
    assert rig.allocatable("cam") == 4
    assert len(rig.got(rig.node.static("all", {CAM: 4}))) == 4


def test_a_kubelet_that_is_frozen_for_a_while(rig: Rig) -> None:
    suite = rig.devherd({"cam": 2})
    pod = rig.node.static("one", {CAM: 1})
    before = rig.node.wait_pod(pod).containers["c"].id
    rig.node.kubelet_freeze()
    rig.lose("cam", 0)
    wait(lambda: suite.healthy(CAM) == 1, 30, "devherd noticed")
    rig.node.kubelet_thaw()
    rig.wait_allocatable("cam", 1)
    _same(rig, pod, before)


def _same(rig: Rig, pod: str, id: str) -> None:
    """The very container still runs."""
    view = rig.node.wait_pod(pod)
    assert view.containers["c"].id == id


def _again(rig: Rig, pod: str, old: str) -> None:
    """Another container of the same pod runs."""

    def look() -> bool:
        view = rig.node.pod(pod)
        return view is not None and view.running and view.containers["c"].id != old

    wait(look, 60, f"{pod}'s container was started again")


def _owners() -> list[str]:
    """Who has a camera, by PodResources; nobody while it does not answer."""
    with contextlib.suppress(grpc.RpcError):
        return sorted(owner for owners in podresources.held().get(CAM, {}).values() for owner in owners)
    return []


def _wait_owners(*owners: str) -> None:
    """After a start and after a pod's end the list takes a moment to be right."""
    wait(lambda: _owners() == sorted(owners), 60, f"PodResources lists {owners} alone")


def _pid(rig: Rig) -> int:
    assert rig.suite is not None
    try:
        return int(rig.suite.front()["pid"])
    except ControlError:
        return 0


def _said(pod: object, init: str) -> str:
    """What an init container wrote as its last message."""
    states = pod["status"]["initContainerStatuses"]  # type: ignore[index]
    return next(str(one["state"]["terminated"]["message"]).strip() for one in states if one["name"] == init)
