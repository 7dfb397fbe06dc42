"""Which GPUs a list of patterns means."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from devherd.host.pci import parse_address

from devherd_gpu.amd.gpus import Gpu

_DEVICE_ID = re.compile(r"(?:0x)?([0-9a-f]{4})")


def selects(patterns: Iterable[str], gpu: Gpu, partition: str) -> bool:
    """Whether any pattern means this partition of this GPU. A GPU's address means all of its partitions."""
    return any(_means(pattern, gpu, partition) for pattern in patterns)


def _means(pattern: str, gpu: Gpu, partition: str) -> bool:
    lowered = pattern.strip().lower()
    if lowered in (gpu.address, partition.lower()):
        return True
    if match := _DEVICE_ID.fullmatch(lowered):
        return match[1] == gpu.device_id
    try:
        return parse_address(lowered) == gpu.address
    except ValueError:
        return bool(gpu.product) and fnmatch.fnmatchcase(gpu.product.lower(), lowered)


def unmatched(patterns: Iterable[str], members: Iterable[tuple[Gpu, str]]) -> list[str]:
    """Patterns that mean nothing that is here."""
    there = tuple(members)
    return [pattern for pattern in patterns if not any(selects((pattern,), gpu, part) for gpu, part in there)]
