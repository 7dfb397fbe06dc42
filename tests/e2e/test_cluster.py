"""With an API server: what node and pod objects say. Numbers in names are those of the acceptance cases (README.md)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from e2e import podresources
from e2e import pods as shapes
from e2e.controlplane import ControlPlane
from e2e.node import NAME, pods_after
from e2e.programs import wait
from e2e.rig import Rig, name

CAM = name("cam")


def test_case_6_a_succeeded_pod_stays_so_without_its_plugin(cluster_rig: Rig) -> None:
    rig = cluster_rig
    suite = rig.devherd({"cam": 2})
    pod = _pod(rig, "ends", {CAM: 1}, command="exit 0", restartPolicy="Never", finalizer="example.com/kept")
    _wait_phase(rig, pod, "Succeeded")
    suite.supervisor.stop(30)
    rig.wait_counts("cam", 2, 0)
    rig.node.kubelet_restart()
    rig.wait_counts("cam", 0, 0)
    seen = {_phase(rig, pod) for _ in _for_a_while(rig)}
    assert seen == {"Succeeded"}
    _cluster(rig).kubectl("patch", "pod", pod, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_case_9_a_pod_deleted_while_the_kubelet_is_down(cluster_rig: Rig) -> None:
    rig = cluster_rig
    rig.devherd({"cam": 2})
    pod = _pod(rig, "gone", {CAM: 1})
    container = rig.node.wait_pod(pod).containers["c"].id
    rig.node.kubelet_stop()
    _cluster(rig).kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    rig.node.kubelet_start()
    rig.node.wait_healthy()
    wait(lambda: container not in rig.node.containerd.ctr("tasks", "ls"), 60, "the container is gone")
    assert not podresources.held().get(CAM)
    rig.wait_counts("cam", 2, 2)
    assert len(rig.got(_pod(rig, "all", {CAM: 2}))) == 2


def test_case_14_and_15_health_in_the_node_object(cluster_rig: Rig) -> None:
    rig = cluster_rig
    rig.devherd({"cam": 1})
    rig.wait_counts("cam", 1, 1)
    rig.lose("cam", 0)
    rig.wait_counts("cam", 1, 0)
    rig.find("cam", 0)
    rig.wait_counts("cam", 1, 1)
    pod = _pod(rig, "one", {CAM: 1})
    rig.node.wait_pod(pod)
    rig.lose("cam", 0)
    rig.wait_counts("cam", 1, 0)
    assert rig.node.wait_pod(pod).running
    _cluster(rig).kubectl("delete", "pod", pod)
    # Listed for as long as the grace for vanished devices lasts, then not at all; never allocatable.
    counts = rig.node.resources()[CAM]
    assert counts in ((1, 0), (0, 0))


def test_case_16_four_devices_come_and_go(cluster_rig: Rig) -> None:
    rig = cluster_rig
    rig.devherd({"cam": 4}, {"health": {"recover": 1.0, "flap_window": 0.0}, "snapshots": {"grace": 600.0}})
    rig.wait_counts("cam", 4, 4)
    for lost, found, left in (((3,), (), 3), ((), (3,), 4), ((0, 1), (), 2), ((), (0,), 3), ((), (1,), 4)):
        for n in lost:
            rig.lose("cam", n)
        for n in found:
            rig.find("cam", n)
        rig.wait_counts("cam", 4, left)


def test_case_26_counts_over_the_lives_of_kubelet_and_plugin(cluster_rig: Rig) -> None:
    """Expiry after five minutes is in test_grace.py."""
    rig = cluster_rig
    suite = rig.devherd({"cam": 2, "tape": 1})
    rig.wait_counts("cam", 2, 2)
    suite.supervisor.stop(30)
    rig.wait_counts("cam", 2, 0)
    rig.wait_counts("tape", 1, 0)
    rig.node.kubelet_restart()
    rig.wait_counts("cam", 0, 0)
    assert CAM in rig.node.checkpoint()["RegisteredDevices"], "still known as a device plugin's resource"
    assert CAM in rig.node.resources()
    suite.boot()
    rig.wait_counts("cam", 2, 2)
    rig.wait_counts("tape", 1, 1)


def test_case_32_a_pod_that_ended_asks_for_nothing_after_a_restart(cluster_rig: Rig) -> None:
    rig = cluster_rig
    suite = rig.devherd({"cam": 1})
    pod = _pod(rig, "ends", {CAM: 1}, command="exit 0", restartPolicy="Never")
    _wait_phase(rig, pod, "Succeeded")
    calls = _allocations(suite.states()[CAM])
    rig.node.kubelet_restart()
    rig.wait_counts("cam", 1, 1)
    assert _phase(rig, pod) == "Succeeded"
    assert _allocations(suite.states()[CAM]) == calls
    # Freed lazily: a pod that comes before the kubelet has seen again that the first one ended is rejected.
    wait(lambda: _runs(rig), 60, "another pod gets the device", every=2.0)


def test_describe_node_and_pod_yaml_show_the_devices(cluster_rig: Rig) -> None:
    rig = cluster_rig
    rig.devherd({"cam": 3})
    pod = _pod(rig, "two", {CAM: 2})
    rig.node.wait_pod(pod)
    rig.wait_counts("cam", 3, 3)
    said = _cluster(rig).kubectl("describe", "node", NAME)
    for section, count in (("Capacity", 3), ("Allocatable", 3), ("Allocated resources", 2)):
        part = said.partition(f"{section}:\n")[2]
        assert re.search(rf"{CAM}:?\s+{count}\b", part), f"{section}: {said}"
    ids = rig.holds(pod)

    def status() -> Mapping[str, str]:
        text = _cluster(rig).kubectl("get", "pod", pod, "-o", "yaml")
        assert "kind: Pod" in text
        resources = json.loads(_cluster(rig).kubectl("get", "pod", pod, "-o", "json"))["status"]["containerStatuses"][0]
        listed = [one for one in resources.get("allocatedResourcesStatus", []) if one["name"] == CAM]
        return {each["resourceID"]: each["health"] for one in listed for each in one["resources"]}

    wait(lambda: status() == dict.fromkeys(ids, "Healthy"), 30, "allocatedResourcesStatus names both devices")
    rig.lose("cam", int(rig.got(pod)[0][-1]))
    wait(
        lambda: sorted(status().values()) == ["Healthy", "Unhealthy"], 30, "one of them is unhealthy in the pod object"
    )


def test_the_scheduler_places_by_what_devherd_lists(cluster_rig: Rig) -> None:
    rig = cluster_rig
    rig.devherd({"cam": 2})
    rig.wait_counts("cam", 2, 2)
    for n in range(3):
        _cluster(rig).apply(_document(f"p{n}", {CAM: 1}, {}))
    wait(
        lambda: sorted(_phase(rig, f"p{n}") for n in range(3)) == ["Pending", "Running", "Running"],
        60,
        "two of three run",
    )
    running = [f"p{n}" for n in range(3) if _phase(rig, f"p{n}") == "Running"]
    assert {path for pod in running for path in rig.got(pod)} == {"/dev/cam/cam0", "/dev/cam/cam1"}
    _cluster(rig).kubectl("delete", "pod", running[0])
    wait(lambda: all(_phase(rig, f"p{n}") in ("Running", "") for n in range(3)), 60, "the third runs")


def test_drain_and_back(cluster_rig: Rig) -> None:
    rig = cluster_rig
    suite = rig.devherd({"cam": 2})
    pod = _pod(rig, "one", {CAM: 1})
    rig.node.wait_pod(pod)
    wait(lambda: suite.states()[CAM]["held"] == 1, 60, "devherd knows who holds the device")
    _cluster(rig).kubectl("drain", NAME, "--force", "--ignore-daemonsets", "--timeout=60s")
    assert not rig.node.pods()
    rig.wait_counts("cam", 2, 2)
    _cluster(rig).kubectl("uncordon", NAME)
    assert len(rig.got(_pod(rig, "all", {CAM: 2}))) == 2


def test_api_pods_survive_a_reboot(cluster_rig: Rig) -> None:
    rig = cluster_rig
    suite = rig.devherd({"cam": 2, "tape": 1})
    pods = [_pod(rig, "cams", {CAM: 2}), _pod(rig, "tapes", {name("tape"): 1})]
    before = {pod: rig.got(pod) for pod in pods}
    rig.calm()
    rig.node.reboot(suite.power_cycle)
    views = pods_after(rig.node, pods)
    assert not [view for view in views.values() if view.failed]
    assert {pod: rig.got(pod) for pod in pods} == before


def _cluster(rig: Rig) -> ControlPlane:
    assert rig.node.cluster is not None
    return rig.node.cluster


def _document(pod: str, requests: Mapping[str, int], container: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    return shapes.manifest(pod, [shapes.container("c", requests, **container)], **spec)


def _pod(rig: Rig, pod: str, requests: Mapping[str, int], command: str = shapes.SLEEP, **more: Any) -> str:
    """A pod that is bound to the node already; the scheduler has tests of its own."""
    finalizer = more.pop("finalizer", "")
    document = _document(pod, requests, {"command": command}, nodeName=NAME, **more)
    if finalizer:
        document["metadata"]["finalizers"] = [finalizer]
    _cluster(rig).apply(document)
    return pod


def _phase(rig: Rig, pod: str) -> str:
    return str(_cluster(rig).get("pod", pod).get("status", {}).get("phase", ""))


def _runs(rig: Rig) -> bool:
    pod = _pod(rig, f"next-{time.monotonic_ns()}", {CAM: 1})
    view = pods_after(rig.node, [pod])[pod]
    if view.failed:
        _cluster(rig).kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    return view.running


def _wait_phase(rig: Rig, pod: str, phase: str) -> None:
    wait(lambda: _phase(rig, pod) == phase, 60, f"pod {pod} is {phase}", every=0.2)


def _for_a_while(rig: Rig) -> Any:
    """Looks over half a minute, in which the kubelet syncs every pod several times."""

    end = time.monotonic() + 30
    while time.monotonic() < end:
        yield None
        time.sleep(1)


def _allocations(state: Mapping[str, Any]) -> int:
    return int(state["counters"]["allocations"])
