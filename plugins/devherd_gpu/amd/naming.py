"""Which resource a partition belongs to: AMD's two naming strategies, and what they leave open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from devherd.values import Skipped

from devherd_gpu.amd.gpus import Gpu

WHOLE = "gpu"


def names(gpus: Sequence[Gpu], strategy: str) -> tuple[dict[str, str], list[Skipped]]:
    """GPU address -> name below the domain, and the GPUs that have none.

    `single`: everything is `gpu`, so all GPUs have to be split alike; where they are not, the way most of them are
    counts (of two equals the one that comes first by name) and the rest is left out, because a pod that asks for a gpu
    must not get an eighth of one. `mixed`: `<compute>_<memory>`; a GPU that cannot be split is `gpu`.
    """
    if strategy == "mixed":
        return {gpu.address: gpu.style or WHOLE for gpu in gpus}, []
    counts = Counter(gpu.style for gpu in gpus)
    if len(counts) <= 1:
        return {gpu.address: WHOLE for gpu in gpus}, []
    chosen = min(counts, key=lambda style: (-counts[style], style))
    skipped = [
        Skipped(
            gpu.address,
            "naming",
            f"is {_said(gpu.style)} while most GPUs are {_said(chosen)}, and naming: single has one name for all; "
            "write naming: mixed, or split all GPUs alike",
        )
        for gpu in gpus
        if gpu.style != chosen
    ]
    return {gpu.address: WHOLE for gpu in gpus if gpu.style == chosen}, skipped


def _said(style: str) -> str:
    return style.replace("_", "/").upper() if style else "not split"
