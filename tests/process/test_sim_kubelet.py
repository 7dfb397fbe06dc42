"""The simulated kubelet against the checklist: folder, sockets, registration and lists. Numbers are the checklist's."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.sim.client import SimError
from sim_stub import Bench, Stub, device

RES = "example.com/dev"


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        made.kubelet.start()
        yield made


@pytest.fixture
def down() -> Iterator[Bench]:
    """A bench whose kubelet has not been started."""
    with Bench() as made:
        yield made


def refusal(stub: Stub, **fields: object) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        stub.register(**fields)  # type: ignore[arg-type]
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value.details() or ""


def fails(stub: Stub) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        stub.register(3)


def connect(path: str) -> int:
    """0, or the errno of a connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        return one.connect_ex(path)


# Folder and sockets


def test_1_folder_appears_before_the_socket(down: Bench) -> None:
    folder = down.kubelet.places.device_plugins
    down.kubelet.start(wait=False, dir_lead_ms=300)
    end = time.monotonic() + 5
    while not os.path.isdir(folder):
        assert time.monotonic() < end
    assert not os.path.exists(down.kubelet.socket)
    down.kubelet.wait_listening()
    assert os.path.exists(down.kubelet.socket)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o755


def test_2_3_start_removes_top_level_sockets_and_nothing_else(down: Bench) -> None:
    folder = down.kubelet.places.device_plugins
    os.makedirs(folder + "/sub")
    with open(folder + "/note", "w") as file:
        file.write("x")
    held = []
    for name in ("top.sock", "sub/deep.sock"):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.bind(f"{folder}/{name}")
        held.append(one)
    os.symlink("sub/deep.sock", folder + "/link.sock")
    os.symlink("nowhere", folder + "/broken")
    os.symlink("sub", folder + "/dirlink")
    down.kubelet.start()
    left = set(os.listdir(folder))
    assert left == {"kubelet.sock", "sub", "note", "broken", "dirlink"}
    assert os.listdir(folder + "/sub") == ["deep.sock"]
    for one in held:
        one.close()


def test_4_connect_is_refused_between_bind_and_listen(down: Bench) -> None:
    path = down.kubelet.socket
    stub = down.plugin(register=False)
    down.kubelet.start(wait=False, listen_delay_ms=200)
    end = time.monotonic() + 10
    while not os.path.exists(path):
        assert time.monotonic() < end
    assert connect(path) == errno.ECONNREFUSED
    down.kubelet.wait_listening()
    assert connect(path) == 0
    stub.register()
    down.client.wait_resource(RES, allocatable=2)


@pytest.mark.parametrize("hard", [True, False])
def test_5_an_ended_kubelet_leaves_a_socket_that_refuses(bench: Bench, hard: bool) -> None:
    (bench.kubelet.kill if hard else bench.kubelet.stop)()
    assert os.path.exists(bench.kubelet.socket)
    assert connect(bench.kubelet.socket) == errno.ECONNREFUSED


def test_registration_socket_as_a_folder_ends_the_kubelet(down: Bench) -> None:
    os.makedirs(down.kubelet.socket)
    with pytest.raises(SimError, match=r"kubelet\.sock"):
        down.kubelet.start()
    assert down.kubelet.exit_code == 1


# Registration


def test_6_other_versions_are_refused(bench: Bench) -> None:
    stub = bench.plugin(register=False)
    text = refusal(stub, version="v1alpha1")
    assert text == ('requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]')
    assert bench.resource() is None


@pytest.mark.parametrize("name", ["dev", "kubernetes.io/dev", "requests.x/dev", "Example.com/dev", "x/-dev", ""])
def test_7_bad_names_are_refused(bench: Bench, name: str) -> None:
    stub = bench.plugin(register=False)
    assert refusal(stub, resource_name=name) == f'the ResourceName "{name}" is invalid'


@pytest.mark.parametrize("endpoint", ["suite/a.sock", "top.sock", "../beside.sock", "x/../suite/./b.sock"])
def test_8_endpoints_are_joined_and_cleaned(bench: Bench, endpoint: str) -> None:
    bench.plugin(endpoint=endpoint)
    assert bench.resource() == (2, 2)


def test_8_absolute_endpoint_is_below_the_folder(bench: Bench) -> None:
    stub = bench.plugin(endpoint="suite/a.sock", register=False)
    stub.register(endpoint="/suite/a.sock")
    bench.client.wait_resource(RES, allocatable=2)


def test_9_dial_back_blocks_register_until_its_timeout(bench: Bench) -> None:
    bench.client.set(dial_timeout=0.4)
    stub = bench.plugin(register=False)
    start = time.monotonic()
    text = refusal(stub, endpoint="suite/nobody.sock")
    assert text == "failed to dial device plugin: context deadline exceeded"
    assert 0.4 <= time.monotonic() - start < 3
    assert "failed to dial" in refusal(stub, endpoint="")


def test_9_default_dial_timeout_is_ten_seconds(bench: Bench) -> None:
    assert bench.client.set()["dial_timeout"] == 10


def test_10_dial_back_uses_localhost_as_authority(bench: Bench) -> None:
    stub = Stub(bench.loop, bench.kubelet.places.device_plugins, RES, [], "raw.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(stub.path)
        server.listen()
        caller = threading.Thread(target=fails, args=(stub,))
        caller.start()
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5)
            connection.sendall(b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame: the server's preface
            seen = b""
            while b"GetDevicePluginOptions" not in seen:
                piece = connection.recv(4096)
                assert piece
                seen += piece
        caller.join()
    assert b"localhost" in seen
    assert b"raw.sock" not in seen


def test_11_options_come_from_the_plugin_not_from_the_request(bench: Bench) -> None:
    stub = bench.plugin(register=False)
    stub.register(options=pb.DevicePluginOptions(pre_start_required=True))
    bench.client.wait_resource(RES, allocatable=2)
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert stub.pre_starts == []


def test_12_options_error_fails_the_registration(bench: Bench) -> None:
    stub = bench.plugin(register=False)
    stub.options_error = "no options today"
    text = refusal(stub)
    assert text == ("failed to get device plugin options: rpc error: code = Unknown desc = no options today")
    assert stub.streams == 0
    assert bench.resource() is None


def test_13_register_is_answered_before_the_stream_opens(bench: Bench) -> None:
    bench.client.set(skip_streams=1)
    stub = bench.plugin(register=False)
    stub.register()
    assert stub.streams == 0
    assert bench.resource() is None
    stub.register()
    bench.client.wait_resource(RES, allocatable=2)


def test_14_a_failing_stream_is_never_opened_again(bench: Bench) -> None:
    stub = bench.plugin(register=False)
    stub.list_error = "broken"
    stub.register()
    end = bench.client.wait(event="stream-end")
    assert end["reason"] == "rpc error: code = Internal desc = broken"
    bench.client.wait_resource(RES, capacity=0, allocatable=0, stopped=True)
    assert stub.streams == 1


# Lists


def test_15_a_list_over_4_mib_ends_the_stream(bench: Bench) -> None:
    stub = bench.plugin()
    stub.send([device(f"{n:040}") for n in range(60_000)])
    bench.client.wait_resource(RES, timeout=20, allocatable=60_000)
    stub.send([device(f"{n:063}") for n in range(60_000)])
    end = bench.client.wait(20, event="stream-end")
    assert "code = ResourceExhausted" in end["reason"]
    assert bench.resource() == (60_000, 0)


def test_16_each_list_is_complete(bench: Bench) -> None:
    stub = bench.plugin(count=4)
    for healthy in (3, 4, 2, 3, 4):
        stub.send([device(f"a{n}", n < healthy) for n in range(4)])
        found = bench.client.wait_resource(RES, allocatable=healthy)
        assert found["capacity"] == 4
    stub.send([device("b")])
    assert bench.client.wait_resource(RES, capacity=1)["healthy"] == ["b"]
    stub.send([])
    assert bench.client.wait_resource(RES, capacity=0)["stopped"] is False


def test_17_duplicates_and_odd_health_words_count_as_the_kubelet_counts(bench: Bench) -> None:
    stub = bench.plugin()
    odd = pb.Device(ID="odd", health="healthy")
    stub.send([device("x"), device("x"), device("y"), device("y", False), odd])
    found = bench.client.wait_resource(RES, capacity=4)
    assert found["allocatable"] == 2
    assert found["unhealthy"] == ["odd", "y"]


def test_18_a_lost_stream_keeps_capacity_for_the_grace_time(bench: Bench) -> None:
    bench.client.set(grace=0.4)
    stub = bench.plugin()
    stub.stop()
    assert bench.client.wait_resource(RES, allocatable=0)["capacity"] == 2
    bench.client.wait(resource=RES, gone=True)
    assert [e["resource"] for e in bench.client.events(what="forgotten")] == [RES]


def test_18_a_cleanly_ended_stream_is_no_better(bench: Bench) -> None:
    stub = bench.plugin()
    stub.end_stream()
    bench.client.wait_resource(RES, allocatable=0, capacity=2, stopped=True)


def test_19_old_stream_feeds_on_and_its_end_hits_the_newer_registration(bench: Bench) -> None:
    old = bench.plugin(endpoint="one.sock")
    new = bench.plugin(endpoint="two.sock", count=3)
    assert (old.open_streams, new.open_streams) == (1, 1)
    old.send([device("o")])
    bench.client.wait_resource(RES, capacity=1)
    new.send([device("n0"), device("n1")])
    bench.client.wait_resource(RES, capacity=2)
    old.end_stream()
    bench.client.wait_resource(RES, capacity=2, allocatable=0, stopped=True)
    bench.client.wait(event="stream-end", endpoint="two.sock")
    assert new.streams == 1


def test_19_fixed_kubelets_leave_the_newer_registration_alone(bench: Bench) -> None:
    bench.client.set(fixed_disconnect=True)
    old = bench.plugin(endpoint="one.sock")
    bench.plugin(endpoint="two.sock", count=3)
    old.end_stream()
    bench.client.wait(event="stream-end", endpoint="one.sock")
    assert bench.resource() == (3, 3)


def test_19_fixed_kubelets_ask_the_older_server_again_when_the_newer_ends(bench: Bench) -> None:
    bench.client.set(fixed_disconnect=True)
    old = bench.plugin(endpoint="one.sock")
    new = bench.plugin(endpoint="two.sock", count=3)
    new.stop()
    bench.client.wait(event="promoted", resource=RES)
    assert bench.resource() == (3, 3), "the list stays as it was last"
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert len(old.allocates) == 1


def test_19_fixed_kubelets_refuse_a_connected_socket_and_are_stuck_with_it(bench: Bench) -> None:
    bench.client.set(fixed_disconnect=True)
    stub = bench.plugin()
    for _ in range(2):
        assert refusal(stub).startswith("device plugin already connected: ")
    stub.end_stream()
    bench.client.wait(event="stream-end")
    assert bench.resource() == (2, 2), "the end of the stream goes unnoticed"
    assert refusal(stub).startswith("device plugin already connected: ")
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert len(stub.allocates) == 1
    other = bench.plugin(endpoint="other.sock", register=False)
    other.register()
    bench.client.wait(event="stream-open", endpoint="other.sock")


def test_20_fixed_kubelets_keep_the_old_entry_when_a_second_register_fails(bench: Bench) -> None:
    bench.client.set(dial_timeout=0.2, fixed_disconnect=True)
    stub = bench.plugin()
    refusal(stub, endpoint="nobody.sock")
    stub.stop()
    bench.client.wait_resource(RES, allocatable=0, capacity=2)


def test_20_a_failed_second_register_loses_the_old_entry(bench: Bench) -> None:
    bench.client.set(dial_timeout=0.2)
    stub = bench.plugin()
    refusal(stub, endpoint="nobody.sock")
    stub.stop()
    bench.client.wait(event="stream-end")
    assert bench.resource() == (2, 2), "the kubelet does not notice that the old plugin died"


def test_33_each_list_rewrites_the_checkpoint_beside_the_sockets(bench: Bench) -> None:
    stub = bench.plugin()
    path = os.path.join(bench.kubelet.places.device_plugins, "kubelet_internal_checkpoint")
    before = os.stat(path).st_ino
    stub.send([device("a0")])
    bench.client.wait_resource(RES, capacity=1)
    assert os.stat(path).st_ino != before
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert sorted(os.listdir(bench.kubelet.places.device_plugins)) == [
        "kubelet.sock",
        "kubelet_internal_checkpoint",
        "suite",
    ]


def test_numa_nodes_the_machine_lacks_join_no_hint(bench: Bench) -> None:
    bench.client.set(topology_policy="single-numa-node")
    stub = bench.plugin()
    stub.send([device("a0", numa=[7]), device("a1", numa=[1])])
    bench.client.wait(event="numa-unknown", id="a0", nodes=[7])
    bench.client.pod_add("p", {RES: 1}, wait=5)
    assert stub.allocates == [["a1"]]


def announced(bench: Bench, stub: Stub, path: str, info: bytes) -> tuple[grpc.aio.Server, list[bytes]]:
    """A registration socket for a plugin, and what the kubelet tells it."""
    told: list[bytes] = []

    async def get_info(request: bytes, context: Any) -> bytes:
        return info

    async def notify(request: bytes, context: Any) -> bytes:
        told.append(request)
        return b""

    async def start() -> grpc.aio.Server:
        handlers: dict[str, Any] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(get_info),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notify),
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("pluginregistration.Registration", handlers),)
        )
        server.add_insecure_port("unix:" + path)
        await server.start()
        return server

    os.makedirs(os.path.dirname(path), exist_ok=True)
    return bench.loop.run(start()), told


def info_of(*texts: str) -> bytes:
    """PluginInfo, encoded: type, name, endpoint, versions."""
    numbered = zip((1, 2, 3, 4, 4), texts, strict=False)
    return b"".join(bytes([n << 3 | 2, len(text)]) + text.encode() for n, text in numbered if text)


def test_36_a_socket_in_the_registry_registers_its_plugin_until_it_is_gone(bench: Bench) -> None:
    stub = bench.plugin(register=False)
    path = os.path.join(bench.folder, "plugins_registry", "sub", "reg.sock")
    server, told = announced(bench, stub, path, info_of("DevicePlugin", RES, stub.path, "v2", "v1beta1"))
    bench.client.wait_resource(RES, allocatable=2)
    bench.loop.run(server.stop(None))
    bench.client.wait_resource(RES, allocatable=0, capacity=2)
    assert told == [b"\x08\x01"]


def test_36_a_plugin_in_the_registry_is_told_why_it_is_refused(bench: Bench) -> None:
    stub = bench.plugin(register=False)
    stub.options_error = "x" * 200
    path = os.path.join(bench.folder, "plugins_registry", "reg.sock")
    server, told = announced(bench, stub, path, info_of("DevicePlugin", RES, stub.path, "v1beta1"))
    bench.client.wait(event="registry-failed", path=path)
    bench.loop.run(server.stop(None))
    assert (
        b"RegisterPlugin error -- plugin registration failed with err: failed to get device plugin options" in told[0]
    )
    assert told[0].endswith(b"x" * 200)


def test_the_kubelet_may_cut_a_stream_while_it_lives(bench: Bench) -> None:
    stub = bench.plugin()
    bench.client.ask("cut", resource=RES)
    bench.client.wait_resource(RES, allocatable=0, capacity=2)
    stub.register()
    bench.client.wait_resource(RES, allocatable=2)
    assert stub.streams == 2


def test_subfolders_can_be_refused(bench: Bench) -> None:
    bench.client.set(refuse_subfolders=True)
    stub = bench.plugin(register=False)
    assert refusal(stub) == 'the endpoint "suite/example.com_dev.sock" is invalid'
    bench.plugin(endpoint="top.sock")


def test_many_resources_and_devices(bench: Bench) -> None:
    for n in range(20):
        bench.plugin(f"example.com/r{n}", count=3)
    assert len(bench.client.node()["resources"]) == 20


def test_unknown_ops_and_bad_requests_are_explained(bench: Bench) -> None:
    with pytest.raises(SimError, match="unknown op 'frobnicate'; known: container-restart"):
        bench.client.ask("frobnicate")
    with pytest.raises(SimError, match="missing or malformed field"):
        bench.client.ask("pod-rm")
    with pytest.raises(SimError, match="unknown field"):
        bench.client.set(admit_gap=1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(bench.kubelet.places.control)
        raw.sendall(b"nonsense\n")
        assert b"not JSON" in raw.recv(1000)
