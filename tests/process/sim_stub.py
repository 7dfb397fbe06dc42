"""A small device plugin for tests of the simulated kubelet: does what it is told, remembers what it was asked."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import deviceplugin_v1beta1_pb2_grpc as rpc
from devherd.api import podresources_v1_pb2 as prpb
from devherd.api import podresources_v1_pb2_grpc as prrpc
from devherd.sim.kubelet_process import SimKubelet

T = TypeVar("T")
Context = Any


class Loop:
    """An event loop in a thread, so that tests can be plain blocking code."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 20.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def device(name: str, healthy: bool = True, numa: Sequence[int] | None = None) -> pb.Device:
    """One device; `numa` None leaves the topology unset."""
    made = pb.Device(ID=name, health="Healthy" if healthy else "Unhealthy")
    if numa is not None:
        made.topology.CopyFrom(pb.TopologyInfo(nodes=[pb.NUMANode(ID=n) for n in numa]))
    return made


class Stub(rpc.DevicePluginServicer):
    """Serves one resource on one socket below the device plugin folder."""

    def __init__(self, loop: Loop, folder: str, resource: str, devices: Sequence[pb.Device], endpoint: str) -> None:
        self.loop = loop
        self.folder = folder
        self.resource = resource
        self.endpoint = endpoint
        self.devices = list(devices)
        self.options = pb.DevicePluginOptions()
        self.options_error = ""
        self.list_error = ""
        self.allocate_error = ""
        self.preferred_error = ""
        self.pre_start_error = ""
        self.preferred_answer: list[str] = []
        self.responses = 1
        self.hold_allocate = False
        self.answer = pb.ContainerAllocateResponse()
        self.streams = 0
        self.open_streams = 0
        self.allocates: list[list[str]] = []
        self.containers_asked: list[int] = []
        self.deadlines: list[float | None] = []
        self.preferred: list[tuple[set[str], set[str], int]] = []
        self.pre_starts: list[list[str]] = []
        self._queues: list[asyncio.Queue[list[pb.Device] | None]] = []
        self._release = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    # The service

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:  # noqa: N802
        if self.options_error:
            await context.abort(grpc.StatusCode.UNKNOWN, self.options_error)
        return self.options

    async def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: Context
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        if self.list_error:
            await context.abort(grpc.StatusCode.INTERNAL, self.list_error)
        queue: asyncio.Queue[list[pb.Device] | None] = asyncio.Queue()
        self._queues.append(queue)
        self.open_streams += 1
        try:
            yield pb.ListAndWatchResponse(devices=self.devices)
            while (devices := await queue.get()) is not None:
                yield pb.ListAndWatchResponse(devices=devices)
        finally:
            self.open_streams -= 1
            self._queues.remove(queue)

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:  # noqa: N802
        self.containers_asked.append(len(request.container_requests))
        self.deadlines.append(context.time_remaining())
        self.allocates.append(list(request.container_requests[0].devices_ids))
        if self.hold_allocate:
            await self._release.wait()
        if self.allocate_error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        return pb.AllocateResponse(container_responses=[self._answer(request)] * self.responses)

    def _answer(self, request: pb.AllocateRequest) -> pb.ContainerAllocateResponse:
        answer = pb.ContainerAllocateResponse()
        answer.CopyFrom(self.answer)
        if not answer.envs:
            answer.envs["IDS"] = ",".join(sorted(request.container_requests[0].devices_ids))
        return answer

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        one = request.container_requests[0]
        self.preferred.append((set(one.available_deviceIDs), set(one.must_include_deviceIDs), one.allocation_size))
        if self.preferred_error:
            await context.abort(grpc.StatusCode.UNKNOWN, self.preferred_error)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=self.preferred_answer)]
        )

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        self.pre_starts.append(list(request.devices_ids))
        if self.pre_start_error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.pre_start_error)
        return pb.PreStartContainerResponse()

    # What a test does with it

    @property
    def path(self) -> str:
        return os.path.normpath(os.path.join(self.folder, self.endpoint))

    def serve(self) -> Stub:
        async def start() -> None:
            self._server = grpc.aio.server()
            rpc.add_DevicePluginServicer_to_server(self, self._server)
            self._server.add_insecure_port("unix:" + self.path)
            await self._server.start()

        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        self.loop.run(start())
        return self

    def register(self, timeout: float = 15.0, **fields: Any) -> None:
        """Register; raises AioRpcError with the kubelet's text."""

        async def call() -> None:
            target = "unix:" + os.path.join(self.folder, "kubelet.sock")
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
            async with grpc.aio.insecure_channel(target, options=options) as channel:
                request = {"version": "v1beta1", "endpoint": self.endpoint, "resource_name": self.resource, **fields}
                await rpc.RegistrationStub(channel).Register(pb.RegisterRequest(**request), timeout=timeout)

        self.loop.run(call())

    def send(self, devices: Sequence[pb.Device], stream: int | None = None) -> None:
        """Send a list on all streams, or on one (by age)."""

        async def put() -> None:
            self.devices = list(devices)
            for queue in self._queues if stream is None else [self._queues[stream]]:
                queue.put_nowait(self.devices)

        self.loop.run(put())

    def end_stream(self, stream: int = 0) -> None:
        """End a stream cleanly; the server stays."""

        async def put() -> None:
            self._queues[stream].put_nowait(None)

        self.loop.run(put())

    def release(self) -> None:
        """Let held Allocate calls go on."""

        async def set_it() -> None:
            self.hold_allocate = False
            self._release.set()

        self.loop.run(set_it())

    def stop(self) -> None:
        """End abruptly."""

        async def end() -> None:
            if self._server is not None:
                self._release.set()
                await self._server.stop(None)
                self._server = None

        self.loop.run(end())


def pod_resources(loop: Loop, path: str, method: str, request: Any) -> Any:
    """One call on the PodResources socket."""

    async def call() -> Any:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel("unix:" + path, options=options) as channel:
            return await getattr(prrpc.PodResourcesListerStub(channel), method)(request, timeout=5)

    return loop.run(call())


def listed(loop: Loop, path: str) -> dict[str, dict[str, list[str]]]:
    """List as pod -> container -> ids."""
    reply = pod_resources(loop, path, "List", prpb.ListPodResourcesRequest())
    return {
        pod.name: {c.name: sorted(i for d in c.devices for i in d.device_ids) for c in pod.containers}
        for pod in reply.pod_resources
    }


class Bench:
    """A simulated kubelet in a short folder, plugins for it, and an end to all of it."""

    def __init__(self, **options: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
        self.loop = Loop()
        self.kubelet = SimKubelet.in_folder(self.folder, options=options or None)
        self.client = self.kubelet.client
        self._stubs: list[Stub] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for stub in self._stubs:
            stub.stop()
        self.kubelet.close()
        self.loop.close()
        shutil.rmtree(self.folder)

    def plugin(
        self, resource: str = "example.com/dev", count: int = 2, *, endpoint: str = "", register: bool = True
    ) -> Stub:
        """A serving plugin with `count` healthy devices a0, a1, ..., registered and seen by the kubelet."""
        devices = [device(f"a{n}") for n in range(count)]
        name = endpoint or f"suite/{resource.replace('/', '_')}.sock"
        stub = Stub(self.loop, self.kubelet.places.device_plugins, resource, devices, name)
        self._stubs.append(stub)
        stub.serve()
        if register:
            stub.register()
            self.client.wait_resource(resource, allocatable=count)
        return stub

    def resource(self, name: str = "example.com/dev") -> tuple[int, int] | None:
        """Capacity and allocatable."""
        found = self.client.node()["resources"].get(name)
        return (found["capacity"], found["allocatable"]) if found else None

    def phase(self, pod: str) -> tuple[str, str, str]:
        """Phase, reason and message."""
        found = self.client.pods(pod)[0]
        return found["phase"], found["reason"], found["message"]

    def ids(self, pod: str, container: str = "main", resource: str = "example.com/dev") -> list[str]:
        """What the kubelet thinks a container holds."""
        for found in self.client.pods(pod)[0]["containers"]:
            if found["name"] == container:
                return list(found["devices"].get(resource, []))
        raise AssertionError(f"pod {pod} has no container {container}")

    def reboot(self, before_start: Callable[[], None] = lambda: None) -> None:
        """Kubelet gone, containers gone, kubelet back."""
        self.kubelet.kill()
        self.kubelet.lose_containers()
        before_start()
        self.kubelet.start()

    def pod_resources(self) -> dict[str, dict[str, list[str]]]:
        """PodResources List."""
        return listed(self.loop, self.kubelet.places.pod_resources)
