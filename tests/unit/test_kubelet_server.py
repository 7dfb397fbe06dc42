"""The five methods as a kubelet calls them, over a socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.kubelet.endpoint import Endpoint
from devherd.kubelet.server import PreferredRequest, Refusal, ResourceServer
from devherd.values import Composed, Member, Mount, Node, Snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelet_fake import LOCAL, Devices, answer_of, run, snapshot

NAME = "example.com/r"


class Client:
    def __init__(self, path: str) -> None:
        self.path = path
        self.channel = grpc.aio.insecure_channel(f"unix:{path}", options=LOCAL)

    async def raw(self, method: str, data: bytes) -> bytes:
        call: Any = self.channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
        return bytes(await call(data, timeout=10))

    async def allocate(self, *containers: Sequence[str]) -> pb.AllocateResponse:
        request = pb.AllocateRequest()
        for ids in containers:
            request.container_requests.add(devices_ids=ids)
        return pb.AllocateResponse.FromString(await self.raw("Allocate", request.SerializeToString()))

    async def pre_start(self, *ids: str) -> None:
        await self.raw("PreStartContainer", pb.PreStartContainerRequest(devices_ids=ids).SerializeToString())

    def lists(self) -> Any:
        call: Any = self.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")
        return call(b"")


@contextlib.asynccontextmanager
async def served(handler: Devices | None = None) -> AsyncIterator[tuple[ResourceServer, Client]]:
    root = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    server, endpoint = ResourceServer(NAME, handler or Devices()), Endpoint(root, "t", NAME)
    await server.bind(endpoint)
    client = Client(endpoint.anchor)
    try:
        yield server, client
    finally:
        await client.channel.close()
        await server.stop()
        shutil.rmtree(root)


async def next_list(stream: Any) -> pb.ListAndWatchResponse:
    return pb.ListAndWatchResponse.FromString(await asyncio.wait_for(stream.read(), 10))


async def quiet(stream: Any) -> None:
    """Nothing comes. The stream cannot be used after this."""
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(stream.read(), 0.1)


def test_options_are_what_the_handler_says() -> None:
    async def work() -> None:
        async with served() as (_server, client):
            options = pb.DevicePluginOptions.FromString(await client.raw("GetDevicePluginOptions", b""))
            assert options.pre_start_required
            assert options.get_preferred_allocation_available

    run(work())


def test_allocate_carries_every_part_of_an_answer() -> None:
    class Rich(Devices):
        def allocate(self, containers: Sequence[Sequence[str]]) -> Sequence[Composed]:
            node = Node("/dev/host", "/dev/inside", "rwm", "c", 10, 229, "sys:/x")
            mount = Mount("/in", "/out", True)
            return [Composed((node,), (mount,), {"K": "v"}, {"example.com/a": "b"}, ("example.com/class=one",))]

    async def work() -> None:
        async with served(Rich()) as (_server, client):
            (answer,) = (await client.allocate(["a"])).container_responses
            assert [(d.host_path, d.container_path, d.permissions) for d in answer.devices] == [
                ("/dev/host", "/dev/inside", "rwm")
            ]
            assert [(m.host_path, m.container_path, m.read_only) for m in answer.mounts] == [("/out", "/in", True)]
            assert dict(answer.envs) == {"K": "v"}
            assert dict(answer.annotations) == {"example.com/a": "b"}
            assert [one.name for one in answer.cdi_devices] == ["example.com/class=one"]

    run(work())


def test_one_answer_per_container_and_the_same_bytes_each_time() -> None:
    async def work() -> None:
        async with served() as (_server, client):
            first = await client.allocate(["a"], ["b", "c"])
            assert [dict(one.envs) for one in first.container_responses] == [{"IDS": "a"}, {"IDS": "b,c"}]
            again = await client.allocate(["a"], ["b", "c"])
            assert first.SerializeToString() == again.SerializeToString()

    run(work())


def test_a_refusal_reaches_the_pod_status_short() -> None:
    class Refusing(Devices):
        def allocate(self, containers: Sequence[Sequence[str]]) -> Sequence[Composed]:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "unknown device " + "x" * 1000)

        async def pre_start(self, ids: Sequence[str]) -> None:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "not clean yet")

    async def work() -> None:
        async with served(Refusing()) as (_server, client):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.allocate(["a"])
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (caught.value.details() or "").startswith("unknown device")
            assert len(caught.value.details() or "") <= 200
            with pytest.raises(grpc.aio.AioRpcError, match="not clean yet"):
                await client.raw(
                    "PreStartContainer", pb.PreStartContainerRequest(devices_ids=["a"]).SerializeToString()
                )

    run(work())


def test_an_error_inside_says_nothing_private_and_hurts_nobody_else() -> None:
    class Broken(Devices):
        def allocate(self, containers: Sequence[Sequence[str]]) -> Sequence[Composed]:
            raise KeyError("secret")

        def preferred(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
            raise ZeroDivisionError

    async def work() -> None:
        async with served(Broken()) as (_server, client):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.allocate(["a"])
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in (caught.value.details() or "")
            # Advice must never fail a pod.
            request = pb.PreferredAllocationRequest()
            request.container_requests.add(available_deviceIDs=["a"], allocation_size=1)
            answer = pb.PreferredAllocationResponse.FromString(
                await client.raw("GetPreferredAllocation", request.SerializeToString())
            )
            assert len(answer.container_responses) == 1
            assert (await client.raw("GetDevicePluginOptions", b"")) != b""

    run(work())


def test_preferred_and_pre_start_reach_the_handler() -> None:
    async def work() -> None:
        handler = Devices()
        async with served(handler) as (_server, client):
            request = pb.PreferredAllocationRequest()
            request.container_requests.add(
                available_deviceIDs=["c", "a", "b"], must_include_deviceIDs=["c"], allocation_size=2
            )
            answer = pb.PreferredAllocationResponse.FromString(
                await client.raw("GetPreferredAllocation", request.SerializeToString())
            )
            assert list(answer.container_responses[0].deviceIDs) == ["a", "b"]
            await client.raw(
                "PreStartContainer", pb.PreStartContainerRequest(devices_ids=["a", "b"]).SerializeToString()
            )
            assert handler.prepared == [("a", "b")]

    run(work())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["Allocate", "GetPreferredAllocation", "PreStartContainer"]), st.binary())))
def test_any_bytes_get_an_answer_or_a_clean_refusal(messages: list[tuple[str, bytes]]) -> None:
    async def work() -> None:
        async with served() as (_server, client):
            for method, data in messages:
                try:
                    await client.raw(method, data)
                except grpc.aio.AioRpcError as error:  # noqa: PERF203
                    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017
            assert (await client.allocate(["a"])).container_responses[0].envs["IDS"] == "a"

    run(work())


def test_the_list_comes_at_once_and_full() -> None:
    async def work() -> None:
        async with served() as (server, client):
            members = (Member("a", True, (0, 1)), Member("b", False, (), "gone"))
            server.feed.publish(Snapshot(NAME, 1, members))
            message = await next_list(client.lists())
            a, b = message.devices
            assert (a.ID, a.health, [node.ID for node in a.topology.nodes]) == ("a", "Healthy", [0, 1])
            assert (b.ID, b.health, b.HasField("topology")) == ("b", "Unhealthy", False)

    run(work())


def test_a_stream_waits_for_the_first_list_instead_of_sending_an_empty_one() -> None:
    async def work() -> None:
        async with served() as (server, client):
            stream = client.lists()
            reading = asyncio.create_task(next_list(stream))
            await asyncio.sleep(0.1)
            assert not reading.done()
            server.feed.publish(snapshot(NAME, 2))
            assert len((await reading).devices) == 2

    run(work())


def test_what_looks_the_same_to_the_kubelet_is_not_sent_again() -> None:
    async def work() -> None:
        async with served() as (server, client):
            server.feed.publish(snapshot(NAME, 1, 1, reason="link down"))
            stream = client.lists()
            await next_list(stream)
            server.feed.publish(snapshot(NAME, 1, 1, number=2, reason="link down"))
            await asyncio.sleep(0.02)
            server.feed.publish(snapshot(NAME, 1, 1, number=3, reason="link down for an hour"))
            await quiet(stream)

    run(work())


def test_no_change_is_lost_and_a_change_back_is_no_change() -> None:
    async def work() -> None:
        async with served() as (server, client):
            server.feed.publish(snapshot(NAME, 2))
            stream = client.lists()
            await next_list(stream)
            for number in range(100):
                server.feed.publish(snapshot(NAME, number % 3, 3 - number % 3, number))
            server.feed.publish(snapshot(NAME, 3))
            assert [one.health for one in (await next_list(stream)).devices] == ["Healthy"] * 3
            server.feed.publish(snapshot(NAME, 1))
            server.feed.publish(snapshot(NAME, 3))
            await quiet(stream)

    run(work())


def test_each_stream_follows_by_itself() -> None:
    async def work() -> None:
        async with served() as (server, client):
            server.feed.publish(snapshot(NAME, 1))
            old = client.lists()
            await next_list(old)
            server.feed.publish(snapshot(NAME, 2))
            other = Client(client.path)
            new = other.lists()
            assert len((await next_list(old)).devices) == 2
            assert len((await next_list(new)).devices) == 2
            assert len(server.streams) == 2
            await other.channel.close()
            server.feed.publish(snapshot(NAME, 3))
            assert len((await next_list(old)).devices) == 3
            assert len(server.streams) == 1

    run(work())


def test_stop_ends_the_stream_cleanly() -> None:
    async def work() -> None:
        async with served() as (server, client):
            server.feed.publish(snapshot(NAME, 1))
            stream = client.lists()
            await next_list(stream)
            await server.stop()
            assert await stream.read() is grpc.aio.EOF
            assert server.streams == ()

    run(work())


def test_a_lost_socket_is_bound_anew_without_touching_the_open_stream() -> None:
    async def work() -> None:
        root = tempfile.mkdtemp(prefix="dh", dir="/tmp")
        server, endpoint = ResourceServer(NAME, Devices()), Endpoint(root, "t", NAME)
        try:
            await server.bind(endpoint)
            server.feed.publish(snapshot(NAME, 1))
            client = Client(endpoint.anchor)
            stream = client.lists()
            await next_list(stream)
            os.unlink(endpoint.anchor)
            await server.bind(endpoint)
            again = Client(endpoint.anchor)
            assert (await again.allocate(["a"])).container_responses[0].envs["IDS"] == "a"
            server.feed.publish(snapshot(NAME, 2))
            assert len((await next_list(stream)).devices) == 2
            await client.channel.close()
            await again.channel.close()
        finally:
            await server.stop()
            shutil.rmtree(root)

    run(work())


def test_a_stream_that_ends_while_a_socket_is_bound_anew_does_not_end_the_new_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kubelet that is killed just after its folder was replaced: the new socket must listen."""

    async def work() -> None:
        root = tempfile.mkdtemp(prefix="dh", dir="/tmp")
        server, endpoint = ResourceServer(NAME, Devices()), Endpoint(root, "t", NAME)
        try:
            await server.bind(endpoint)
            server.feed.publish(snapshot(NAME, 1))
            client = Client(endpoint.anchor)
            stream = client.lists()
            await next_list(stream)
            make = grpc.aio.server

            def slow(*given: Any, **named: Any) -> grpc.aio.Server:
                made = make(*given, **named)
                start = made.start

                async def start_while_the_stream_ends() -> None:
                    await start()
                    stream.cancel()
                    while server.streams:
                        await asyncio.sleep(0.001)

                monkeypatch.setattr(made, "start", start_while_the_stream_ends)
                return made

            monkeypatch.setattr(grpc.aio, "server", slow)
            os.unlink(endpoint.anchor)
            await server.bind(endpoint)
            await client.channel.close()
            again = Client(endpoint.anchor)
            for _ in range(5):
                assert (await again.allocate(["a"])).container_responses[0].envs["IDS"] == "a"
                await asyncio.sleep(0.01)
            await again.channel.close()
        finally:
            await server.stop()
            shutil.rmtree(root)

    run(work())


def test_ten_thousand_devices_in_one_list() -> None:
    async def work() -> None:
        async with served() as (server, client):
            members = tuple(Member(f"{number:040x}", True, (number % 2,)) for number in range(10_000))
            server.feed.publish(Snapshot(NAME, 1, members))
            assert len((await next_list(client.lists())).devices) == 10_000

    run(work())


def test_a_kubelet_that_does_not_read_gets_the_newest_list_when_it_wakes() -> None:
    async def work() -> None:
        async with served() as (server, client):
            stream = client.lists()
            for number in range(20):
                members = tuple(Member(f"{one:040}", one % 20 == number, ()) for one in range(10_000))
                server.feed.publish(Snapshot(NAME, number, members))
                await asyncio.sleep(0.02)
            read = 0
            while True:
                message = await next_list(stream)
                read += 1
                if message.devices[19].health == "Healthy":
                    break
            assert read < 20, "every one of them was kept for it"
            assert (await client.allocate(["a"])).container_responses

    run(work())


def allocate_times(path: str, calls: int) -> list[float]:
    """Milliseconds per Allocate of eight devices, from another thread, as from another process."""
    times = []
    with grpc.insecure_channel(f"unix:{path}", options=LOCAL) as channel:
        call: Callable[..., Any] = channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
        request = pb.AllocateRequest()
        request.container_requests.add(devices_ids=[f"d{number}" for number in range(8)])
        data = request.SerializeToString()
        for _ in range(calls):
            start = time.perf_counter()
            call(data, timeout=10)
            times.append((time.perf_counter() - start) * 1000)
    return times


def test_allocate_takes_about_a_millisecond() -> None:
    async def work() -> None:
        async with served() as (_server, client):
            times = await asyncio.get_running_loop().run_in_executor(None, allocate_times, client.path, 300)
            # The budget (1 ms at the median) is measured in tests/bench; this only catches a mistake of kind.
            assert statistics.median(times) < 5.0

    run(work())


def test_allocate_from_many_threads_at_once() -> None:
    async def work() -> None:
        async with served() as (_server, client):
            threads = [threading.Thread(target=allocate_times, args=(client.path, 20)) for _ in range(8)]
            for thread in threads:
                thread.start()
            await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(None, one.join) for one in threads))
            assert (await client.allocate(["x"])).container_responses[0].envs == answer_of(["x"]).env

    run(work())
