"""How near two GPUs are: NVLink and PCI topology by NVML, asked once for each life of the driver's session.

The scores are those that NVIDIA's plugin adds up for a pair (more is nearer): by what both hang on, and a hundred for
each NVLink between them. GPUs that are joined to NVSwitches are all equally near, which its plugin does not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from devherd_gpu.nvidia.gpus import Found, Gpu
from devherd_gpu.nvidia.nvml import Nvml, NvmlError, address

LINKS = 36
"""Links a GPU may have (NVML_NVLINK_MAX_LINKS)."""
PER_LINK = 100
_ANCESTOR = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
"""NVML's level of the nearest common ancestor: board, one switch, several, host bridge, NUMA node, system."""
_WITHOUT = (1, 2, 3, 4, 6, 13, 15)
"""Errors that mean: no such link or no such question here."""

Matrix = dict[tuple[str, str], int]
"""uuid pair, ordered, -> score."""


class Topology:
    """Remembers the matrix as long as the same session has the same GPUs."""

    def __init__(self) -> None:
        self._key: tuple[int, tuple[str, ...]] | None = None
        self._matrix: Matrix = {}

    def matrix(self, nvml: Nvml, generation: int, found: Found) -> Matrix:
        """Scores of all pairs that can be asked; a GPU that does not answer has none and costs no other."""
        usable = sorted((gpu for gpu in found.gpus if not gpu.lost and gpu.index >= 0), key=lambda gpu: gpu.uuid)
        key = (generation, tuple(gpu.uuid for gpu in usable))
        if key != self._key:
            self._matrix, self._key = _matrix(nvml, usable, frozenset(found.cards)), key
        return self._matrix


def _matrix(nvml: Nvml, gpus: Sequence[Gpu], cards: frozenset[str]) -> Matrix:
    handles = {gpu.uuid: handle for gpu in gpus if (handle := _handle(nvml, gpu)) is not None}
    links = {uuid: _links(nvml, handle, cards) for uuid, handle in handles.items()}
    found: Matrix = {}
    for one, other in combinations([gpu for gpu in gpus if gpu.uuid in handles], 2):
        level = _asked(nvml, "nvmlDeviceGetTopologyCommonAncestor", handles[one.uuid], handles[other.uuid])
        score = _ANCESTOR.get(-1 if level is None else int(level), 0)
        found[one.uuid, other.uuid] = score + PER_LINK * _between(one, links[one.uuid], other, links[other.uuid])
    return found


def _handle(nvml: Nvml, gpu: Gpu) -> Any:
    try:
        return nvml.by_index(gpu.index)
    except NvmlError:
        return None


def _links(nvml: Nvml, handle: Any, cards: frozenset[str]) -> tuple[dict[str, int], int]:
    """PCI address of a GPU -> how many links lead to it; and how many lead to what is no GPU, an NVSwitch."""
    found: dict[str, int] = {}
    switched = 0
    for link in range(LINKS):
        state = _asked(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break
        remote = _asked(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link) if state == 1 else None
        if remote is None:
            continue
        place = address(remote.busId)
        if place in cards:
            found[place] = found.get(place, 0) + 1
        else:
            switched += 1
    return found, switched


def _between(one: Gpu, links: tuple[dict[str, int], int], other: Gpu, others: tuple[dict[str, int], int]) -> int:
    """Links between two GPUs. Each end may know of fewer than the other: the larger number counts."""
    direct = max(links[0].get(other.pci, 0), others[0].get(one.pci, 0))
    return direct or min(links[1], others[1])


def _asked(nvml: Nvml, function: str, *arguments: Any) -> Any:
    try:
        return nvml.optional(function, *arguments, missing=_WITHOUT)
    except NvmlError:
        return None
