"""Which devices of a resource go together in one container, as data for the front."""

from __future__ import annotations

from collections.abc import Sequence

from devherd.values import Preference

from devherd_gpu.nvidia.resources import Unit


def preference(units: Sequence[Unit], shares: str) -> Preference:
    """Shares and MIG devices by `shares`: on many GPUs (distributed) or on few (packed); whole GPUs by NUMA node."""
    if any(unit.share or unit.target.mig for unit in units):
        group = {id: unit.target.gpu.uuid for unit in units for id in unit.ids}
        return Preference(policy="spread" if shares == "distributed" else "packed", group=group)
    return Preference(group={id: f"node{unit.target.gpu.numa}" for unit in units for id in unit.ids})
