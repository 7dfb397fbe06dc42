"""AMD GPUs as sysfs trees, in the shape that amdgpu and KFD give them on an MI300-class node."""

from __future__ import annotations

from devherd.host.tree import Tree
from devherd.vendor import Simulated
from msgspec import Struct

from devherd_gpu.amd.gpus import MODULE, PLATFORM
from devherd_gpu.amd.kfd import XGMI

DRM = 226
KFD_MAJOR = 234
KFD_FOLDER = "/sys/devices/virtual/kfd/kfd"
NODES = f"{KFD_FOLDER}/topology/nodes"
"""Where /sys/class/kfd/kfd leads."""
PARTS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}


class Mi300(Struct, frozen=True, forbid_unknown_fields=True):
    """A node of like GPUs. `compute` and `memory` are how each is split; empty: the GPU has no such modes.

    `xgmi`: all GPUs are joined to each other, else by PCI Express. The GPUs are dealt out over `numa_nodes` in equal
    blocks; 0: the firmware says nothing (-1). `lost` are GPUs, by number, that fell off the bus; the others keep the
    numbers of their nodes until a boot. `no_kfd`: GPUs that the compute driver dropped. `uncorrectable` and
    `temperature` (°C) are by GPU number.
    """

    count: int = 8
    compute: str = "SPX"
    memory: str = "NPS1"
    modes: tuple[str, ...] = ()
    xgmi: bool = True
    numa_nodes: int = 2
    product: str = "AMD Instinct MI300X"
    device: str = "0x74a1"
    vram: int = 192 << 30
    units: int = 304
    gfx: int = 90402
    spare_platform: int = 0
    driver: str = "amdgpu"
    lost: tuple[int, ...] = ()
    no_kfd: tuple[int, ...] = ()
    uncorrectable: dict[int, int] = {}
    temperature: dict[int, int] = {}

    def address(self, n: int) -> str:
        """The n-th GPU's PCI address."""
        return f"0000:{5 + 16 * n:02x}:00.0"

    def mode(self, n: int) -> str:
        """How the n-th GPU is split: `modes` where given, else `compute`."""
        return self.modes[n] if n < len(self.modes) else self.compute

    def numa(self, n: int) -> int:
        """The n-th GPU's NUMA node."""
        return n * self.numa_nodes // self.count if self.numa_nodes else -1


def tree(node: Mi300) -> Tree:
    """The whole of it."""
    made = Tree()
    made.write(MODULE, version="6.12.12", srcversion="0123456789ABCDEF01234567")
    made.folders.add(f"/sys/module/amdgpu/drivers/pci:{node.driver}")
    made.char("/dev/kfd", KFD_MAJOR, 0, KFD_FOLDER, "kfd")
    cpus = max(1, node.numa_nodes)
    for index in range(cpus):
        made.write(f"{NODES}/{index}", gpu_id=0, properties="cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0")
    places = _places(node)
    _functions(made, node)
    for index, (n, part) in enumerate(places):
        if n in node.lost:
            continue
        _partition(made, node, index, n, part)
        if n not in node.no_kfd:
            _kfd(made, node, cpus, index, places)
    for spare in range(node.spare_platform):
        _drm(made, f"{PLATFORM}/amdgpu_xcp_{len(places) - node.count + spare}", len(places) + spare)
    return made


def _places(node: Mi300) -> list[tuple[int, int]]:
    """GPU and part of each partition, in the driver's order."""
    return [(n, part) for n in range(node.count) for part in range(PARTS.get(node.mode(n), 1))]


def folder(node: Mi300, n: int) -> str:
    """The sysfs folder of a GPU."""
    address = node.address(n)
    return f"/sys/devices/pci{address[:7]}/{address}"


def _functions(made: Tree, node: Mi300) -> None:
    for n in (n for n in range(node.count) if n not in node.lost):
        place = folder(node, n)
        made.pci(
            place,
            node.driver,
            vendor="0x1002",
            device=node.device,
            subsystem_vendor="0x1002",
            subsystem_device=node.device,
            numa_node=node.numa(n),
            product_name=node.product,
            mem_info_vram_total=node.vram,
            unique_id=f"{0xABC0 + n:016x}",
        )
        made.files[f"{place}/class"] = "0x120000\n"
        if node.mode(n):
            made.write(place, current_compute_partition=node.mode(n), available_compute_partition=", ".join(PARTS))
        if node.memory:
            made.write(place, current_memory_partition=node.memory, available_memory_partition="NPS1, NPS4")
        made.write(
            f"{place}/ras", umc_err_count=f"ue: {node.uncorrectable.get(n, 0)}\nce: 0", gfx_err_count="ue: 0\nce: 0"
        )
        made.write(f"{place}/ras", gpu_vram_bad_pages="")
        sensor = f"{place}/hwmon/hwmon{n}"
        made.write(
            sensor,
            name="amdgpu",
            temp1_input=node.temperature.get(n, 45) * 1000,
            temp1_crit=100000,
            temp1_label="junction",
        )


def _partition(made: Tree, node: Mi300, index: int, n: int, part: int) -> None:
    # The first partition keeps the GPU's own function; platform devices are numbered over the whole node.
    place = folder(node, n) if part == 0 else f"{PLATFORM}/amdgpu_xcp_{index - n - 1}"
    _drm(made, place, index)


def _drm(made: Tree, place: str, index: int) -> None:
    for name, minor in ((f"card{index}", index), (f"renderD{128 + index}", 128 + index)):
        made.char(f"/dev/dri/{name}", DRM, minor, f"{place}/drm/{name}", "drm")


def _kfd(made: Tree, node: Mi300, cpus: int, index: int, places: list[tuple[int, int]]) -> None:
    n, part = places[index]
    parts = PARTS.get(node.mode(n), 1)
    bus = int(node.address(n)[5:7], 16)
    simd = node.units * 4 // parts
    values = {
        "cpu_cores_count": 0,
        "simd_count": simd,
        "simd_per_cu": 4,
        "gfx_target_version": node.gfx,
        "domain": 0,
        "location_id": bus << 8 | (part << 28 if parts > 1 else 0),
        "drm_render_minor": 128 + index,
        "unique_id": 0xABC0 + n,
    }
    place = f"{NODES}/{cpus + index}"
    made.write(place, gpu_id=1000 + index, properties="\n".join(f"{key} {value}" for key, value in values.items()))
    others = [other for other in range(len(places)) if other != index and places[other][0] not in node.lost]
    for link, other in enumerate(others):
        kind = XGMI if node.xgmi or places[other][0] == n else 2
        text = f"type {kind}\nnode_from {cpus + index}\nnode_to {cpus + other}\nweight 15"
        made.write(f"{place}/io_links/{link}", properties=text)


SIMULATED = Simulated(Mi300, tree)
