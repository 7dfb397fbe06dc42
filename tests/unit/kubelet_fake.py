"""A small kubelet for the tests of devherd.kubelet: in this process, on sockets in a temporary folder.

It keeps the real one's habits that matter here: dial back inside Register, one stream per registration without retry,
and the disconnect by resource name when an old stream ends. A new life is a new `generation`; since all lives share
this process, `probe` adds the generation to what the kernel says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any

import grpc
import grpc.aio
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import podresources_v1_pb2 as pr
from devherd.kubelet.changes import Changes
from devherd.kubelet.endpoint import Endpoint
from devherd.kubelet.identity import Identity, accepts, probe_socket
from devherd.kubelet.layout import Layout
from devherd.kubelet.link import KubeletLink
from devherd.kubelet.podresources import PodResources
from devherd.kubelet.registration import Registration
from devherd.kubelet.regstatus import RegistrationStatus
from devherd.kubelet.server import PreferredRequest, ResourceServer
from devherd.kubelet.verify import Verifier
from devherd.kubelet.watch import KubeletWatch
from devherd.values import Composed, Member, Node, Snapshot

LOCAL = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


class Client:
    """The kubelet's side of one registration."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.task: asyncio.Task[None] | None = None


class FakeKubelet:
    """`calls` are (resource, endpoint, time) of every Register that arrived, `lists` the newest list by resource."""

    def __init__(self, folder: str) -> None:
        self.device_plugins = os.path.join(folder, "device-plugins")
        self.socket = os.path.join(self.device_plugins, "kubelet.sock")
        self.pod_resources = os.path.join(folder, "pr.sock")
        self.generation = 0
        self.calls: list[tuple[str, str, float]] = []
        self.authorities: list[str] = []
        self.lists: dict[str, pb.ListAndWatchResponse] = {}
        self.messages = 0
        self.connected: dict[str, Client] = {}
        self.most_streams = 0
        self.refusal = ""
        self.refused: set[str] | None = None
        self.refuse_subfolders = False
        self.stuck: set[str] = set()
        """Paths that it counts as connected for ever."""
        self.hang = False
        self.changes = Changes()
        self.shown: dict[str, set[str]] | None = None
        self._streams: dict[str, int] = {}
        self._clients: set[Client] = set()
        self._server: grpc.aio.Server | None = None
        self._lister: grpc.aio.Server | None = None

    def probe(self, path: str) -> Identity:
        return Identity(probe_socket(path).pid, self.generation)

    def wipe(self) -> None:
        for name in os.listdir(self.device_plugins):
            path = os.path.join(self.device_plugins, name)
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)

    async def start(self) -> float:
        """Begin a new life. Returns when the socket listens (monotonic seconds)."""
        os.makedirs(self.device_plugins, exist_ok=True)
        self.generation += 1
        self.wipe()
        self.lists.clear()
        self._server = grpc.aio.server()
        register = grpc.unary_unary_rpc_method_handler(self._register, pb.RegisterRequest.FromString, _bytes)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        return monotonic()

    async def serve_pod_resources(self) -> None:
        async def allocatable(_request: bytes, _context: object) -> bytes:
            return self._allocatable().SerializeToString()

        self._lister = grpc.aio.server()
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(allocatable)
        self._lister.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"GetAllocatableResources": method}),)
        )
        self._lister.add_insecure_port(f"unix:{self.pod_resources}")
        await self._lister.start()

    async def stop(self) -> None:
        """Die: every connection ends at once."""
        for client in tuple(self._clients):
            await self._end(client)
        self.connected.clear()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def close(self) -> None:
        await self.stop()
        if self._lister is not None:
            await self._lister.stop(0)

    async def cut(self, resource: str) -> None:
        """End one stream; the kubelet lives on."""
        await self._end(self.connected.pop(resource))

    def healthy(self, resource: str) -> list[str]:
        return [one.ID for one in self.lists[resource].devices if one.health == "Healthy"]

    async def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        # Not everything a test asks about announces itself here, so it is looked at now and then as well.
        ends = monotonic() + timeout
        while not await self.changes.until(condition, 0.02):
            assert monotonic() < ends, "not within the time"

    def channel(self, resource: str) -> grpc.aio.Channel:
        return self.connected[resource].channel

    def _allocatable(self) -> pr.AllocatableResourcesResponse:
        answer = pr.AllocatableResourcesResponse()
        shown = self.shown if self.shown is not None else {name: set(self.healthy(name)) for name in self.lists}
        for name, ids in shown.items():
            for one in ids:
                answer.devices.add(resource_name=name, device_ids=[one])
        return answer

    async def _register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        self.calls.append((request.resource_name, request.endpoint, monotonic()))
        self.changes.kick()
        if self.hang:
            await asyncio.Event().wait()
        if request.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, f'requested API version "{request.version}" is not supported')
        if self.refusal and (self.refused is None or request.resource_name in self.refused):
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        path = os.path.normpath(os.path.join(self.device_plugins, request.endpoint))
        if (self.refuse_subfolders and "/" in request.endpoint) or not accepts(path):
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {path}")
        if path in self.stuck:
            await context.abort(grpc.StatusCode.UNKNOWN, f"device plugin already connected: {path}")
        client = Client(grpc.aio.insecure_channel(f"unix:{path}", options=LOCAL))
        self._clients.add(client)
        options = client.channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions", _bytes, _options)
        await options(pb.Empty(), timeout=10)
        self.connected[request.resource_name] = client
        client.task = asyncio.create_task(self._watch(request.resource_name, client))
        return pb.Empty()

    async def _watch(self, resource: str, client: Client) -> None:
        watch = client.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch", _bytes, pb.ListAndWatchResponse.FromString
        )
        self._streams[resource] = self._streams.get(resource, 0) + 1
        self.most_streams = max(self.most_streams, self._streams[resource])
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for message in watch(pb.Empty()):
                self.lists[resource] = message
                self.messages += 1
                self.changes.kick()
        self._streams[resource] -= 1
        newest = self.connected.pop(resource, None)
        self.lists.pop(resource, None)
        if newest is not None and newest is not client:
            await self._end(newest)
        self._clients.discard(client)
        await client.channel.close()
        self.changes.kick()

    async def _end(self, client: Client) -> None:
        await client.channel.close()
        if client.task is not None:
            await asyncio.gather(client.task, return_exceptions=True)
        self._clients.discard(client)


class Devices:
    """A front in miniature: every id is known and gives one node."""

    def __init__(self) -> None:
        self.prepared: list[tuple[str, ...]] = []

    def options(self) -> tuple[bool, bool]:
        return (True, True)

    def allocate(self, containers: Sequence[Sequence[str]]) -> Sequence[Composed]:
        return [answer_of(ids) for ids in containers]

    def preferred(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [sorted(one.available)[: one.size] for one in requests]

    async def pre_start(self, ids: Sequence[str]) -> None:
        self.prepared.append(tuple(ids))


def answer_of(ids: Sequence[str]) -> Composed:
    nodes = tuple(Node(f"/dev/{one}", f"/dev/{one}", "rw", "c", 240, 0, "") for one in sorted(ids))
    return Composed(nodes, (), {"IDS": ",".join(sorted(ids))}, {}, ())


def snapshot(resource: str, healthy: int, unhealthy: int = 0, number: int = 1, reason: str = "") -> Snapshot:
    members = [Member(f"d{one:03}", one < healthy, (), reason) for one in range(healthy + unhealthy)]
    return Snapshot(resource, number, tuple(members))


class Bench:
    """A kubelet and the product's parts for some resources, as a front would hold them."""

    def __init__(self, folder: str, resources: int, layout: str, verify: bool, refused_retry: float) -> None:
        self.kubelet = FakeKubelet(folder)
        self.device_plugins = self.kubelet.device_plugins
        self.watch = KubeletWatch(self.device_plugins, probe=self.kubelet.probe)
        self.link = KubeletLink(self.kubelet.socket)
        self.layout = Layout(layout)
        self.names = [f"example.com/r{one}" for one in range(resources)]
        self.servers: dict[str, ResourceServer] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: dict[str, Registration] = {}
        self.history: list[tuple[str, RegistrationStatus]] = []
        verifier = Verifier(PodResources(self.kubelet.pod_resources)) if verify else None
        for name in self.names:
            server = ResourceServer(name, Devices())
            server.feed.publish(snapshot(name, 2))
            endpoint = Endpoint(self.device_plugins, "t", name)
            self.servers[name], self.endpoints[name] = server, endpoint
            self.registrations[name] = Registration(
                server,
                endpoint,
                self.watch,
                self.link,
                self.layout,
                verifier=verifier,
                refused_retry=refused_retry,
                on_change=lambda status, name=name: self._changed(name, status),  # type: ignore[misc]
            )

    def _changed(self, name: str, status: RegistrationStatus) -> None:
        self.history.append((name, status))
        self.kubelet.changes.kick()

    def start(self) -> None:
        self.watch.start()
        for registration in self.registrations.values():
            registration.start()

    def status(self, name: str) -> RegistrationStatus:
        return self.registrations[name].status

    def all_registered(self) -> bool:
        return all(
            one.status.state == "registered"
            and one.status.identity is not None
            and one.status.identity.start_time == self.kubelet.generation
            and name in self.kubelet.lists
            for name, one in self.registrations.items()
        )

    async def registered(self, timeout: float = 10.0) -> None:
        await self.kubelet.until(self.all_registered, timeout)

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self.registrations.values()))
        await self.link.close()
        await self.watch.close()
        await self.kubelet.close()


@contextlib.asynccontextmanager
async def bench(
    resources: int = 1,
    *,
    layout: str = "auto",
    verify: bool = False,
    refused_retry: float = 60.0,
    folder: bool = True,
    start: bool = True,
) -> AsyncIterator[Bench]:
    """A bench in a short temporary folder; its device plugin folder exists unless `folder` is false."""
    root = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    try:
        if folder:
            os.mkdir(os.path.join(root, "device-plugins"))
        made = Bench(root, resources, layout, verify, refused_retry)
        if start:
            made.start()
        try:
            yield made
        finally:
            await made.stop()
    finally:
        shutil.rmtree(root)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _options(data: bytes) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions.FromString(data)
