"""What others know of gpu-intel without loading it."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_gpu.intel.config import Config

MANIFEST = Manifest(
    name="gpu-intel",
    title="Intel GPUs",
    config=Config,
    vendor="devherd_gpu.intel.vendor:make",
    wakes_on=("config", "pci", "drm"),
)
