"""One dialled plugin: its connection and its stream. Nothing is ever retried here."""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Awaitable, Callable, Sequence

import grpc
import grpc.aio

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import deviceplugin_v1beta1_pb2_grpc as rpc

_CHANNEL = [
    ("grpc.default_authority", "localhost"),
    # A connection of its own for each registration, as in Go; the default shares them and their back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]


class PluginError(Exception):
    """A call failed; the text is what Go's gRPC would say."""


def go_text(error: grpc.aio.AioRpcError) -> str:
    """An RPC error as Go prints it: these texts end up in pod status."""
    words = error.code().name.split("_")
    code = "".join(word.capitalize() for word in words)
    code = {"Ok": "OK", "Cancelled": "Canceled"}.get(code, code)
    return f"rpc error: code = {code} desc = {error.details() or ''}"


class PluginClient:
    """The kubelet's side of one registration."""

    def __init__(self, resource: str, path: str, endpoint: str) -> None:
        self.resource = resource
        self.path = path
        self.endpoint = endpoint
        self.stopped = False
        self._channel = grpc.aio.insecure_channel("unix:" + os.path.abspath(path), options=_CHANNEL)
        stub = rpc.DevicePluginStub(self._channel)
        self._stub = stub

    async def dial(self, timeout: float) -> None:
        """Connect, blocking. Raises PluginError after `timeout` seconds, however clear the refusal was."""
        try:
            await asyncio.wait_for(self._ready(), timeout)
        except asyncio.TimeoutError:
            raise PluginError("failed to dial device plugin: context deadline exceeded") from None

    async def _ready(self) -> None:
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def options(self) -> pb.DevicePluginOptions:
        """GetDevicePluginOptions, no deadline of its own."""
        try:
            return await self._stub.GetDevicePluginOptions(pb.Empty())
        except grpc.aio.AioRpcError as error:
            raise PluginError(f"failed to get device plugin options: {go_text(error)}") from error

    async def watch(self, receive: Callable[[Sequence[pb.Device]], Awaitable[None]]) -> str:
        """Read ListAndWatch until it ends, however it ends; returns why. Receive limit: gRPC's 4 MiB."""
        try:
            async for message in self._stub.ListAndWatch(pb.Empty()):
                await receive(message.devices)
        except grpc.aio.AioRpcError as error:
            return go_text(error)
        except asyncio.CancelledError:
            return "rpc error: code = Canceled desc = grpc: the client connection is closing"
        return "EOF"

    async def allocate(self, ids: Sequence[str]) -> pb.AllocateResponse:
        """Allocate for one container, no deadline."""
        self._check()
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            return await self._stub.Allocate(request)
        except grpc.aio.AioRpcError as error:
            raise PluginError(go_text(error)) from error

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> pb.PreferredAllocationResponse:
        """GetPreferredAllocation for one container, no deadline."""
        self._check()
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
                )
            ]
        )
        try:
            return await self._stub.GetPreferredAllocation(request)
        except grpc.aio.AioRpcError as error:
            raise PluginError(go_text(error)) from error

    async def pre_start(self, ids: Sequence[str], timeout: float) -> None:
        """PreStartContainer with the kubelet's deadline."""
        self._check()
        try:
            await self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise PluginError(go_text(error)) from error

    def _check(self) -> None:
        if self.stopped:
            raise PluginError(f"endpoint {self.resource} has been stopped")

    async def close(self) -> None:
        """Close the connection; an open stream ends with it."""
        self.stopped = True
        await self._channel.close()
