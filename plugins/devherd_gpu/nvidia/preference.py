"""Which devices of a resource go together in one container, as data for the front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from devherd.values import Preference

from devherd_gpu.nvidia.resources import Unit

_SAME_NODE = 20
"""The score of two GPUs on one NUMA node, where the driver says nothing of a pair."""
_OTHER_NODE = 10


def preference(units: Sequence[Unit], shares: str, matrix: Mapping[tuple[str, str], int]) -> Preference:
    """Shares and MIG devices by `shares`: on many GPUs (distributed) or on few (packed); whole GPUs by nearness."""
    if any(unit.share or unit.target.mig for unit in units):
        group = {id: unit.target.gpu.uuid for unit in units for id in unit.ids}
        return Preference(policy="spread" if shares == "distributed" else "packed", group=group)
    ordered = sorted(units, key=lambda unit: unit.target.uuid)
    affinity = {
        f"{one.target.uuid}\0{other.target.uuid}": _score(one, other, matrix) for one, other in combinations(ordered, 2)
    }
    return Preference(affinity=affinity, group={unit.target.uuid: f"node{unit.target.gpu.numa}" for unit in units})


def _score(one: Unit, other: Unit, matrix: Mapping[tuple[str, str], int]) -> int:
    known = matrix.get((one.target.uuid, other.target.uuid))
    if known is not None:
        return known
    return _SAME_NODE if one.target.gpu.numa == other.target.gpu.numa else _OTHER_NODE
