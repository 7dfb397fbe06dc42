"""Configuration of gpu-amd: `plugins.d/gpu-amd.yaml`."""

from __future__ import annotations

from msgspec import Struct


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """AMD GPUs."""
