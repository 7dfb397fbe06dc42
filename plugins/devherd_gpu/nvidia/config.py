"""Configuration of gpu-nvidia: `plugins.d/gpu-nvidia.yaml`."""

from __future__ import annotations

from msgspec import Struct


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA GPUs."""
