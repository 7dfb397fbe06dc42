"""Whatever arrives on a front's sockets, it goes on serving the kubelet."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.control import ControlError, ask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.frontnode import RESOURCE, FrontNode, xdevs

METHODS = ("GetDevicePluginOptions", "Allocate", "GetPreferredAllocation", "PreStartContainer")
TEXT = st.text(max_size=80)
IDS = st.lists(TEXT, max_size=6)
LAX = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def node() -> Iterator[FrontNode]:
    with FrontNode(xdevs(3)) as running:
        running.up(allocatable=3)
        yield running


@pytest.fixture(scope="module")
def channel(node: FrontNode) -> Iterator[grpc.Channel]:
    row = node.until(lambda: (found := node.resource())["state"] == "registered" and found)
    path = f"unix:{node.kubelet.places.device_plugins}/{row['socket']}"
    with grpc.insecure_channel(path, options=[("grpc.default_authority", "localhost")]) as open_channel:
        yield open_channel


def send(channel: Any, method: str, request: bytes) -> None:
    channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=5)


def call(channel: grpc.Channel, method: str, request: bytes) -> Any:
    try:
        send(channel, method, request)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def serves(node: FrontNode) -> None:
    row = node.resource()
    assert (row["state"], row["registrations"], row["healthy"]) == ("registered", 1, 3)
    assert node.front is not None
    assert node.front.poll() is None


@LAX
@given(st.sampled_from(METHODS), st.binary(max_size=300))
def test_bytes_that_are_no_message(node: FrontNode, channel: grpc.Channel, method: str, request: bytes) -> None:
    assert call(channel, method, request) is not grpc.StatusCode.DEADLINE_EXCEEDED
    serves(node)


@LAX
@given(st.lists(IDS, max_size=4))
def test_allocate_with_any_ids(node: FrontNode, channel: grpc.Channel, containers: list[list[str]]) -> None:
    request = pb.AllocateRequest(
        container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    )
    expected = grpc.StatusCode.INVALID_ARGUMENT if any(containers) else grpc.StatusCode.OK
    assert call(channel, "Allocate", request.SerializeToString()) is expected
    serves(node)


@LAX
@given(IDS, IDS, st.integers(-(2**31), 2**31 - 1))
def test_preferred_allocation_is_never_an_error(
    node: FrontNode, channel: grpc.Channel, available: list[str], must: list[str], size: int
) -> None:
    asked = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    request = pb.PreferredAllocationRequest(container_requests=[asked])
    assert call(channel, "GetPreferredAllocation", request.SerializeToString()) is grpc.StatusCode.OK


@LAX
@given(st.binary(max_size=200))
def test_rubbish_on_the_control_socket(node: FrontNode, request: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect(f"{node.folder}/run/generic.control.sock")
        client.sendall(request + b"\n")
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    serves(node)


@pytest.mark.parametrize("op", [None, 7, "nonsense", {"a": 1}, "devices", "explain"])
def test_odd_requests_on_the_control_socket(node: FrontNode, op: object) -> None:
    path = f"{node.folder}/run/generic.control.sock"
    if op in ("devices", "explain"):
        ask(path, {"op": op, "resource": {"x": 1}, "what": ["y"]})
    else:
        with pytest.raises(ControlError, match="known:"):
            ask(path, {"op": op})
    serves(node)


def test_the_pods_status_shows_why_an_id_was_refused(node: FrontNode, channel: grpc.Channel) -> None:
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["nobody"])])
    with pytest.raises(grpc.RpcError) as refused:
        send(channel, "Allocate", request.SerializeToString())
    assert refused.value.details() == f"{RESOURCE}: no device nobody"
