"""What others know of gpu-amd without loading it."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_gpu.amd.config import Config
from devherd_gpu.amd.validate import validate

MANIFEST = Manifest(
    name="gpu-amd",
    title="AMD GPUs",
    config=Config,
    vendor="devherd_gpu.amd.vendor:make",
    wakes_on=("config", "pci", "drm"),
    validate=validate,
)
