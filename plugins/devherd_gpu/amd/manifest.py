"""What others know of gpu-amd without loading it."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_gpu.amd.config import Config
from devherd_gpu.amd.validate import validate

CAPTURES = (
    "/sys/class/kfd/kfd/topology/nodes/*/properties",
    "/sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties",
    "/sys/class/kfd/kfd/topology/nodes/*/p2p_links/*/properties",
    "/sys/bus/pci/devices/*/current_*_partition",
    "/sys/bus/pci/devices/*/available_*_partition",
    "/sys/bus/pci/devices/*/product_name",
    "/sys/bus/pci/devices/*/mem_info_vram_total",
    "/sys/bus/pci/devices/*/ras/*",
    "/sys/bus/pci/devices/*/drm/*/dev",
    "/sys/devices/platform/amdgpu_xcp*/drm/*/dev",
    "/sys/module/amdgpu/version",
    "/sys/module/amdgpu/srcversion",
)

MANIFEST = Manifest(
    name="gpu-amd",
    title="AMD GPUs",
    config=Config,
    vendor="devherd_gpu.amd.vendor:make",
    wakes_on=("config", "pci", "drm"),
    validate=validate,
    importers={"amd": "devherd_gpu.amd.importer:load"},
    captures=CAPTURES,
    simulator="devherd_gpu.amd.simulate:SIMULATED",
)
