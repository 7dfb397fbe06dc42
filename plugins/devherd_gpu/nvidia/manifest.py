"""What others know of gpu-nvidia without loading it."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_gpu.nvidia.config import Config

MANIFEST = Manifest(
    name="gpu-nvidia",
    title="NVIDIA GPUs",
    config=Config,
    vendor="devherd_gpu.nvidia.vendor:make",
    wakes_on=("config", "pci", "drm"),
)
