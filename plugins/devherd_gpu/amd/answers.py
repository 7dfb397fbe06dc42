"""What a container receives with an AMD GPU: as the vendor's plugin gives it, or by a CDI name."""

from __future__ import annotations

from collections.abc import Iterable

from devherd.host.cdi import CdiDevice, CdiEdits, CdiNode, spec, spec_file
from devherd.settings import Paths
from devherd.values import HostFile, Node, Parts

from devherd_gpu.amd.gpus import Gpu, Partition

KIND = "amd.com/gpu"
"""The kind of AMD's container toolkit. Its names are indices in a file of its own; ours are the ids."""


def nodes(kfd: Node, part: Partition) -> Parts:
    """/dev/kfd and the partition's card and render node, all `rw`: no variable, mount or annotation."""
    return Parts(nodes=(kfd, part.card, part.render))


def by_name(part: Partition) -> Parts:
    """The partition's name in our specification."""
    return Parts(cdi=(cdi_name(part),))


def cdi_name(part: Partition) -> str:
    """The qualified CDI name of a partition."""
    return f"{KIND}={part.id}"


def specification(paths: Paths, kfd: Node, members: Iterable[tuple[Gpu, Partition]]) -> HostFile:
    """The specification of every partition."""
    devices = [CdiDevice(part.id, CdiEdits(nodes=(_node(part.card), _node(part.render)))) for _, part in members]
    return spec_file(paths, KIND, spec(KIND, devices, CdiEdits(nodes=(_node(kfd),))))


def _node(node: Node) -> CdiNode:
    return CdiNode(node.container_path, type=node.kind, major=node.major, minor=node.minor, permissions="rw")
