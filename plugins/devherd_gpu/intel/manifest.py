"""What others know of gpu-intel without loading it."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_gpu.intel.config import Config
from devherd_gpu.intel.validate import validate

MANIFEST = Manifest(
    name="gpu-intel",
    title="Intel GPUs",
    config=Config,
    vendor="devherd_gpu.intel.vendor:make",
    wakes_on=("config", "pci", "drm"),
    validate=validate,
    importers={"intel": "devherd_gpu.intel.importer:load"},
    captures=("/sys/bus/pci/devices/*/drm/*/dev", "/sys/bus/pci/devices/*/sriov_numvfs"),
    simulator="devherd_gpu.intel.simulate:SIMULATED",
)
