"""How near two partitions are: AMD's weights for preferred allocation, turned round so that more is nearer.

The vendor's plugin sums penalties for each pair: same GPU 10, another 20; joined by XGMI 10, by PCI Express 40, else
50; same NUMA node 10, another 20. They are taken from KFD's links once for each scan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devherd_gpu.amd.gpus import Gpu, Partition
from devherd_gpu.amd.kfd import XGMI

_PCIE = 2
_WORST = 90
LARGEST = 256
"""Devices up to which all pairs are weighed; beyond that only which GPU each belongs to."""


def affinity(members: Sequence[tuple[str, Gpu, Partition]]) -> Mapping[str, int]:
    """Weights between device ids (`a`, NUL, `b` with a < b). `members` are id, GPU and partition."""
    found: dict[str, int] = {}
    ordered = sorted(members, key=lambda member: member[0])
    for index, (one, gpu, part) in enumerate(ordered):
        for other, other_gpu, other_part in ordered[index + 1 :]:
            found[f"{one}\0{other}"] = _WORST - penalty(gpu, part, other_gpu, other_part)
    return found


def penalty(gpu: Gpu, part: Partition, other_gpu: Gpu, other_part: Partition) -> int:
    """The vendor's penalty of a pair: 30 to 90."""
    same = 10 if gpu.address == other_gpu.address else 20
    near = 10 if gpu.numa == other_gpu.numa else 20
    return same + _link(part, other_part) + near


def _link(part: Partition, other: Partition) -> int:
    if part.kfd is None or other.kfd is None:
        return 50
    kinds = {part.kfd.links.get(other.kfd.index), other.kfd.links.get(part.kfd.index)}
    if XGMI in kinds:
        return 10
    return 40 if _PCIE in kinds else 50
