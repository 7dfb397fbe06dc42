"""Node labels about AMD GPUs, named as AMD's node labeller names them.

For each property a label with its value where all GPUs agree (`amd.com/gpu.vram`), and one label a value with the
number of GPUs that have it (`amd.com/gpu.vram.192G`), so that a mixed node is described too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from devherd.host import Host
from devherd.host.nfd import label_value
from devherd.host.sysfs import Sysfs

from devherd_gpu.amd.gpus import MODULE, Gpu

_PREFIX = "amd.com/gpu."

# Instruction sets (major, minor, stepping of gfx_target_version) to the family names of the driver's interface
# (include/uapi/drm/amdgpu_drm.h); the APUs of a generation have names of their own.
_EXACT = {
    (9, 0, 2): "RV",
    (9, 0, 9): "RV",
    (9, 0, 12): "RV",
    (10, 3, 3): "VGH",
    (10, 3, 5): "YC",
    (10, 3, 6): "GC_10_3_6",
    (10, 3, 7): "GC_10_3_7",
    (11, 0, 3): "GC_11_0_0",
}
_RANGES = (
    ((7, 0), (7, 99), "CI"),
    ((8, 0), (8, 99), "VI"),
    ((9, 0), (9, 99), "AI"),
    ((10, 0), (10, 99), "NV"),
    ((11, 0), (11, 0), "GC_11_0_0"),
    ((11, 5), (11, 5), "GC_11_5_0"),
    ((12, 0), (12, 0), "GC_12_0_0"),
)


def labels(host: Host, gpus: Iterable[Gpu]) -> dict[str, str]:
    """Every label; empty without a GPU."""
    gpus = tuple(gpus)
    if not gpus:
        return {}
    found: dict[str, str] = {}
    for name, value_of in _PROPERTIES.items():
        found |= _counted(name, [value_of(gpu) for gpu in gpus])
    found |= _node_wide(host, gpus)
    return found


def _counted(name: str, values: Iterable[str]) -> dict[str, str]:
    counts = Counter(label_value(value) for value in values if value)
    found = {f"{_PREFIX}{name}.{value}": str(count) for value, count in counts.items() if value}
    if len(counts) == 1:
        found[f"{_PREFIX}{name}"] = next(iter(counts))
    return found


def _node_wide(host: Host, gpus: tuple[Gpu, ...]) -> dict[str, str]:
    sysfs = Sysfs(host)
    version, source = sysfs.text(f"{MODULE}/version"), sysfs.text(f"{MODULE}/srcversion")
    styles = {gpu.style for gpu in gpus}
    found = {
        f"{_PREFIX}driver-version": label_value(version or ""),
        f"{_PREFIX}driver-src-version": label_value(source or ""),
        f"{_PREFIX}compute-partitioning-supported": str(any(gpu.compute_modes for gpu in gpus)).lower(),
        f"{_PREFIX}memory-partitioning-supported": str(any(gpu.memory_modes for gpu in gpus)).lower(),
        f"{_PREFIX}compute-memory-partition": styles.pop() if len(styles) == 1 else "",
    }
    return {name: value for name, value in found.items() if value}


def family(gfx: int) -> str:
    """The family of an instruction set version as KFD writes it; empty when it is newer than this table."""
    major, minor, stepping = gfx // 10000, gfx // 100 % 100, gfx % 100
    exact = _EXACT.get((major, minor, stepping))
    if exact:
        return exact
    return next((name for low, high, name in _RANGES if low <= (major, minor) <= high), "")


def _of_kfd(value: Callable[[int, int, int], str]) -> Callable[[Gpu], str]:
    def look(gpu: Gpu) -> str:
        kfd = gpu.partitions[0].kfd
        return value(kfd.simd_count, kfd.cu_count, kfd.gfx) if kfd else ""

    return look


_PROPERTIES: Mapping[str, Callable[[Gpu], str]] = {
    "device-id": lambda gpu: gpu.device_id,
    "product-name": lambda gpu: gpu.product,
    "vram": lambda gpu: f"{round(gpu.vram / (1 << 30))}G" if gpu.vram else "",
    "simd-count": _of_kfd(lambda simd, cu, gfx: str(simd)),
    "cu-count": _of_kfd(lambda simd, cu, gfx: str(cu) if cu else ""),
    "family": _of_kfd(lambda simd, cu, gfx: family(gfx)),
}
