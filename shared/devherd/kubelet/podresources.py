"""What the kubelet says about who holds which device (PodResources v1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from devherd.api import podresources_v1_pb2 as pb

_SERVICE = "/v1.PodResourcesLister/"
_DEADLINE = 5.0
_LIMITED_PAUSES = (0.05, 0.2, 0.5)  # seconds; the limiter refills a hundred calls a second
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    # The server sets no bound on its answers: 110 pods with thousands of devices pass the default of 4 MiB.
    ("grpc.max_receive_message_length", 16 << 20),
)


class PodResourcesError(Exception):
    """The kubelet did not answer. Never to be read as "nobody holds anything"."""


class PodResources:
    """A client that connects per question and leaves no descriptor behind; a question costs about two milliseconds."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def list(self) -> Mapping[str, Mapping[str, str]]:
        """Return resource -> id -> "namespace/pod/container" for active pods. Raises PodResourcesError.

        Empty for a while after a kubelet start; plain init containers are never in it.
        """
        answer = pb.ListPodResourcesResponse.FromString(await self._ask("List"))
        held: dict[str, dict[str, str]] = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                owner = f"{pod.namespace}/{pod.name}/{container.name}"
                for device in container.devices:
                    held.setdefault(device.resource_name, {}).update(dict.fromkeys(device.device_ids, owner))
        return held

    async def allocatable(self) -> Mapping[str, frozenset[str]]:
        """Return resource -> ids that count as healthy, those in use included. Raises PodResourcesError."""
        answer = pb.AllocatableResourcesResponse.FromString(await self._ask("GetAllocatableResources"))
        healthy: dict[str, set[str]] = {}
        for device in answer.devices:
            healthy.setdefault(device.resource_name, set()).update(device.device_ids)
        return {resource: frozenset(ids) for resource, ids in healthy.items()}

    async def _ask(self, method: str) -> bytes:
        channel = grpc.aio.insecure_channel(f"unix:{self.path}", options=_OPTIONS)
        try:
            call: Any = channel.unary_unary(_SERVICE + method)
            for pause in (*_LIMITED_PAUSES, None):
                try:
                    return bytes(await call(b"", timeout=_DEADLINE))
                except grpc.aio.AioRpcError as error:
                    if pause is None or error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise PodResourcesError(f"{self.path}: {error.details() or error.code()}") from None
                await asyncio.sleep(pause)
            raise AssertionError("the last try returns or raises")
        finally:
            with contextlib.suppress(Exception):
                await channel.close()
