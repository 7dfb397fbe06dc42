"""AMD GPUs and their partitions, from amdgpu's and KFD's sysfs trees. A pure read; one odd GPU costs no other.

A GPU that is split (DPX, QPX, CPX) keeps its first partition on its PCI function; the others are platform devices
`amdgpu_xcp_N`. The driver makes those for the whole node beforehand: one without a KFD node is not in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from devherd.host import Host
from devherd.host.pci import FOLDER as PCI
from devherd.host.pci import PciDevice, pci_devices
from devherd.host.sysfs import Sysfs
from devherd.host.view import View
from devherd.values import Node, Skipped
from msgspec import Struct

from devherd_gpu.amd.kfd import KfdNode, gpu_nodes
from devherd_gpu.common.selectors import Facts

VENDOR = 0x1002
DISPLAY = (0x0300, 0x0302, 0x0380, 0x1200)
"""PCI classes (upper 16 bits) of GPUs: VGA, 3D and display controllers, processing accelerators."""
PLATFORM = "/sys/devices/platform"
KFD = "/dev/kfd"
MODULE = "/sys/module/amdgpu"
_XCP = re.compile(r"amdgpu_xcp_?(\d+)")
_CARD = re.compile(r"card\d+")
_RENDER = re.compile(r"renderD(\d+)")
_RULE = "discovery"


class Partition(Struct, frozen=True):
    """What a container can be given: a whole GPU, or one part of a split one.

    `id` is the PCI address for the GPU's own function, else the platform device's name.
    """

    id: str
    card: Node
    render: Node
    render_minor: int
    kfd: KfdNode | None

    @property
    def thing(self) -> str:
        """The part itself, for faults that stay with it."""
        return f"amdgpu:{self.id}"


class Gpu(Struct, frozen=True):
    """One PCI function bound to amdgpu. Modes are lower case and empty where the GPU has none; bytes; -1: unknown."""

    address: str
    numa: int
    device_id: str
    unique_id: str
    product: str
    vram: int
    compute: str
    memory: str
    compute_modes: bool
    memory_modes: bool
    partitions: tuple[Partition, ...]

    @property
    def thing(self) -> str:
        """The physical GPU."""
        return f"pci:{self.address}"

    @property
    def style(self) -> str:
        """How it is split, `cpx_nps4`; empty where it cannot be."""
        return f"{self.compute}_{self.memory}" if self.compute and self.memory else ""


def facts(gpu: Gpu, part: Partition, index: int) -> Facts:
    """What a partition may be selected by. `index` is the GPU's place in order of addresses."""
    place = gpu.partitions.index(part)
    return {
        "index": (str(index), f"{index}:{place}"),
        "uuid": tuple(dict.fromkeys((part.id, gpu.unique_id))),
        "pci": (gpu.address,),
        "model": (gpu.product,),
        "device": (f"0x{gpu.device_id}", gpu.device_id),
        "profile": (gpu.style,),
    }


class Found(Struct, frozen=True):
    """One look: the GPUs, ordered by address, and what was seen and cannot be used. `kfd`: the compute node, if any."""

    gpus: tuple[Gpu, ...]
    skipped: tuple[Skipped, ...]
    kfd: Node | None
    absent: str = ""


def find(host: Host) -> Found:
    """Look at the host."""
    view, nodes = host.view(), gpu_nodes(host)
    candidates = [dev for dev in pci_devices(host) if dev.vendor == VENDOR and dev.class_code >> 8 in DISPLAY]
    if not candidates:
        return Found((), (), None, "no AMD GPU on the PCI bus")
    look = _Look(host, view, nodes)
    gpus = [gpu for gpu in map(look.gpu, candidates) if gpu is not None]
    kfd = _node(view, KFD, "rw")
    if kfd is None and gpus:
        look.skip(KFD, "there is no compute node: is amdgpu built with KFD, and its module loaded completely?")
    return Found(tuple(gpus), tuple(look.skipped), kfd)


def _node(view: View, path: str, permissions: str) -> Node | None:
    found = view.node(path)
    if found is None:
        return None
    thing = view.thing(found.kind, found.major, found.minor)
    return Node(path, path, permissions, found.kind, found.major, found.minor, thing)


class _Look:
    """What one look needs at hand."""

    def __init__(self, host: Host, view: View, nodes: Mapping[int, KfdNode]) -> None:
        self._sysfs = Sysfs(host)
        self._view = view
        self._nodes = nodes
        self._xcp = self._platform()
        self.skipped: list[Skipped] = []

    def skip(self, what: str, reason: str) -> None:
        self.skipped.append(Skipped(what, _RULE, reason))

    def gpu(self, device: PciDevice) -> Gpu | None:
        """The GPU of a PCI function, or None and a reason."""
        if device.driver != "amdgpu":
            self.skip(device.address, f"is bound to {device.driver or 'no driver'}, not to amdgpu")
            return None
        folder = f"{PCI}/{device.address}"
        first = self._partition(device.address, folder)
        if first is None:
            self.skip(
                device.address, "has no card and render node yet: amdgpu is still starting, or failed (see dmesg)"
            )
            return None
        others = (self._partition(name, f"{PLATFORM}/{name}") for name in self._xcp.get(device.address, ()))
        mode = self._sysfs.text
        return Gpu(
            address=device.address,
            numa=device.numa,
            device_id=f"{device.device:04x}",
            unique_id=mode(f"{folder}/unique_id") or "",
            product=mode(f"{folder}/product_name") or "",
            vram=self._sysfs.integer(f"{folder}/mem_info_vram_total") or 0,
            compute=(mode(f"{folder}/current_compute_partition") or "").lower(),
            memory=(mode(f"{folder}/current_memory_partition") or "").lower(),
            compute_modes=mode(f"{folder}/available_compute_partition") is not None,
            memory_modes=mode(f"{folder}/available_memory_partition") is not None,
            partitions=(first, *(part for part in others if part is not None)),
        )

    def _partition(self, id: str, folder: str) -> Partition | None:
        card, render, minor = self._drm(folder)
        if card is None or render is None:
            return None
        return Partition(id, card, render, minor, self._nodes.get(minor))

    def _drm(self, folder: str) -> tuple[Node | None, Node | None, int]:
        card = render = None
        minor = -1
        for name in self._sysfs.names(f"{folder}/drm"):
            if _CARD.fullmatch(name):
                card = _node(self._view, f"/dev/dri/{name}", "rw")
            elif match := _RENDER.fullmatch(name):
                render, minor = _node(self._view, f"/dev/dri/{name}", "rw"), int(match[1])
        return card, render, minor

    def _platform(self) -> dict[str, list[str]]:
        """Platform devices in use, by the address of the GPU they are a part of, in the kernel's order."""
        found: dict[str, list[str]] = {}
        for name in _ordered(self._sysfs.names(PLATFORM)):
            minors = (_RENDER.fullmatch(entry) for entry in self._sysfs.names(f"{PLATFORM}/{name}/drm"))
            minor = next((int(match[1]) for match in minors if match), -1)
            node = self._nodes.get(minor)
            if node is not None:
                found.setdefault(node.address, []).append(name)
        return found


def _ordered(names: Iterable[str]) -> list[str]:
    numbered = [(int(match[1]), name) for name in names if (match := _XCP.fullmatch(name))]
    return [name for _, name in sorted(numbered)]
