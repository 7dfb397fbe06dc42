"""PCI devices as sysfs shows them (Documentation/ABI/testing/sysfs-bus-pci)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from devherd.host.numa import node_of_folder
from devherd.host.sysfs import Sysfs

if TYPE_CHECKING:
    from devherd.host.access import Host

FOLDER = "/sys/bus/pci/devices"

# A domain has four hex digits, or up to eight: VMD and some hypervisors start theirs at 10000.
_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.ASCII)


class PciDevice(Struct, frozen=True):
    """One function. Ids and class are numbers; `numa` is -1 when unknown; empty text: there is none.

    `physfn` is the address of the physical function when this is a virtual one.
    """

    address: str
    vendor: int
    device: int
    class_code: int
    subsystem_vendor: int
    subsystem_device: int
    driver: str
    numa: int
    iommu_group: str
    physfn: str

    @property
    def thing(self) -> str:
        """The identity of the physical device."""
        return f"pci:{self.address}"


def parse_address(text: str) -> str:
    """The canonical form of a PCI address: lower case, with its domain. `3:0.0` and the like raise ValueError."""
    match = _ADDRESS.fullmatch(text.strip().lower())
    if not match:
        raise ValueError(f"{text!r} is no PCI address; write it like 0000:03:00.0 (domain:bus:device.function, hex)")
    domain, bus, slot, function = match.groups()
    return f"{domain or '0000'}:{bus}:{slot}.{function}"


def pci_device(host: Host, address: str) -> PciDevice | None:
    """One function by its canonical address; None when it is not there or just leaving."""
    sysfs, folder = Sysfs(host), f"{FOLDER}/{address}"
    vendor, device = sysfs.hexadecimal(f"{folder}/vendor"), sysfs.hexadecimal(f"{folder}/device")
    if vendor is None or device is None:
        return None
    return PciDevice(
        address=address,
        vendor=vendor,
        device=device,
        class_code=sysfs.hexadecimal(f"{folder}/class") or 0,
        subsystem_vendor=sysfs.hexadecimal(f"{folder}/subsystem_vendor") or 0,
        subsystem_device=sysfs.hexadecimal(f"{folder}/subsystem_device") or 0,
        driver=sysfs.link(f"{folder}/driver") or "",
        numa=node_of_folder(host, f"/bus/pci/devices/{address}", {}),
        iommu_group=sysfs.link(f"{folder}/iommu_group") or "",
        physfn=sysfs.link(f"{folder}/physfn") or "",
    )


def pci_devices(host: Host) -> tuple[PciDevice, ...]:
    """Every function on the node, ordered by address. One that is leaving is left out."""
    found = (pci_device(host, name) for name in Sysfs(host).names(FOLDER) if _ADDRESS.fullmatch(name))
    return tuple(device for device in found if device is not None)
