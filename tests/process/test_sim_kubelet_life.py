"""The simulated kubelet against the checklist: restarts, reboots, what is replayed, and that it stays small."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.sim import nodespec
from devherd.sim.client import SimClient, SimError
from devherd.sim.kubelet_process import SimKubelet
from devherd.sim.node import Node
from sim_stub import Bench, device

RES = "example.com/dev"
NO_HEALTHY = (
    "Failed",
    "UnexpectedAdmissionError",
    "Pod was rejected: Allocate failed due to no healthy devices present; "
    f"cannot allocate unhealthy devices {RES}, which is unexpected",
)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(retry_ms=50) as made:
        made.kubelet.start()
        made.client.wait(event="sources-ready")
        yield made


def checkpoint(bench: Bench) -> str:
    return os.path.join(bench.kubelet.places.device_plugins, "kubelet_internal_checkpoint")


def test_21_after_a_restart_resources_are_there_with_zero_capacity(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    bench.kubelet.restart()
    node = bench.client.node()["resources"][RES]
    assert (node["capacity"], node["allocatable"], node["stopped"]) == (0, 0, True)
    assert list(node["held"].values()) == ["default/p/main"]
    stub.register()
    bench.client.wait_resource(RES, capacity=2, allocatable=2, stopped=False)


def test_21_never_registered_again_is_forgotten(bench: Bench) -> None:
    bench.plugin()
    bench.kubelet.restart()
    bench.client.set(grace=0.2)
    bench.client.wait(resource=RES, gone=True)


def test_23_running_containers_survive_a_restart_without_their_plugin(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    ids = bench.ids("p")
    bench.kubelet.restart()
    bench.client.wait(event="sources-ready")
    assert bench.phase("p")[0] == "Running"
    assert bench.client.events(what="running-bypass")
    assert bench.pod_resources() == {"p": {"main": ids}}
    stub.register()
    bench.client.wait_resource(RES, allocatable=2)
    assert len(stub.allocates) == 1


def test_23_completed_init_container_is_not_covered(bench: Bench) -> None:
    bench.plugin()
    bench.client.pod_add("p", {RES: 1}, init=[{"requests": {RES: 1}}], wait=5)
    assert bench.phase("p")[0] == "Running"
    bench.kubelet.restart()
    bench.client.wait(event="sources-ready")
    assert bench.phase("p") == NO_HEALTHY


def test_24_reboot_replays_the_answer_when_the_plugin_is_in_time(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    ids = bench.ids("p")
    bench.kubelet.set(admit_gap_ms=400)
    bench.reboot()
    stub.register()
    bench.client.wait(event="sources-ready")
    found = bench.client.wait_pod("p")["containers"][0]
    assert found["devices"] == {RES: ids}
    assert found["record"]["kubelet_pid"] == bench.kubelet.pid
    assert found["record"]["env"] == {"IDS": ids[0]}
    assert len(stub.allocates) == 1


def test_reboot_loses_the_pod_when_the_plugin_is_late(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    bench.reboot()
    bench.client.wait(event="sources-ready")
    stub.register()
    bench.client.wait_resource(RES, allocatable=2)
    assert bench.phase("p") == NO_HEALTHY
    assert bench.pod_resources() == {}


def test_reboot_loses_the_pod_when_its_device_is_not_healthy(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    (held,) = bench.ids("p")
    stub.devices = [device(f"a{n}", f"a{n}" != held) for n in range(2)]
    bench.kubelet.set(admit_gap_ms=400)
    bench.reboot()
    stub.register()
    bench.client.wait(event="sources-ready")
    assert bench.phase("p")[2] == (
        "Pod was rejected: Allocate failed due to previously allocated devices are no longer healthy; "
        f"cannot allocate unhealthy devices {RES}, which is unexpected"
    )


def test_failed_pods_stay_failed_and_static_ones_are_tried_again(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("api", {RES: 1}, wait=5)
    bench.client.pod_add("static", {RES: 1}, source="file", wait=5)
    bench.reboot()
    bench.client.wait(event="sources-ready")
    assert bench.phase("api") == bench.phase("static") == NO_HEALTHY
    bench.kubelet.set(admit_gap_ms=400)
    bench.reboot()
    stub.register()
    bench.client.wait_pod("static")
    assert bench.phase("api") == NO_HEALTHY


def test_28_pre_start_is_skipped_while_options_are_unknown(bench: Bench) -> None:
    stub = bench.plugin(register=False)
    stub.options = pb.DevicePluginOptions(pre_start_required=True)
    stub.register()
    bench.client.wait_resource(RES, allocatable=2)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert len(stub.pre_starts) == 1
    bench.kubelet.restart()
    bench.client.wait(event="sources-ready")
    bench.client.ask("container-restart", name="p", wait=5)
    assert len(stub.pre_starts) == 1


def test_34_list_is_empty_after_a_restart_until_pods_are_known(bench: Bench) -> None:
    bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    bench.kubelet.restart()
    bench.kubelet.set(admit_gap_ms=400)
    bench.kubelet.restart()
    assert bench.pod_resources() == {}
    bench.client.wait(event="sources-ready")
    assert bench.pod_resources().keys() == {"p"}


def test_34_pod_resources_socket_is_renamed_in(bench: Bench) -> None:
    folder = os.path.dirname(bench.kubelet.places.pod_resources)
    before = os.stat(bench.kubelet.places.pod_resources).st_ino
    bench.kubelet.restart()
    assert os.listdir(folder) == ["kubelet.sock"]
    assert os.stat(bench.kubelet.places.pod_resources).st_ino != before
    assert bench.pod_resources() == {}


def test_37_plugins_lose_their_stream_when_the_kubelet_dies(bench: Bench) -> None:
    stub = bench.plugin()
    assert stub.open_streams == 1
    bench.kubelet.kill()
    end = time.monotonic() + 5
    while stub.open_streams:
        assert time.monotonic() < end


def test_40_an_id_in_use_that_vanished_kills_a_kubelet_with_a_topology_policy(bench: Bench) -> None:
    stub = bench.plugin(count=1)
    stub.send([device("a0", numa=[0])])
    bench.client.pod_add("p", {RES: 1}, wait=5)
    stub.devices = [device("b0", numa=[0])]
    bench.kubelet.set(topology_policy="best-effort", admit_gap_ms=300)
    bench.kubelet.restart()
    stub.register()
    assert bench.kubelet.wait_exit() == 2


def test_checkpoint_has_the_real_shape(bench: Bench) -> None:
    stub = bench.plugin()
    stub.send([device("a0", numa=[1])])
    bench.client.wait_resource(RES, capacity=1)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    with open(checkpoint(bench)) as file:
        document = json.load(file)
    assert document.keys() == {"Data", "Checksum"}
    (entry,) = document["Data"]["PodDeviceEntries"]
    assert entry["DeviceIDs"] == {"1": ["a0"]}
    assert (entry["ContainerName"], entry["ResourceName"]) == ("main", RES)
    assert entry["PodUID"] == bench.client.pods("p")[0]["uid"]
    answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    assert dict(answer.envs) == {"IDS": "a0"}
    assert document["Data"]["RegisteredDevices"] == {RES: ["a0"]}


@pytest.mark.parametrize("damage", ["{", "", '{"Data": {}, "Checksum": 1}', "[]", "checksum"])
def test_a_corrupt_checkpoint_means_that_devices_are_given_out_again(bench: Bench, damage: str) -> None:
    stub = bench.plugin(count=1)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    bench.kubelet.kill()
    with open(checkpoint(bench)) as file:
        text = file.read()
    with open(checkpoint(bench), "w") as file:
        file.write(text.replace("a0", "a9") if damage == "checksum" else damage)
    bench.kubelet.start()
    bench.client.wait(event="checkpoint-unreadable")
    bench.client.wait(event="sources-ready")
    stub.register()
    bench.client.wait_resource(RES, allocatable=1)
    bench.client.pod_add("q", {RES: 1}, wait=5)
    assert bench.ids("q") == ["a0"]


def test_a_lost_checkpoint_file_is_a_fresh_start(bench: Bench) -> None:
    bench.plugin()
    bench.kubelet.kill()
    os.unlink(checkpoint(bench))
    bench.kubelet.start()
    assert bench.resource() is None


# Wrong devices


def test_a_replayed_answer_on_moved_numbers_shows_another_device() -> None:
    with Bench() as bench:
        node = Node.build(nodespec.load("workshop"), os.path.join(bench.folder, "n"))
        bench.kubelet = SimKubelet.in_folder(bench.folder, node=node.places, options={"admit_gap_ms": 300})
        bench.client = bench.kubelet.client
        bench.kubelet.start()
        stub = bench.plugin(count=1)
        stub.answer = pb.ContainerAllocateResponse(
            devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/accel/accel4", permissions="rw")]
        )
        bench.client.pod_add("p", {RES: 1}, wait=5)
        before = bench.client.pods("p")[0]["containers"][0]["record"]["nodes"][0]
        assert before["number"] == "c 261:4"
        assert before["thing"] == node.thing("/dev/accel/accel4") == "sys:/devices/pci0000:80/0000:84:00.0/accel/accel4"
        node.break_device("/dev/accel/accel2")
        bench.reboot(node.reboot)
        stub.register()
        bench.client.wait(event="container-started", pod="p")
        after = bench.client.pods("p")[0]["containers"][0]["record"]["nodes"][0]
        assert after["number"] == "c 261:4"
        assert after["thing"] == "sys:/devices/pci0000:80/0000:85:00.0/accel/accel4"


# Handling


def test_restarts_are_quick_and_nothing_grows(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("p", {RES: 1}, wait=5)
    helper = psutil.Process(bench.kubelet.helper_pid)
    pids = set()
    begin = time.monotonic()
    for _ in range(30):
        pids.add(bench.kubelet.restart(hard=True))
        stub.register()
        bench.client.wait_resource(RES, allocatable=2)
    spent = time.monotonic() - begin
    assert len(pids) == 30
    assert spent / 30 < 0.5
    assert bench.phase("p")[0] == "Running"
    files, memory = helper.num_fds(), helper.memory_info().rss
    for _ in range(30):
        bench.kubelet.restart(hard=True)
    assert helper.num_fds() == files
    assert helper.memory_info().rss - memory < 1 << 20
    assert len(helper.children()) == 1


def test_registrations_and_pods_leave_no_descriptor_behind(bench: Bench) -> None:
    stub = bench.plugin()
    process = psutil.Process(bench.kubelet.pid)

    def cycle(n: int) -> None:
        stub.end_stream()
        bench.client.wait_resource(RES, stopped=True)
        stub.register()
        bench.client.wait_resource(RES, allocatable=2, stopped=False)
        bench.client.pod_add(f"p{n}", {RES: 1}, wait=5)
        bench.client.pod_rm(f"p{n}")

    for n in range(5):
        cycle(n)
    files, threads = process.num_fds(), process.num_threads()
    for n in range(20):
        cycle(n)
    assert process.num_fds() <= files + 1
    assert process.num_threads() <= threads


def test_closing_ends_every_process(bench: Bench) -> None:
    kubelet, helper = bench.kubelet.pid, bench.kubelet.helper_pid
    bench.kubelet.close()
    assert not psutil.pid_exists(kubelet)
    assert not psutil.pid_exists(helper)


def test_pods_can_come_and_go_while_no_kubelet_runs(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.pod_add("old", {RES: 1}, wait=5)
    bench.kubelet.stop()
    with pytest.raises(SimError, match="no answer from the simulated kubelet"):
        bench.client.node()
    bench.kubelet.pod_add_offline("new", {RES: 1})
    bench.kubelet.pod_rm_offline("old")
    bench.kubelet.set(admit_gap_ms=300)
    bench.kubelet.start()
    stub.register()
    bench.client.wait_pod("new")
    assert [pod["name"] for pod in bench.client.pods()] == ["new"]
    assert bench.pod_resources().keys() == {"new"}


def test_it_is_a_program_of_its_own_too(bench: Bench) -> None:
    bench.kubelet.stop()
    places = bench.kubelet.places
    process = subprocess.Popen(
        [
            *(sys.executable, "-I", "-m", "devherd.sim.kubelet"),
            *("--device-plugins", places.device_plugins, "--pod-resources", places.pod_resources),
            *("--state", places.state, "--control", places.control, "--grace", "7", "--set", "stall=2"),
        ]
    )
    try:
        client = SimClient(places.control)
        end = time.monotonic() + 10
        while True:
            try:
                client.wait(listening=True)
                break
            except SimError:
                assert time.monotonic() < end
                time.sleep(0.01)
        options = client.set()
        assert (options["grace"], options["stall"]) == (7, 2)
        assert client.ask("ping")["pid"] == process.pid
    finally:
        process.terminate()
        assert process.wait(10) == 0


def test_bad_options_are_named() -> None:
    reply = subprocess.run(
        [
            *(sys.executable, "-I", "-m", "devherd.sim.kubelet", "--device-plugins", "/x", "--pod-resources", "/x"),
            *("--state", "/x", "--control", "/x", "--set", "grace=-1"),
        ],
        capture_output=True,
        text=True,
    )
    assert reply.returncode == 2
    assert "grace" in reply.stderr
