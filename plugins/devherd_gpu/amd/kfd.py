"""The compute driver's view: KFD's topology below /sys/class/kfd/kfd/topology.

Each folder of `nodes/` is a CPU or a GPU partition; `properties` holds `name value` lines (drivers/gpu/drm/amd/amdkfd,
kfd_topology.c), `io_links/N/properties` what connects it to other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from devherd.host import Host
from devherd.host.sysfs import Sysfs
from msgspec import Struct

NODES = "/sys/class/kfd/kfd/topology/nodes"
XGMI = 11
"""Link type of AMD's GPU-to-GPU fabric (CRAT_IOLINK_TYPE_XGMI); PCI Express is 2."""


class KfdNode(Struct, frozen=True):
    """One GPU node. `index` is the folder's number, `address` the PCI function it is a part of.

    `links` maps the index of another node to the type of the direct link to it. `gfx` is the instruction set version as
    KFD writes it: major * 10000 + minor * 100 + stepping.
    """

    index: int
    render_minor: int
    address: str
    simd_count: int
    cu_count: int
    gfx: int
    links: Mapping[int, int]


def gpu_nodes(host: Host) -> dict[int, KfdNode]:
    """Every GPU node by its render node's minor number. What is half there (a GPU just leaving) is left out."""
    sysfs = Sysfs(host)
    found: dict[int, KfdNode] = {}
    for name in sysfs.names(NODES):
        node = _node(sysfs, name) if name.isdecimal() else None
        if node is not None:
            found[node.render_minor] = node
    return found


def properties(text: str | None) -> dict[str, int]:
    """`name value` lines; a line of another shape is left out."""
    found: dict[str, int] = {}
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found


def pci_address(domain: int, location: int) -> str:
    """The PCI address KFD means: bus and devfn in the low 16 bits; above them partitions have their number."""
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _node(sysfs: Sysfs, name: str) -> KfdNode | None:
    folder = f"{NODES}/{name}"
    values = properties(sysfs.text(f"{folder}/properties"))
    # A CPU has CPU cores and no instruction set of a GPU; KFD's render minor is 0 where there is no render node.
    if values.get("cpu_cores_count") or not values.get("gfx_target_version") or not values.get("drm_render_minor"):
        return None
    per_cu = values.get("simd_per_cu", 0)
    return KfdNode(
        index=int(name),
        render_minor=values["drm_render_minor"],
        address=pci_address(values.get("domain", 0), values.get("location_id", 0)),
        simd_count=values.get("simd_count", 0),
        cu_count=values.get("simd_count", 0) // per_cu if per_cu else 0,
        gfx=values["gfx_target_version"],
        links=_links(sysfs, folder),
    )


def _links(sysfs: Sysfs, folder: str) -> dict[int, int]:
    found: dict[int, int] = {}
    # Links to GPUs of the same hive are p2p_links where the kernel lists indirect ones apart.
    for kind in ("io_links", "p2p_links"):
        for name in sysfs.names(f"{folder}/{kind}"):
            values = properties(sysfs.text(f"{folder}/{kind}/{name}/properties"))
            if "node_to" in values and "type" in values:
                found.setdefault(values["node_to"], values["type"])
    return found
