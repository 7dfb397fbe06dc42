"""NVIDIA's cards as the kernel shows them, without the driver's library: PCI, /proc/driver/nvidia, other systems."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from devherd.host.pci import FOLDER
from devherd.host.sysfs import Sysfs
from devherd.values import Skipped
from msgspec import Struct

if TYPE_CHECKING:
    from devherd.host import Host

VENDOR = "0x10de"
_DISPLAY = "0x03"
_DRIVER = "nvidia"
_GPUS = "/proc/driver/nvidia/gpus"
_MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
_GI = re.compile(r"gpu(\d+)/gi(\d+)/access\s+(\d+)")
_CI = re.compile(r"gpu(\d+)/gi(\d+)/ci(\d+)/access\s+(\d+)")
_UUID = re.compile(r"GPU-[0-9a-f-]{36}")


class Card(Struct, frozen=True):
    """What /proc says of a GPU that the kernel module knows. Empty or -1: it does not say."""

    uuid: str = ""
    minor: int = -1
    name: str = ""
    excluded: bool = False


class Cards(Struct, frozen=True):
    """All of NVIDIA's display functions: those bound to its driver, and why others are not ours."""

    bound: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def cards(host: Host) -> Cards:
    """Look at the PCI bus. Virtual functions of a card count for nothing: they belong to virtual machines."""
    sysfs = Sysfs(host)
    bound: list[str] = []
    unbound: list[str] = []
    skipped: list[Skipped] = []
    for name in sysfs.names(FOLDER):
        folder = f"{FOLDER}/{name}"
        if sysfs.text(f"{folder}/vendor") != VENDOR or not (sysfs.text(f"{folder}/class") or "").startswith(_DISPLAY):
            continue
        driver = sysfs.link(f"{folder}/driver") or ""
        if sysfs.link(f"{folder}/physfn"):
            skipped.append(Skipped(name, "pci", "is a virtual function, for a virtual machine"))
        elif driver == _DRIVER:
            bound.append(name)
        elif driver:
            skipped.append(Skipped(name, "pci", _foreign(driver)))
        else:
            unbound.append(name)
    return Cards(tuple(bound), tuple(unbound), tuple(skipped))


def _foreign(driver: str) -> str:
    if driver.startswith("vfio") or driver in ("pci-stub", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"):
        return f"is bound to {driver}, for a virtual machine: the generic plugin can offer /dev/vfio"
    return f"is bound to {driver}, not to NVIDIA's driver"


def card(host: Host, pci: str) -> Card:
    """What the kernel module wrote about a card (/proc/driver/nvidia/gpus/<address>/information)."""
    text = Sysfs(host).text(f"{_GPUS}/{pci}/information") or ""
    lines = (line.partition(":") for line in text.splitlines())
    known = {key.strip(): value.strip() for key, _, value in lines}
    uuid = known.get("GPU UUID", "")
    minor = known.get("Device Minor", "")
    return Card(
        uuid=uuid if _UUID.fullmatch(uuid) else "",
        minor=int(minor) if minor.isdecimal() else -1,
        name=known.get("Model", ""),
        excluded=known.get("GPU Excluded", "").lower() == "yes",
    )


class Caps(Struct, frozen=True):
    """Minors of /dev/nvidia-caps nodes: GPU instances by (GPU's device minor, gi), compute instances by (.., ci)."""

    gi: dict[tuple[int, int], int] = {}
    ci: dict[tuple[int, int, int], int] = {}


def caps(host: Host) -> Caps:
    """Read /proc/driver/nvidia-caps/mig-minors, where a GPU is known by its device minor.

    It lists all that there could be, some thousand lines, so it is asked only when MIG is on.
    """
    try:
        with open(host.path(_MIG_MINORS), encoding="ascii", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError:
        return Caps()
    gi = {(int(gpu), int(one)): int(minor) for gpu, one, minor in _GI.findall(text)}
    ci = {(int(gpu), int(one), int(part)): int(minor) for gpu, one, part, minor in _CI.findall(text)}
    return Caps(gi, ci)


def other_system(host: Host) -> str:
    """`wsl` or `tegra` where NVIDIA's GPU is reached in another way than over PCI; else empty."""
    sysfs = Sysfs(host)
    view = host.view()
    if view.entry("/dev/dxg").is_node:
        return "wsl"
    family = sysfs.text("/sys/devices/soc0/family") or ""
    if "tegra" in family.lower() or view.entry("/etc/nv_tegra_release").exists:
        return "tegra"
    return ""
