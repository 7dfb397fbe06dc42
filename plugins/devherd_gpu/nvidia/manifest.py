"""What others know of gpu-nvidia without loading it."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.validate import validate

MANIFEST = Manifest(
    name="gpu-nvidia",
    title="NVIDIA GPUs",
    config=Config,
    vendor="devherd_gpu.nvidia.vendor:make",
    wakes_on=("config", "pci", "drm"),
    validate=validate,
    importers={"nvidia": "devherd_gpu.nvidia.importer:load"},
    simulator="devherd_gpu.nvidia.simulate:SIMULATED",
    captures=(
        "/proc/driver/nvidia/version",
        "/proc/driver/nvidia/gpus/*/information",
        "/proc/driver/nvidia-caps/mig-minors",
        "/sys/devices/soc0/family",
    ),
)
