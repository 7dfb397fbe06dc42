"""The registration service: who may register, the dial-back, and what the end of a stream does.

Kubelets up to 1.36 keep one client a resource: the end of any stream hits the newest. Since 1.37
(`fixed_disconnect`) they keep one a socket: the end of a stream hits its own, an older server is asked again, and a
socket that is connected already is refused - which loses the entry of the first connection as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

import grpc
import grpc.aio

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import deviceplugin_v1beta1_pb2_grpc as rpc
from devherd.sim.devices import DeviceManager
from devherd.sim.eventlog import EventLog
from devherd.sim.names import endpoint_path, extended_resource
from devherd.sim.options import Options
from devherd.sim.plugin import PluginClient, PluginError
from devherd.sim.tasks import spawn

VERSIONS = ["v1beta1"]


class Registrar(rpc.RegistrationServicer):
    """`gate` is awaited before anything moves (frozen kubelet)."""

    def __init__(
        self,
        devices: DeviceManager,
        options: Callable[[], Options],
        log: EventLog,
        gate: Callable[[], Awaitable[None]],
        take_skip: Callable[[], bool],
    ) -> None:
        self._devices = devices
        self._options = options
        self._log = log
        self._gate = gate
        self._take_skip = take_skip
        self._clients: dict[str, list[PluginClient]] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self.counts: dict[str, int] = {}

    async def Register(  # noqa: N802
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        """Version, name, dial-back, options, in this order. The request's own options are ignored."""
        await self._gate()
        name = request.resource_name
        self.counts[name] = self.counts.get(name, 0) + 1
        self._log("register", resource=name, endpoint=request.endpoint, version=request.version)
        options = self._options()
        if options.register_delay_ms:
            await asyncio.sleep(options.register_delay_ms / 1000)
        if request.version not in VERSIONS:
            supported = json.dumps(VERSIONS)
            await self._refuse(
                context,
                f"requested API version {_quoted(request.version)} is not supported by kubelet. "
                f"Supported version is {supported}",
                name,
            )
        if not extended_resource(name):
            await self._refuse(context, f"the ResourceName {_quoted(name)} is invalid", name)
        if options.refuse_subfolders and "/" in request.endpoint:
            await self._refuse(context, f"the endpoint {_quoted(request.endpoint)} is invalid", name)
        try:
            await self.connect(name, endpoint_path(self._devices.folder, request.endpoint), request.endpoint)
        except PluginError as error:
            await self._refuse(context, str(error), name)
        return pb.Empty()

    async def _refuse(
        self, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty], text: str, name: str
    ) -> NoReturn:
        self._log("refused", resource=name, error=text)
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError("abort returned")

    async def connect(self, name: str, path: str, endpoint: str) -> None:
        """Dial a plugin at `path`, ask for its options, and open its stream. Raises PluginError."""
        client = PluginClient(name, path, endpoint)
        older = self._clients.get(name, [])
        # Up to 1.36 the predecessor's entry is lost already here, also when this dial fails later on.
        self._clients[name] = [*older, client] if self._options().fixed_disconnect else [client]
        try:
            await client.dial(self._options().dial_timeout)
            plugin_options = await client.options()
            self._devices.connected(name, client, plugin_options)
        except (PluginError, asyncio.CancelledError):
            self._drop(name, client.path)
            await client.close()
            raise
        if self._options().end_older:
            for one in older:
                await one.close()
        if self._take_skip():
            self._log("stream-skipped", resource=name)
            return
        run = spawn(self._run(name, client))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)

    async def _run(self, name: str, client: PluginClient) -> None:
        async def receive(devices: Sequence[pb.Device]) -> None:
            await self._gate()
            self._devices.listed(name, devices)

        self._log("stream-open", resource=name, endpoint=client.endpoint)
        reason = await client.watch(receive)
        await self._gate()
        self._log("stream-end", resource=name, endpoint=client.endpoint, reason=reason)
        kept = self._kept(name, client.path)
        if kept is None:
            # Nothing is closed: a plugin that only ended its stream is still asked to allocate.
            return
        self._drop(name, kept.path)
        await kept.close()
        self._devices.disconnected(name, kept.path)
        await client.close()

    def _kept(self, name: str, path: str) -> PluginClient | None:
        """The client that the end of a stream hits."""
        clients = self._clients.get(name, [])
        if self._options().fixed_disconnect:
            clients = [one for one in clients if one.path == path]
        return clients[0] if clients else None

    def _drop(self, name: str, path: str) -> None:
        """Forget the clients on a socket; up to 1.36 whatever client the name has."""
        left = [one for one in self._clients.get(name, []) if one.path != path]
        if left and self._options().fixed_disconnect:
            self._clients[name] = left
        else:
            self._clients.pop(name, None)

    async def deregister(self, name: str, path: str) -> None:
        """What the registration watcher does when a socket is gone."""
        kept = self._kept(name, path)
        if kept is not None:
            self._drop(name, kept.path)
            await kept.close()
            self._devices.disconnected(name, kept.path)

    async def cut(self, name: str) -> bool:
        """Cancel the newest stream of a resource while the kubelet lives on (as after an internal error)."""
        clients = self._clients.get(name)
        if not clients:
            return False
        await clients[-1].close()
        return True


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
