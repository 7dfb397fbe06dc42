"""PodResources v1, and v1alpha1's List: what plugins and monitoring can see of allocations."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import grpc
import grpc.aio

from devherd.api import podresources_v1_pb2 as pb
from devherd.api import podresources_v1_pb2_grpc as rpc
from devherd.sim.devices import NO_TOPOLOGY, DeviceManager
from devherd.sim.options import Options
from devherd.sim.pods import TERMINAL, Entry, Kind

Context = grpc.aio.ServicerContext[Any, Any]


class Limiter:
    """A token bucket over all clients and methods."""

    def __init__(self, options: Callable[[], Options]) -> None:
        self._options = options
        self._tokens = float(options().list_burst)
        self._at = time.monotonic()

    def allow(self) -> bool:
        """Take one token if there is one."""
        options = self._options()
        now = time.monotonic()
        self._tokens = min(float(options.list_burst), self._tokens + (now - self._at) * options.list_qps)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PodResources(rpc.PodResourcesListerServicer):
    """List is empty after a start until the first pods are known: nothing here pretends otherwise."""

    def __init__(
        self,
        devices: DeviceManager,
        known: Callable[[], list[Entry]],
        options: Callable[[], Options],
        gate: Callable[[], Awaitable[None]],
    ) -> None:
        self._devices = devices
        self._known = known
        self._gate = gate
        self._limiter = Limiter(options)

    async def List(  # noqa: N802
        self, request: pb.ListPodResourcesRequest, context: Context
    ) -> pb.ListPodResourcesResponse:
        """Active pods with sidecars and regular containers."""
        await self._enter(context)
        self._devices.collect()
        return pb.ListPodResourcesResponse(pod_resources=[self._pod(entry) for entry in self._active()])

    async def Get(  # noqa: N802
        self, request: pb.GetPodResourcesRequest, context: Context
    ) -> pb.GetPodResourcesResponse:
        """One active pod."""
        await self._enter(context)
        for entry in self._active():
            if entry.pod.name == request.pod_name and entry.pod.namespace == request.pod_namespace:
                return pb.GetPodResourcesResponse(pod_resources=self._pod(entry))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError("abort returned")

    async def GetAllocatableResources(  # noqa: N802
        self, request: pb.AllocatableResourcesRequest, context: Context
    ) -> pb.AllocatableResourcesResponse:
        """Healthy devices, in use or not; one with a topology that names no node is missing."""
        await self._enter(context)
        found: list[pb.ContainerDevices] = []
        for resource, ids in self._devices.healthy.items():
            listed = self._devices.all.get(resource, {})
            for device in ids:
                if device in listed:
                    found.extend(_devices(resource, device, listed[device].nodes))
        return pb.AllocatableResourcesResponse(devices=found)

    def old_handlers(self) -> grpc.GenericRpcHandler:
        """The deprecated v1alpha1 service. Its messages are v1's with fewer fields, so v1's are used."""
        one = grpc.unary_unary_rpc_method_handler(
            self._old_list,
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=pb.ListPodResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("v1alpha1.PodResourcesLister", {"List": one})

    async def _old_list(self, request: pb.ListPodResourcesRequest, context: Context) -> pb.ListPodResourcesResponse:
        """All pods, also those that ended, with regular containers only and no topology."""
        await self._enter(context)
        self._devices.collect()
        pods = [self._pod(entry, (Kind.MAIN,)) for entry in self._known()]
        for pod in pods:
            for container in pod.containers:
                for device in container.devices:
                    device.ClearField("topology")
        return pb.ListPodResourcesResponse(pod_resources=pods)

    async def _enter(self, context: Context) -> None:
        await self._gate()
        if not self._limiter.allow():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _active(self) -> list[Entry]:
        return [entry for entry in self._known() if entry.status.phase not in TERMINAL]

    def _pod(self, entry: Entry, kinds: Collection[Kind] = (Kind.SIDECAR, Kind.MAIN)) -> pb.PodResources:
        pod = entry.pod
        containers = []
        for container in pod.containers:
            if container.kind not in kinds:
                continue
            devices: list[pb.ContainerDevices] = []
            for resource, held in self._devices.pods.get(pod.uid, {}).get(container.name, {}).items():
                nodes: dict[str, list[int]] = {}
                for node, ids in held.by_node.items():
                    for device in ids:
                        nodes.setdefault(device, []).append(node)
                for device, of in nodes.items():
                    devices.extend(_devices(resource, device, None if of == [NO_TOPOLOGY] else of))
            containers.append(pb.ContainerResources(name=container.name, devices=devices))
        return pb.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)


def _devices(resource: str, device: str, nodes: Iterable[int] | None) -> list[pb.ContainerDevices]:
    if nodes is None:
        return [pb.ContainerDevices(resource_name=resource, device_ids=[device])]
    return [
        pb.ContainerDevices(
            resource_name=resource,
            device_ids=[device],
            topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]),
        )
        for node in nodes
    ]
