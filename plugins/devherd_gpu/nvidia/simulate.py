"""NVIDIA GPUs as a tree: PCI functions, what the kernel module writes to /proc, nodes, and the stand-in driver's state.

In the shape of a DGX-class node (eight GPUs behind NVSwitches) by default; other options make PCIe cards with NVLink
bridges, MIG mixes, and faults: options are changed while the node runs.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from devherd.host.tree import NodeNumber, Tree
from devherd.vendor import Simulated
from msgspec import Meta, Struct

from devherd_gpu.nvidia import migprofile
from devherd_gpu.nvidia.nodes import CAPS, IMEX_FOLDER, MAJOR
from devherd_gpu.nvidia.standinstate import (
    GIB,
    NO_INSTANCE,
    STATE_FILE,
    Ecc,
    Event,
    Fabric,
    Gpu,
    Mig,
    MigDevice,
    MigProfile,
    NvLink,
    Remapped,
    State,
)

_XID = 8
_UVM, _CAP, _IMEX = 508, 511, 234
# NVML's enumeration, the GPU's own number, slices, eighths of its memory, how many fit.
_SHAPES = ((0, 19, 1, 1, 7), (7, 20, 1, 1, 1), (9, 15, 1, 2, 4), (1, 14, 2, 2, 3), (2, 9, 3, 4, 2), (4, 0, 7, 8, 1))
_LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
_LIBRARIES = {
    "libcuda.so": ("libcuda.so", "libcuda.so.1"),
    "libnvidia-ptxjitcompiler.so": ("libnvidia-ptxjitcompiler.so.1",),
    "libnvidia-nvvm.so": ("libnvidia-nvvm.so.4",),
}
_SWITCH = "0000:05:00.0"


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """A node of like GPUs, numbered as their cards are plugged in.

    `links`: every GPU joined to NVSwitches, pairs joined to each other, or none. `mig` are profiles (`1g.10gb`) by GPU
    number. `lost` fell off the bus while the node runs; `missing` were not there at boot, so the driver numbers those
    after them anew. `xids` are events, [GPU, Xid] or [GPU, Xid, GPU instance]; add to the list for new ones. `ecc`,
    `remap_pending`, `hot` and `reset` (the driver asks for a reset) are GPUs with that fault. `init` is what the driver
    answers when it is opened, `hang` are NVML functions that do not return.
    """

    count: Annotated[int, Meta(ge=0, le=32)] = 8
    model: str = "NVIDIA H100 80GB HBM3"
    memory_gib: Annotated[int, Meta(ge=1)] = 80
    compute: tuple[int, int] = (9, 0)
    numa_nodes: int = 2
    links: Literal["switch", "pairs", "none"] = "switch"
    mig: dict[int, tuple[str, ...]] = {}
    driver: str = "580.95.05"
    imex: bool = False
    lost: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    xids: tuple[tuple[int, ...], ...] = ()
    ecc: tuple[int, ...] = ()
    remap_pending: tuple[int, ...] = ()
    hot: tuple[int, ...] = ()
    reset: tuple[int, ...] = ()
    init: str = "ok"
    hang: tuple[str, ...] = ()

    def uuid(self, n: int) -> str:
        """The n-th GPU's id."""
        return f"GPU-{n:08x}-1de0-4000-8000-00000000{n:04x}"

    def address(self, n: int) -> str:
        """Its PCI address."""
        return f"0000:{0x1B + 8 * n:02x}:00.0"

    def numa(self, n: int) -> int:
        """Its NUMA node; -1: the firmware does not say."""
        return n * self.numa_nodes // self.count if self.numa_nodes and self.count else -1

    def present(self) -> list[int]:
        """The GPUs that were there at boot: their places are their minors."""
        return [n for n in range(self.count) if n not in self.missing]


def tree(options: Options) -> Tree:
    """The whole of it. Raises ValueError for a profile that there is not."""
    made = Tree()
    there = options.present()
    loaded = options.init != "driver_not_loaded"
    for n in there:
        _function(made, options, n, loaded)
    if loaded:
        _module(made, options, there)
    state = _state(options, there)
    made.files[f"/{STATE_FILE}"] = msgspec.json.format(msgspec.json.encode(state).decode(), indent=1) + "\n"
    return made


def _function(made: Tree, options: Options, n: int, loaded: bool) -> None:
    address = options.address(n)
    folder = f"/sys/devices/pci{address[:7]}/{address}"
    made.pci(folder, "nvidia" if loaded else "", vendor="0x10de", device="0x2330", numa_node=options.numa(n))
    made.files[f"{folder}/class"] = "0x030200\n"


def _installed(made: Tree, options: Options) -> None:
    """Some of the driver's files, as a distribution's package lays them."""
    for name, links in _LIBRARIES.items():
        path = f"{_LIBRARY_FOLDER}/{name}.{options.driver}"
        made.files[path] = ""
        made.links |= {f"{_LIBRARY_FOLDER}/{link}": path for link in links}
    for tool in ("nvidia-smi", "nvidia-cuda-mps-control"):
        made.files[f"/usr/bin/{tool}"] = ""
    made.files[f"/lib/firmware/nvidia/{options.driver}/gsp_ga10x.bin"] = ""


def _module(made: Tree, options: Options, there: list[int]) -> None:
    """What is there while the kernel module is loaded."""
    _installed(made, options)
    made.files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {options.driver}  Release Build\n"
    )
    for name, major, minor in (
        ("nvidiactl", MAJOR, 255),
        ("nvidia-modeset", MAJOR, 254),
        ("nvidia-uvm", _UVM, 0),
        ("nvidia-uvm-tools", _UVM, 1),
    ):
        made.nodes[f"/dev/{name}"] = NodeNumber("c", major, minor)
    if options.imex:
        made.nodes[f"{IMEX_FOLDER}/channel0"] = NodeNumber("c", _IMEX, 0)
    lines = ["config 1", "monitor 2"]
    for minor, n in enumerate(there):
        made.nodes[f"/dev/nvidia{minor}"] = NodeNumber("c", MAJOR, minor)
        address = options.address(n)
        made.files[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t {options.model}\nGPU UUID: \t {options.uuid(n)}\nBus Location: \t {address}\n"
            f"Device Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
        lines += [f"gpu{minor}/gi{gi}/access {_cap(minor, gi)}" for gi in range(15)]
        lines += [f"gpu{minor}/gi{gi}/ci0/access {_cap(minor, gi) + 1}" for gi in range(15)]
        for gi, _ in enumerate(options.mig.get(n, ()), start=1):
            for cap in (_cap(minor, gi), _cap(minor, gi) + 1):
                made.nodes[f"{CAPS}/nvidia-cap{cap}"] = NodeNumber("c", _CAP, cap)
    made.files["/proc/driver/nvidia-caps/mig-minors"] = "\n".join(lines) + "\n"


def _cap(minor: int, gi: int) -> int:
    return 3 + minor * 135 + gi * 9


def _state(options: Options, there: list[int]) -> State:
    gpus = tuple(_gpu(options, n, minor) for minor, n in enumerate(there))
    events = [
        Event(seq, options.uuid(xid[0]), _XID, xid[1], *((xid[2], 0) if len(xid) > 2 else (NO_INSTANCE, NO_INSTANCE)))
        for seq, xid in enumerate(options.xids, start=1)
    ]
    near = [
        (options.uuid(a), options.uuid(b), 10 if b == a + 1 and a % 2 == 0 else 40)
        for a in there
        for b in there
        if a < b and options.numa(a) == options.numa(b)
    ]
    return State(
        driver=options.driver,
        nvml=f"13.{options.driver}",
        init=options.init,
        hang=options.hang,
        gpus=gpus,
        topology=tuple(near),
        events=tuple(events),
    )


def _gpu(options: Options, n: int, minor: int) -> Gpu:
    return Gpu(
        uuid=options.uuid(n),
        pci=options.address(n),
        minor=minor,
        name=options.model,
        memory=options.memory_gib * GIB,
        compute=options.compute,
        errors={"*": "gpu_is_lost"} if n in options.lost else {},
        mig=_mig(options, n),
        nvlinks=tuple(NvLink(link, remote) for link, remote in enumerate(_remotes(options, n))),
        ecc=Ecc(volatile_uncorrected=1, aggregate_uncorrected=1) if n in options.ecc else Ecc(),
        remapped=Remapped(uncorrectable=1, pending=1) if n in options.remap_pending else Remapped(),
        recovery_action=1 if n in options.reset else 0,
        temperature=91 if n in options.hot else 40,
        clock_reasons=0x40 if n in options.hot else 0,
        fabric=Fabric() if options.links == "switch" else None,
    )


def _remotes(options: Options, n: int) -> list[str]:
    """PCI addresses at the other ends of its links."""
    if options.links == "switch":
        return [_SWITCH] * 18
    partner = n ^ 1
    return [options.address(partner)] * 4 if options.links == "pairs" and partner in options.present() else []


def _mig(options: Options, n: int) -> Mig:
    profiles = tuple(_profiles(options))
    wanted = options.mig.get(n)
    if wanted is None:
        return Mig(profiles=profiles)
    by_name = {profile.name: profile for profile in profiles}
    unknown = sorted(set(wanted) - set(by_name))
    if unknown:
        raise ValueError(f"{options.model} has no profile {unknown[0]}; it has {', '.join(by_name)}")
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{n:08x}-1de0-5000-8000-{gi:012x}",
            gi=gi,
            profile=by_name[name].profile,
            slices=by_name[name].slices,
            ci_slices=by_name[name].slices,
            memory_mib=by_name[name].memory_mib,
        )
        for gi, name in enumerate(wanted, start=1)
    )
    return Mig(1, 1, profiles=profiles, devices=devices)


def _profiles(options: Options) -> list[MigProfile]:
    total = options.memory_gib * GIB
    found = []
    for profile, number, slices, eighths, instances in _SHAPES:
        memory = (total * eighths // 8 >> 20) - 256
        name = migprofile.name(profile, slices, slices, memory, total)
        found.append(MigProfile(profile, number, slices, memory, instances, name))
    return found


SIMULATED = Simulated(Options, tree)
