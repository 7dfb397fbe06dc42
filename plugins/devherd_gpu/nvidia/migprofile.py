"""Names of MIG profiles, as NVIDIA's plugin and tools write them: `1g.10gb`, `1g.10gb+me`, `1c.2g.20gb`."""

from __future__ import annotations

import math
import re

PROFILES = 18
"""NVML's enumeration of GPU instance profiles: 0 to 17 (NVML_GPU_INSTANCE_PROFILE_*)."""
# What the profile has besides slices and memory: media engines, all of them, graphics, or no media engines.
_EXTRAS = {
    **dict.fromkeys((7, 8), "+me"),
    **dict.fromkeys((10, 11, 12, 17), "+gfx"),
    **dict.fromkeys((13, 14), "-me"),
    **dict.fromkeys((15, 16), "+me.all"),
}
_KNOWN = frozenset(range(PROFILES))
_NAME = re.compile(r"(?:MIG )?((?:\dc\.)?\dg\.\d+gb(?:[+-][a-z.]+)?)")
_MIB = 1 << 20
_GIB = 1 << 30


def name(profile: int, slices: int, compute_slices: int, memory_mib: int, gpu_memory: int) -> str:
    """The name of an instance: `profile` in NVML's enumeration, slices of the GPU and of them for compute, memory in
    MiB, the GPU's own in bytes. Empty for a profile that this enumeration does not have."""
    if profile not in _KNOWN:
        return ""
    compute = f"{compute_slices}c." if compute_slices != slices else ""
    return f"{compute}{slices}g.{gigabytes(memory_mib, gpu_memory)}gb{_EXTRAS.get(profile, '')}"


def gigabytes(memory_mib: int, gpu_memory: int) -> int:
    """An instance's memory as profiles name it: its eighths of the GPU's whole gibibytes, rounded."""
    if gpu_memory <= 0:
        return round(memory_mib / 1024)
    eighths = math.ceil(memory_mib * _MIB / gpu_memory * 8) / 8
    whole = (gpu_memory + _GIB - 1) // _GIB
    return math.floor(eighths * whole + 0.5)


def from_text(text: str) -> str:
    """The profile's name in what the driver says (`MIG 3g.24gb+gfx`, or a MIG device's name); empty when none is."""
    found = _NAME.search(text)
    return found[1] if found else ""


def resource(profile: str) -> str:
    """The name below nvidia.com: `mig-1g.10gb.me`."""
    return f"mig-{profile.replace('+', '.')}"
