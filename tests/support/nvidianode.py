"""A node with NVIDIA GPUs in a folder: PCI functions, /proc, device numbers, and the state file of the stand-in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
from devherd.compose import compose
from devherd.host import Host
from devherd.settings import Paths
from devherd.values import Composed, Inventory, Resource
from devherd_gpu.nvidia import standinstate as state
from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.standinstate import Gpu, Mig, MigDevice, MigProfile, State
from devherd_gpu.nvidia.vendor import Vendor

from support import nvmlbuild

A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory": 40 * state.GIB, "compute": (8, 0), "arch": 7}
PROFILES = (
    MigProfile(0, 19, 1, 4864, 7, "1g.5gb"),
    MigProfile(7, 20, 1, 4864, 1, "1g.5gb+me"),
    MigProfile(9, 15, 1, 9856, 4, "1g.10gb"),
    MigProfile(1, 14, 2, 9856, 3, "2g.10gb"),
    MigProfile(2, 9, 3, 19968, 2, "3g.20gb"),
    MigProfile(4, 0, 7, 40192, 1, "7g.40gb"),
)
CONTROL = {"nvidiactl": (195, 255), "nvidia-modeset": (195, 254), "nvidia-uvm": (508, 0), "nvidia-uvm-tools": (508, 1)}


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


def pci(number: int) -> str:
    return f"0000:{0x10 + number:02x}:00.0"


def gpu(number: int, **more: Any) -> Gpu:
    return Gpu(**{"uuid": uuid(number), "pci": pci(number), "minor": number, **more})


def mig_gpu(number: int, *profiles: str, **more: Any) -> Gpu:
    """A partitioned A100: GPU instances 1, 2, ... with one compute instance each."""
    known = {profile.name: profile for profile in PROFILES}
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{number:04x}{place:04x}-0000-5000-8000-000000000000",
            gi=place + 1,
            profile=known[name].profile,
            slices=known[name].slices,
            ci_slices=known[name].slices,
            memory_mib=known[name].memory_mib,
        )
        for place, name in enumerate(profiles)
    )
    return gpu(number, **A100, mig=Mig(1, 1, profiles=PROFILES, devices=devices), **more)


class NvidiaNode:
    """Build one with GPUs; change `gpus` or `state` with `set`; `scan` looks at it as a probe does.

    With `compiled` NVML is the C stand-in, called by NVIDIA's binding; else the one in the process.
    """

    compiled = False

    def __init__(self, folder: Path, *gpus: Gpu, numa: bool = True) -> None:
        self.root = folder / "node"
        self.state = State(gpus=gpus)
        self._nodes: dict[str, tuple[str, int, int]] = {}
        for name in ("dev", "sys/bus/pci/devices", "proc/driver/nvidia/gpus", "sys/bus/pci/drivers/nvidia"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for place, one in enumerate(gpus):
            self.card(one, numa=place // max(1, len(gpus) // 2) if numa else -1)
        for name, (major, minor) in CONTROL.items():
            self.node(f"/dev/{name}", major, minor)
        self.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n")
        lines = [f"gpu{n}/gi{gi}/access {self.cap(n, gi)}" for n in range(8) for gi in range(8)]
        lines += [f"gpu{n}/gi{gi}/ci0/access {self.cap(n, gi) + 1}" for n in range(8) for gi in range(8)]
        self.write("/proc/driver/nvidia-caps/mig-minors", "\n".join(["config 1", "monitor 2", *lines]) + "\n")
        self.save()
        if self.compiled:
            nvmlbuild.install(self.root)

    # -- what is there

    @property
    def host(self) -> Host:
        return Host(self.paths)

    @property
    def paths(self) -> Paths:
        root = str(self.root)
        places = {name: f"{root}/{name}" for name in ("sys", "dev", "proc")}
        cdi, features = f"{root}/run/cdi", f"{root}/features.d"
        return Paths(root=root, rdev_table=f"{root}/rdev", cdi=cdi, features=features, **places)

    @staticmethod
    def cap(number: int, gi: int) -> int:
        return 3 + number * 100 + gi * 10

    def save(self) -> None:
        state.write(state.state_path(str(self.root)), self.state)

    def set(self, **fields: Any) -> None:
        """Change the driver's state; takes effect with the next call."""
        self.state = msgspec.structs.replace(self.state, **fields)
        self.save()

    def set_gpu(self, number: int, **fields: Any) -> None:
        gpus = list(self.state.gpus)
        gpus[number] = msgspec.structs.replace(gpus[number], **fields)
        self.set(gpus=tuple(gpus))

    def write(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def node(self, path: str, major: int, minor: int) -> None:
        self.write(path, "")
        self._nodes[path] = ("c", major, minor)
        self._table()

    def no_node(self, path: str) -> None:
        del self._nodes[path]
        os.unlink(self.root / path.lstrip("/"))
        self._table()

    def card(self, one: Gpu, numa: int = 0, driver: str = "nvidia") -> None:
        folder = f"/sys/bus/pci/devices/{one.pci}"
        self.write(f"{folder}/vendor", "0x10de\n")
        self.write(f"{folder}/device", "0x2330\n")
        self.write(f"{folder}/class", "0x030200\n")
        self.write(f"{folder}/numa_node", f"{numa}\n")
        self.bind(one.pci, driver)
        if driver == "nvidia":
            self.info(one.pci, one.uuid, one.minor, one.name)
            self.node(f"/dev/nvidia{one.minor}", 195, one.minor)
        for device in one.mig.devices if one.mig else ():
            cap = self.cap(one.minor, device.gi)
            self.node(f"/dev/nvidia-caps/nvidia-cap{cap}", 511, cap)
            self.node(f"/dev/nvidia-caps/nvidia-cap{cap + 1}", 511, cap + 1)

    def bind(self, address: str, driver: str) -> None:
        link = self.root / f"sys/bus/pci/devices/{address}/driver"
        link.unlink(missing_ok=True)
        if driver:
            link.symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def unplug(self, address: str) -> None:
        shutil.rmtree(self.root / f"sys/bus/pci/devices/{address}")

    def info(self, address: str, uuid: str, minor: int, name: str) -> None:
        text = f"Model: \t\t {name}\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        self.write(f"/proc/driver/nvidia/gpus/{address}/information", text)

    def _table(self) -> None:
        lines = [f"{path} {kind} {major} {minor}" for path, (kind, major, minor) in self._nodes.items()]
        (self.root / "rdev").write_text("\n".join(lines) + "\n")

    # -- what a probe makes of it

    def vendor(self, **config: Any) -> Vendor:
        """A vendor that listens to no events, unless `health` says so: a thread for each would outlive its test."""
        config = {"health": {"events": False}, **config}
        return Vendor(msgspec.convert(config, Config), self.host)

    def scan(self, **config: Any) -> Inventory:
        return self.vendor(**config).scan()


def resource(inventory: Inventory, name: str = "nvidia.com/gpu") -> Resource:
    return next(one for one in inventory.resources if one.name == name)


def ids(inventory: Inventory, name: str = "nvidia.com/gpu") -> list[str]:
    return [device.id for device in resource(inventory, name).devices]


def answer(inventory: Inventory, *wanted: str, name: str = "nvidia.com/gpu") -> Composed:
    """What the front would answer for these ids."""
    devices = {device.id: device for device in resource(inventory, name).devices}
    return compose([devices[id].parts for id in sorted(wanted)])


def reasons(inventory: Inventory) -> dict[str, str]:
    return {skipped.what: skipped.reason for skipped in inventory.skipped}
