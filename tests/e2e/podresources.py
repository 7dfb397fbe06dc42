"""What the kubelet's PodResources API says, asked plainly: one question, one answer, no retry."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import grpc
from devherd.api import podresources_v1_pb2 as pb

from e2e.node import POD_RESOURCES

_OPTIONS = [("grpc.default_authority", "localhost")]
Held = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Resource -> device id -> "pod/container" of each that has it."""


def held(version: str = "v1") -> Held:
    """List. `v1alpha1` has the same fields as far as these go. Raises grpc.RpcError."""
    answer = pb.ListPodResourcesResponse.FromString(ask(f"/{version}.PodResourcesLister/List", b""))
    return _held(answer.pod_resources)


def held_by(pod: str, namespace: str = "default") -> Held:
    """Get, for one pod. Raises grpc.RpcError when it is not active."""
    request = pb.GetPodResourcesRequest(pod_name=pod, pod_namespace=namespace)
    answer = ask("/v1.PodResourcesLister/Get", request.SerializeToString())
    return _held([pb.GetPodResourcesResponse.FromString(answer).pod_resources])


def allocatable() -> dict[str, set[str]]:
    """Resource -> ids that count as healthy, those in use included. Raises grpc.RpcError."""
    answer = pb.AllocatableResourcesResponse.FromString(ask("/v1.PodResourcesLister/GetAllocatableResources", b""))
    found: dict[str, set[str]] = {}
    for device in answer.devices:
        found.setdefault(device.resource_name, set()).update(device.device_ids)
    return found


def ask(method: str, request: bytes) -> bytes:
    """One call. Raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix:{POD_RESOURCES}", options=_OPTIONS) as channel:
        call: Any = channel.unary_unary(method)
        return bytes(call(request, timeout=10))


def ask_for(seconds: float) -> int:
    """Ask far too often; return how often the kubelet's limiter refused. Raises grpc.RpcError for anything else.

    Many questions at once, because a loaded machine would not get beyond the limit of 100 a second one by one.
    """
    refused, end = 0, time.monotonic() + seconds
    with grpc.insecure_channel(f"unix:{POD_RESOURCES}", options=_OPTIONS) as channel:
        call: Any = channel.unary_unary("/v1.PodResourcesLister/List")
        while time.monotonic() < end:
            for one in [call.future(b"", timeout=30) for _ in range(200)]:
                error = one.exception()
                if error is not None and error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise error
                refused += error is not None
    return refused


def _held(pods: object) -> Held:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for pod in pods:  # type: ignore[attr-defined]
        for container in pod.containers:
            for device in container.devices:
                ids = found.setdefault(device.resource_name, {})
                for one in device.device_ids:
                    ids[one] = (*ids.get(one, ()), f"{pod.name}/{container.name}")
    return found
