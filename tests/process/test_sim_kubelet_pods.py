"""The simulated kubelet against the checklist: admission, allocation, containers, PodResources, pod status."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import podresources_v1_pb2 as prpb
from sim_stub import Bench, device, pod_resources

RES = "example.com/dev"
UNEXPECTED = "UnexpectedAdmissionError"


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(retry_ms=50) as made:
        made.kubelet.start()
        made.client.wait(event="sources-ready")
        yield made


def rejected(text: str) -> tuple[str, str, str]:
    return "Failed", UNEXPECTED, f"Pod was rejected: Allocate failed due to {text}, which is unexpected"


# Admission


def test_22_unhealthy_resource_rejects_the_pod_for_good(bench: Bench) -> None:
    stub = bench.plugin()
    stub.send([device("a0", False)])
    bench.client.wait_resource(RES, allocatable=0)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    expected = rejected(f"no healthy devices present; cannot allocate unhealthy devices {RES}")
    assert bench.phase("p") == expected
    stub.send([device("a0")])
    bench.client.wait_resource(RES, allocatable=1)
    assert bench.phase("p") == expected
    assert stub.allocates == []


def test_22_more_than_there_is(bench: Bench) -> None:
    bench.plugin(count=2)
    bench.client.pod_add("p", {RES: 3}, wait=5)
    assert bench.phase("p") == rejected(
        f"requested number of devices unavailable for {RES}. Requested: 3, Available: 2"
    )


def test_22_forgotten_resource_that_somebody_holds_is_unregistered(bench: Bench) -> None:
    bench.client.set(grace=0.1)
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    stub.stop()
    bench.client.wait(resource=RES, gone=True)
    bench.client.pod_add("q", {RES: 1}, wait=5)
    assert bench.phase("q") == rejected(f"cannot allocate unregistered device {RES}")
    reply = bench.client.ask("container-restart", name="p")
    assert reply["phase"] == "Running"
    waiting = bench.client.wait(event="container-waiting", pod="p")
    assert waiting["reason"] == "CreateContainerConfigError"
    assert waiting["error"] == f"endpoint not found in cache for a registered resource: {RES}"


def test_unknown_resource_passes_without_a_device(bench: Bench) -> None:
    bench.client.pod_add("p", {"example.com/never": 1}, wait=5)
    assert bench.phase("p")[0] == "Running"
    assert bench.ids("p", resource="example.com/never") == []


def test_25_allocate_carries_one_container_in_no_order_without_deadline(bench: Bench) -> None:
    stub = bench.plugin(count=30)
    bench.client.pod_add("p", {RES: 20}, wait=5)
    (ids,) = stub.allocates
    assert len(set(ids)) == 20
    assert ids != sorted(ids)
    assert stub.containers_asked == [1]
    deadline = stub.deadlines[0]
    assert deadline is None or deadline > 1e6
    assert bench.ids("p") == sorted(ids)


def test_25_zero_devices_asks_for_nothing(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 0}, wait=5)
    assert bench.phase("p")[0] == "Running"
    assert stub.allocates == []


def test_plugins_error_text_ends_up_in_pod_status(bench: Bench) -> None:
    stub = bench.plugin()
    stub.allocate_error = "unknown device"
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert bench.phase("p") == rejected("rpc error: code = FailedPrecondition desc = unknown device")
    stub.allocate_error = ""
    bench.client.pod_add("q", {RES: 2}, wait=5)
    assert bench.phase("q")[0] == "Running"


def test_26_preferred_allocation_is_advice(bench: Bench) -> None:
    stub = bench.plugin(count=4, register=False)
    stub.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
    stub.register()
    bench.client.wait_resource(RES, allocatable=4)
    stub.preferred_answer = ["a3", "stranger", "a1"]
    bench.client.pod_add("p", {RES: 2}, wait=5)
    assert stub.preferred == [({"a0", "a1", "a2", "a3"}, set(), 2)]
    assert bench.ids("p") == ["a1", "a3"]
    stub.preferred_answer = []
    bench.client.pod_add("q", {RES: 2}, wait=5)
    assert stub.preferred[1] == ({"a0", "a2"}, set(), 2), "asked although there is no choice left"
    assert bench.ids("q") == ["a0", "a2"]


def test_26_preferred_allocation_error_fails_the_pod(bench: Bench) -> None:
    stub = bench.plugin(count=4, register=False)
    stub.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
    stub.preferred_error = "confused"
    stub.register()
    bench.client.wait_resource(RES, allocatable=4)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert bench.phase("p") == rejected(
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = confused"
    )


def test_26_numa_aligned_devices_first(bench: Bench) -> None:
    bench.client.set(topology_policy="best-effort")
    stub = bench.plugin(count=1, register=False)
    stub.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
    stub.devices = [device(f"a{n}", numa=[n // 3]) for n in range(6)]
    stub.register()
    bench.client.wait_resource(RES, allocatable=6)
    bench.client.pod_add("p", {RES: 2}, wait=5)
    available, must, size = stub.preferred[0]
    assert (len(available), must, size) == (3, set(), 2), "case A: more aligned ones than needed"
    nodes = {int(i[1]) // 3 for i in bench.ids("p")}
    assert len(nodes) == 1
    bench.client.pod_add("q", {RES: 4}, wait=5)
    assert len(stub.preferred) == 1, "all aligned ones are needed: there is nothing to ask"
    assert len(bench.ids("q")) == 4


def test_single_numa_policy_refuses_what_does_not_fit(bench: Bench) -> None:
    bench.client.set(topology_policy="single-numa-node")
    stub = bench.plugin(count=1, register=False)
    stub.devices = [device(f"a{n}", numa=[n]) for n in range(2)]
    stub.register()
    bench.client.wait_resource(RES, allocatable=2)
    bench.client.pod_add("p", {RES: 2}, wait=5)
    assert bench.phase("p") == (
        "Failed",
        "TopologyAffinityError",
        "Pod was rejected: Resources cannot be allocated with Topology locality",
    )
    bench.client.pod_add("q", {RES: 1}, wait=5)
    assert bench.phase("q")[0] == "Running"


def test_27_no_response_is_an_error_and_the_ids_stay_marked(bench: Bench) -> None:
    stub = bench.plugin(count=2)
    stub.responses = 0
    bench.client.pod_add("p", {RES: 1}, wait=5)
    phase, reason, message = bench.phase("p")
    assert (phase, reason) == ("Failed", UNEXPECTED)
    assert "no containers return in allocation response" in message
    stub.responses = 1
    bench.client.pod_add("q", {RES: 2}, wait=5)
    assert "Requested: 2, Available: 1" in bench.phase("q")[2]


def test_27_only_the_first_response_counts(bench: Bench) -> None:
    stub = bench.plugin()
    stub.responses = 3
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert bench.phase("p")[0] == "Running"


def test_29_init_devices_are_reused_and_sidecars_keep_theirs(bench: Bench) -> None:
    stub = bench.plugin(count=3)
    bench.client.pod_add(
        "p",
        init=[{"name": "i", "requests": {RES: 1}}, {"name": "s", "requests": {RES: 1}, "sidecar": True}],
        containers=[{"name": "m", "requests": {RES: 1}}],
        wait=5,
    )
    assert bench.ids("p", "i") == bench.ids("p", "s"), "the sidecar takes over what the init container had"
    assert bench.ids("p", "m") != bench.ids("p", "s")
    assert stub.allocates[0] == stub.allocates[1], "Allocate is called again with the same ids"
    assert bench.pod_resources()["p"].keys() == {"s", "m"}


def test_31_a_pod_may_be_rejected_after_allocate_and_frees_its_devices_later(bench: Bench) -> None:
    stub = bench.plugin(count=1)
    bench.client.pod_add("p", {RES: 1}, late_reject="OutOfcpu", wait=5)
    assert bench.phase("p")[:2] == ("Failed", "OutOfcpu")
    assert stub.allocates == [["a0"]]
    bench.client.pod_add("q", {RES: 1}, wait=5)
    assert bench.phase("q")[0] == "Running"
    assert stub.allocates == [["a0"], ["a0"]]


def test_32_a_hung_allocate_stops_every_pod_and_shows(bench: Bench) -> None:
    bench.client.set(stall=0.3)
    stub = bench.plugin()
    bench.plugin("example.com/other", count=1)
    stub.hold_allocate = True
    bench.client.pod_add("p", {RES: 1})
    bench.client.wait(event="allocate", pod="p")
    bench.client.pod_add("q", {"example.com/other": 1}, wait=0.5)
    assert bench.phase("q")[0] == "Pending"
    node = bench.client.node()
    assert node["loop"]["doing"] == "add default/p"
    assert node["healthz"] == "syncloop: failed"
    stub.send([device("a0"), device("a1", False)])
    bench.client.wait_resource(RES, allocatable=1)
    stub.release()
    bench.client.wait_pod("q")
    assert bench.phase("p")[0] == "Running"
    assert bench.client.node()["healthz"] == "ok"


def test_full_disk_fails_the_admission_after_the_plugin_allocated(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.set(disk_full=True)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert bench.phase("p")[:2] == ("Failed", UNEXPECTED)
    assert "no space left on device" in bench.phase("p")[2]
    assert len(stub.allocates) == 1
    stub.send([device("a0")])
    bench.client.wait(event="checkpoint-failed")
    assert bench.resource() == (1, 1)


def test_40_an_id_that_vanishes_during_allocate_kills_the_kubelet(bench: Bench) -> None:
    stub = bench.plugin(count=1)
    stub.hold_allocate = True
    bench.client.pod_add("p", {RES: 1})
    bench.client.wait(event="allocate", pod="p")
    stub.send([device("b0")])
    bench.client.wait(event="list", healthy=1, resource=RES)
    bench.client.wait_resource(RES, capacity=1)
    stub.release()
    assert bench.kubelet.wait_exit() == 2
    with open(bench.kubelet.stderr) as file:
        assert "nil pointer dereference" in file.read()


# Containers


def test_24_container_restart_uses_the_cached_answer(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    before = bench.client.pods("p")[0]["containers"][0]["record"]
    after = bench.client.ask("container-restart", name="p", wait=5)["containers"][0]["record"]
    assert after["restarts"] == 1
    assert after["env"] == before["env"] == {"IDS": bench.ids("p")[0]}
    assert len(stub.allocates) == 1


def test_a_container_may_restart_on_an_unhealthy_device(bench: Bench) -> None:
    stub = bench.plugin(count=1)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    stub.send([device("a0", False)])
    bench.client.wait_resource(RES, allocatable=0)
    again = bench.client.ask("container-restart", name="p", wait=5)["containers"][0]
    assert again["record"]["restarts"] == 1


def test_28_pre_start_is_called_before_every_creation_and_retried(bench: Bench) -> None:
    stub = bench.plugin(count=2, register=False)
    stub.options = pb.DevicePluginOptions(pre_start_required=True)
    stub.pre_start_error = "not clean yet"
    stub.register()
    bench.client.wait_resource(RES, allocatable=2)
    bench.client.pod_add("p", {RES: 2})
    waiting = bench.client.wait(event="container-waiting", pod="p")
    assert waiting["reason"] == "CreateContainerConfigError"
    assert waiting["error"] == (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unavailable desc = not clean yet"
    )
    stub.pre_start_error = ""
    bench.client.wait_pod("p")
    count = len(stub.pre_starts)
    assert count >= 2
    assert all(sorted(ids) == ["a0", "a1"] for ids in stub.pre_starts)
    bench.client.ask("container-restart", name="p", wait=5)
    assert len(stub.pre_starts) == count + 1


def test_28_pre_start_has_a_deadline(bench: Bench) -> None:
    assert bench.client.set()["prestart_timeout"] == 30


def test_30_answers_of_two_resources_are_merged_and_the_first_wins(bench: Bench) -> None:
    for name in ("one", "two"):
        stub = bench.plugin(f"example.com/{name}", count=1)
        stub.answer = pb.ContainerAllocateResponse(
            envs={"SHARED": name, name: "x"},
            annotations={"note": "same"},
            devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/null", permissions="rw")],
            mounts=[pb.Mount(container_path="/m", host_path="/etc", read_only=True)],
            cdi_devices=[pb.CDIDevice(name="example.com/c=1")],
        )
    winners = set()
    for n in range(12):
        bench.client.pod_add(f"p{n}", {"example.com/one": 1, "example.com/two": 1}, wait=5)
        record = bench.client.pods(f"p{n}")[0]["containers"][0]["record"]
        winners.add(record["env"]["SHARED"])
        assert {"one", "two"} <= record["env"].keys()
        assert record["annotations"] == {"note": "same"}
        assert len(record["nodes"]) == len(record["mounts"]) == len(record["cdi"]) == 1
        assert len(record["conflicts"]) == 1
        bench.client.pod_rm(f"p{n}")
    assert winners == {"one", "two"}


def test_containers_get_the_real_number_of_a_device_node(bench: Bench) -> None:
    stub = bench.plugin()
    stub.answer = pb.ContainerAllocateResponse(
        devices=[pb.DeviceSpec(container_path="/dev/n", host_path="/dev/null", permissions="rw")]
    )
    bench.client.pod_add("p", {RES: 1}, wait=5)
    (node,) = bench.client.pods("p")[0]["containers"][0]["record"]["nodes"]
    found = os.stat("/dev/null").st_rdev
    assert node["number"] == f"c {os.major(found)}:{os.minor(found)}"
    assert node["container_path"] == "/dev/n"


@pytest.mark.parametrize(
    ("path", "permissions", "reason", "phase"),
    [
        ("/dev/not-there", "rw", "CreateContainerError", "Pending"),
        ("/dev/null", "", "RunContainerError", "Running"),
        ("/dev/null", "rx", "RunContainerError", "Running"),
    ],
)
def test_a_node_the_runtime_cannot_make_keeps_the_container_waiting(
    bench: Bench, path: str, permissions: str, reason: str, phase: str
) -> None:
    stub = bench.plugin()
    stub.answer = pb.ContainerAllocateResponse(
        devices=[pb.DeviceSpec(container_path="/dev/n", host_path=path, permissions=permissions)]
    )
    bench.client.pod_add("p", {RES: 1})
    waiting = bench.client.wait(event="container-waiting", pod="p")
    assert waiting["reason"] == reason
    assert path in waiting["error"]
    assert bench.phase("p")[0] == phase


def test_cdi_names_are_resolved_by_runtimes_that_know_cdi(bench: Bench) -> None:
    stub = bench.plugin(count=3)
    stub.answer = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="example.com/dev=a0")])
    bench.client.pod_add("old-runtime", {RES: 1}, wait=5)
    folder = os.path.join(bench.folder, "cdi")
    bench.client.set(cdi_dirs=[folder])
    bench.client.pod_add("p", {RES: 1})
    waiting = bench.client.wait(event="container-waiting", pod="p")
    assert waiting["reason"] == "CreateContainerError"
    assert waiting["error"] == "CDI device injection failed: unresolvable CDI devices example.com/dev=a0"
    os.makedirs(folder)
    edits = {"env": ["FROM=cdi"], "deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null"}]}
    with open(os.path.join(folder, "x.json"), "w") as file:
        json.dump({"kind": "example.com/dev", "devices": [{"name": "a0", "containerEdits": edits}]}, file)
    record = bench.client.wait_pod("p")["containers"][0]["record"]
    assert record["env"]["FROM"] == "cdi"
    assert [(n["host_path"], n["container_path"]) for n in record["nodes"]] == [("/dev/null", "/dev/x")]


def test_removed_pods_free_their_devices(bench: Bench) -> None:
    bench.plugin(count=1)
    for _ in range(3):
        bench.client.pod_add("p", {RES: 1}, wait=5)
        assert bench.phase("p")[0] == "Running"
        bench.client.pod_rm("p")


def test_succeeded_pods_free_their_devices(bench: Bench) -> None:
    bench.plugin(count=1)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    bench.client.ask("pod-exit", name="p")
    assert bench.pod_resources() == {}
    bench.client.pod_add("q", {RES: 1}, wait=5)
    assert bench.phase("q")[0] == "Running"


# What others can see


def test_34_list_shows_sidecars_and_regular_containers_of_active_pods(bench: Bench) -> None:
    bench.plugin(count=3)
    bench.client.pod_add("p", {RES: 2}, init=[{"name": "i", "requests": {RES: 1}}], wait=5)
    bench.client.pod_add("none", wait=5)
    bench.client.pod_add("bad", {RES: 5}, wait=5)
    seen = bench.pod_resources()
    assert seen["p"] == {"main": bench.ids("p")}
    assert seen["none"] == {"main": []}
    assert "bad" not in seen


def test_34_get_finds_one_active_pod(bench: Bench) -> None:
    bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    path = bench.kubelet.places.pod_resources
    reply = pod_resources(bench.loop, path, "Get", prpb.GetPodResourcesRequest(pod_name="p", pod_namespace="default"))
    assert reply.pod_resources.name == "p"
    with pytest.raises(grpc.aio.AioRpcError, match="not found"):
        pod_resources(bench.loop, path, "Get", prpb.GetPodResourcesRequest(pod_name="q", pod_namespace="default"))


def test_34_allocatable_repeats_devices_per_numa_node_and_omits_empty_topology(bench: Bench) -> None:
    stub = bench.plugin()
    stub.send([device("both", numa=[0, 1]), device("empty", numa=[]), device("unset"), device("sick", False)])
    bench.client.wait_resource(RES, capacity=4)
    reply = pod_resources(
        bench.loop,
        bench.kubelet.places.pod_resources,
        "GetAllocatableResources",
        prpb.AllocatableResourcesRequest(),
    )
    seen = sorted((d.device_ids[0], [n.ID for n in d.topology.nodes]) for d in reply.devices)
    assert seen == [("both", [0]), ("both", [1]), ("unset", [])]


def test_34_list_repeats_devices_per_numa_node(bench: Bench) -> None:
    stub = bench.plugin()
    stub.send([device("both", numa=[0, 1])])
    bench.client.wait_resource(RES, capacity=1)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert bench.pod_resources() == {"p": {"main": ["both", "both"]}}


def test_34_pod_resources_has_node_numbers_as_the_plugin_said_them(bench: Bench) -> None:
    stub = bench.plugin()
    stub.send([device("a0", numa=[7])])
    bench.client.wait_resource(RES, capacity=1)
    path = bench.kubelet.places.pod_resources
    reply = pod_resources(bench.loop, path, "GetAllocatableResources", prpb.AllocatableResourcesRequest())
    assert [[n.ID for n in d.topology.nodes] for d in reply.devices] == [[7]]


def test_34_v1alpha1_lists_every_pod_with_regular_containers_and_no_topology(bench: Bench) -> None:
    stub = bench.plugin()
    stub.send([device("a0", numa=[0, 1])])
    bench.client.wait_resource(RES, capacity=1)
    bench.client.pod_add("p", {RES: 1}, init=[{"name": "side", "sidecar": True}], wait=5)
    bench.client.pod_add("refused", {RES: 1}, wait=5)
    seen = {pod.name: {c.name: list(c.devices) for c in pod.containers} for pod in old_list(bench).pod_resources}
    once = prpb.ContainerDevices(resource_name=RES, device_ids=["a0"])
    assert seen == {"p": {"main": [once, once]}, "refused": {"main": []}}


def test_34_versions_share_the_limit(bench: Bench) -> None:
    bench.client.set(list_qps=0.01)
    for _ in range(10):
        old_list(bench)
    assert limited(bench) == "rejected by rate limit"


def old_list(bench: Bench) -> prpb.ListPodResourcesResponse:
    async def call() -> prpb.ListPodResourcesResponse:
        async with grpc.aio.insecure_channel("unix:" + bench.kubelet.places.pod_resources) as channel:
            stub = channel.unary_unary(
                "/v1alpha1.PodResourcesLister/List",
                request_serializer=prpb.ListPodResourcesRequest.SerializeToString,
                response_deserializer=prpb.ListPodResourcesResponse.FromString,
            )
            reply: prpb.ListPodResourcesResponse = await stub(prpb.ListPodResourcesRequest(), timeout=5)
            return reply

    return bench.loop.run(call())


def test_34_too_many_calls_are_refused(bench: Bench) -> None:
    bench.client.set(list_qps=1)
    texts = [limited(bench) for _ in range(14)]
    assert texts[:10] == [""] * 10
    assert texts.count("rejected by rate limit") >= 2


def limited(bench: Bench) -> str:
    try:
        bench.pod_resources()
    except grpc.aio.AioRpcError as error:
        return error.details() or ""
    return ""


def test_35_pod_status_shows_health_and_calls_a_missing_id_healthy(bench: Bench) -> None:
    stub = bench.plugin(count=1)
    bench.client.pod_add("p", {RES: 1}, wait=5)

    def shown() -> object:
        return bench.client.pods("p")[0]["containers"][0]["allocated_resources_status"]

    assert shown() == {RES: {"a0": "Healthy"}}
    stub.send([device("a0", False)])
    bench.client.wait_resource(RES, allocatable=0)
    assert shown() == {RES: {"a0": "Unhealthy"}}
    stub.stop()
    bench.client.wait_resource(RES, stopped=True)
    assert shown() == {RES: {"a0": "Unhealthy"}}, "losing the plugin changes nothing"


def test_35_a_missing_id_is_shown_healthy(bench: Bench) -> None:
    stub = bench.plugin(count=1)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    stub.send([device("b0", False)])
    bench.client.wait_resource(RES, allocatable=0)
    container = bench.client.pods("p")[0]["containers"][0]
    assert container["allocated_resources_status"] == {RES: {"a0": "Healthy"}}


def test_38_a_frozen_kubelet_accepts_and_never_answers(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.ask("freeze")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        stub.register(timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    stub.send([device("a0")])
    bench.client.pod_add("p", {RES: 1}, wait=0.2)
    assert bench.phase("p")[0] == "Pending"
    assert bench.resource() == (2, 2)
    assert stub.open_streams == 1
    bench.client.ask("unfreeze")
    bench.client.wait_resource(RES, allocatable=1)
    bench.client.wait_pod("p")


def test_38_a_stopped_process_accepts_and_never_answers(bench: Bench) -> None:
    stub = bench.plugin()
    bench.kubelet.freeze()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        stub.register(timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    bench.kubelet.unfreeze()
    stub.register()
    assert bench.kubelet.alive


def test_waiting_is_by_event_and_many_can_wait(bench: Bench) -> None:
    from devherd.sim.client import SimClient

    met: list[float] = []

    def wait() -> None:
        SimClient(bench.kubelet.places.control).wait_resource(RES, allocatable=2)
        met.append(time.monotonic())

    waiters = [threading.Thread(target=wait) for _ in range(5)]
    for one in waiters:
        one.start()
    bench.plugin()
    for one in waiters:
        one.join(5)
    assert len(met) == 5
