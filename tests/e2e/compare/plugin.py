"""A device plugin that does what a scenario tells it, right or wrong, and records every call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import deviceplugin_v1beta1_pb2_grpc as rpc

T = TypeVar("T")
Answer = Callable[[Sequence[str]], pb.ContainerAllocateResponse]


class Loop:
    """An event loop in a thread, so that scenarios are plain blocking code."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        """Run to the end and return the result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def device(name: str, health: str = "Healthy", nodes: Sequence[int] | None = None) -> pb.Device:
    """One device; `nodes` None leaves the topology unset, an empty list sets it without nodes."""
    made = pb.Device(ID=name, health=health)
    if nodes is not None:
        made.topology.CopyFrom(pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes]))
    return made


def ids_in_env(ids: Sequence[str]) -> pb.ContainerAllocateResponse:
    """The usual answer: the ids, sorted, as IDS in the container's environment."""
    return pb.ContainerAllocateResponse(envs={"IDS": ",".join(sorted(ids))})


class Plugin(rpc.DevicePluginServicer):
    """One server for one resource. `calls` has what arrived: `[kind, details...]`, ids sorted.

    Set what it shall do wrong before the call: `options_error`, `list_error`, `allocate_error`, `preferred_error`,
    `prestart_error` (texts), `responses` (container responses in an answer), `mute` (no list is sent),
    `hold` (Allocate waits for `release`), `during_allocate` (called before the answer).
    """

    def __init__(self, loop: Loop, folder: str, resource: str, devices: Sequence[pb.Device], endpoint: str) -> None:
        self.resource = resource
        self.endpoint = endpoint
        self.path = os.path.normpath(os.path.join(folder, endpoint))
        self.devices = list(devices)
        self.options = pb.DevicePluginOptions()
        self.options_error = self.list_error = self.allocate_error = self.preferred_error = self.prestart_error = ""
        self.preferred: Sequence[str] = ()
        self.responses = 1
        self.mute = False
        self.hold = False
        self.answer: Answer = ids_in_env
        self.during_allocate: Callable[[], None] | None = None
        self.calls: list[list[Any]] = []
        self.open_streams = 0
        self._loop = loop
        self._queues: list[asyncio.Queue[list[pb.Device] | None]] = []
        self._release = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._announcers: list[grpc.aio.Server] = []

    # The service

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        """Options, or an error."""
        self.calls.append(["options"])
        if self.options_error:
            await context.abort(grpc.StatusCode.UNKNOWN, self.options_error)
        return self.options

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: N802
        """Lists as they are sent, until told to end."""
        self.calls.append(["list", deadline(context)])
        if self.list_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.list_error)
        queue: asyncio.Queue[list[pb.Device] | None] = asyncio.Queue()
        self._queues.append(queue)
        self.open_streams += 1
        try:
            if not self.mute:
                yield pb.ListAndWatchResponse(devices=self.devices)
            while (devices := await queue.get()) is not None:
                yield pb.ListAndWatchResponse(devices=devices)
        finally:
            self.open_streams -= 1
            self._queues.remove(queue)

    async def GetPreferredAllocation(self, request: pb.PreferredAllocationRequest, context: Any) -> Any:  # noqa: N802
        """`preferred`, or an error."""
        for one in request.container_requests:
            available, must = sorted(one.available_deviceIDs), sorted(one.must_include_deviceIDs)
            self.calls.append(["preferred", available, must, one.allocation_size, deadline(context)])
        if self.preferred_error:
            await context.abort(grpc.StatusCode.UNKNOWN, self.preferred_error)
        response = pb.ContainerPreferredAllocationResponse(deviceIDs=self.preferred)
        return pb.PreferredAllocationResponse(container_responses=[response])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802
        """`answer` as often as `responses` says."""
        asked = [sorted(one.devices_ids) for one in request.container_requests]
        self.calls.append(["allocate", asked, deadline(context)])
        if self.hold:
            await self._release.wait()
        if self.allocate_error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        if self.during_allocate is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.during_allocate)
        return pb.AllocateResponse(container_responses=[self.answer(asked[0])] * self.responses)

    async def PreStartContainer(self, request: pb.PreStartContainerRequest, context: Any) -> Any:  # noqa: N802
        """An empty answer, or an error."""
        self.calls.append(["prestart", sorted(request.devices_ids), deadline(context)])
        if self.prestart_error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.prestart_error)
        return pb.PreStartContainerResponse()

    # What a scenario does with it

    def kinds(self) -> list[str]:
        """The calls' kinds, in order."""
        return [str(call[0]) for call in self.calls]

    def serve(self) -> None:
        """Listen; an old socket file is replaced."""

        async def start() -> None:
            self._server = grpc.aio.server()
            rpc.add_DevicePluginServicer_to_server(self, self._server)
            self._server.add_insecure_port("unix:" + self.path)
            await self._server.start()

        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        self._loop.run(start())

    def announce(self, path: str, info: bytes) -> None:
        """Serve the registration watcher's service too, at a socket of its own or at the plugin's (the same path).

        `info` is the encoded PluginInfo. What the kubelet tells of the outcome is a call `notify`.
        """

        async def get_info(request: bytes, context: Any) -> bytes:
            self.calls.append(["info", deadline(context)])
            return info

        async def notify(request: bytes, context: Any) -> bytes:
            registered, text = request[:1] == b"\x08", request.decode(errors="replace")
            self.calls.append(["notify", "registered" if registered else text[text.find("R") :]])
            return b""

        async def start() -> None:
            methods: dict[str, Any] = {
                "GetInfo": grpc.unary_unary_rpc_method_handler(get_info),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notify),
            }
            server = grpc.aio.server()
            handler = grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)
            server.add_generic_rpc_handlers((handler,))
            server.add_insecure_port("unix:" + path)
            await server.start()
            self._announcers.append(server)

        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._loop.run(start())

    def withdraw(self) -> None:
        """End what `announce` began; gRPC takes the socket files away."""

        async def end() -> None:
            for server in self._announcers:
                await server.stop(None)
            self._announcers.clear()

        self._loop.run(end())

    def send(self, devices: Sequence[pb.Device], stream: int | None = None) -> None:
        """Send a list on every stream, or on one, counted from the oldest."""

        async def put() -> None:
            self.devices = list(devices)
            for queue in self._queues if stream is None else [self._queues[stream]]:
                queue.put_nowait(self.devices)

        self._loop.run(put())

    def end_stream(self) -> None:
        """End every stream as a program that returns; the server stays."""

        async def put() -> None:
            for queue in self._queues:
                queue.put_nowait(None)

        self._loop.run(put())

    def release(self) -> None:
        """Let held Allocate calls go on."""

        async def let() -> None:
            self.hold = False
            self._release.set()

        self._loop.run(let())

    def stop(self) -> None:
        """End at once, connections cut, as a killed program."""

        async def end() -> None:
            self._release.set()
            for announcer in self._announcers:
                await announcer.stop(None)
            if self._server is not None:
                await self._server.stop(None)
                self._server = None

        self._loop.run(end())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def plugin_info(kind: str, name: str, endpoint: str, *versions: str) -> bytes:
    """Encode a PluginInfo of texts shorter than 128 bytes."""
    texts = [(1, kind), (2, name), (3, endpoint), *((4, version) for version in versions)]
    return b"".join(bytes([number << 3 | 2, len(text.encode())]) + text.encode() for number, text in texts if text)


def deadline(context: Any) -> str:
    """The caller's deadline in words that are the same on a slow machine."""
    left = context.time_remaining()
    return "no deadline" if left is None or left > 1e6 else f"{round(left, -1):.0f} s"
