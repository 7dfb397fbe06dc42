"""Configuration of gpu-intel: `plugins.d/gpu-intel.yaml`."""

from __future__ import annotations

from msgspec import Struct


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Intel GPUs."""
