"""Values to and from the kubelet's wire format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.values import Composed, Mount, Node, Snapshot

VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a full list as ListAndWatchResponse. An unknown NUMA node stays unset: an empty one hides the device."""
    message = pb.ListAndWatchResponse()
    add = message.devices.add
    for member in snapshot.members:
        device = add(ID=member.id, health=HEALTHY if member.healthy else UNHEALTHY)
        for node in member.numa:
            device.topology.nodes.add(ID=node)
    return message.SerializeToString()


def encode_answers(answers: Iterable[Composed]) -> bytes:
    """Encode one answer per container as AllocateResponse; equal answers give equal bytes."""
    message = pb.AllocateResponse()
    for answer in answers:
        response = message.container_responses.add()
        response.envs.update(answer.env)
        response.annotations.update(answer.annotations)
        for mount in answer.mounts:
            response.mounts.add(
                container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
            )
        for node in answer.nodes:
            response.devices.add(
                container_path=node.container_path, host_path=node.host_path, permissions=node.permissions
            )
        for name in answer.cdi:
            response.cdi_devices.add(name=name)
    return message.SerializeToString(deterministic=True)


def decode_answer(data: bytes) -> Composed:
    """Decode a ContainerAllocateResponse, as a kubelet's checkpoint holds it. Raises ValueError when it is none.

    What a node physically was is not in it: kind is empty, the number 0:0, the thing empty.
    """
    try:
        response = pb.ContainerAllocateResponse.FromString(data)
    except Exception as error:
        raise ValueError(f"not a ContainerAllocateResponse: {error}") from error
    return Composed(
        nodes=tuple(Node(d.host_path, d.container_path, d.permissions, "", 0, 0, "") for d in response.devices),
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in response.mounts),
        env=dict(response.envs),
        annotations=dict(response.annotations),
        cdi=tuple(device.name for device in response.cdi_devices),
    )


def encode_register(endpoint: str, resource: str, options: tuple[bool, bool]) -> bytes:
    """Encode a RegisterRequest; `options` are (PreStartContainer wanted, preferred allocation offered)."""
    return pb.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=_options(options)
    ).SerializeToString()


def encode_options(options: tuple[bool, bool]) -> bytes:
    """Encode DevicePluginOptions."""
    return _options(options).SerializeToString()


def encode_preferred(chosen: Sequence[Sequence[str]]) -> bytes:
    """Encode one list of ids per container as PreferredAllocationResponse."""
    message = pb.PreferredAllocationResponse()
    for ids in chosen:
        message.container_responses.add(deviceIDs=ids)
    return message.SerializeToString()


def _options(options: tuple[bool, bool]) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(pre_start_required=options[0], get_preferred_allocation_available=options[1])
