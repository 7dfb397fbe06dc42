"""A vendor that writes to a file in every scan: on a frozen file system its process hangs in the kernel (D state)."""

from __future__ import annotations

import os

from devherd.host import Host
from devherd.values import Device, Inventory, Parts, Resource
from devherd.vendor import Manifest
from msgspec import Struct


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to write, and how many devices to claim."""

    file: str
    devices: int = 4


class Vendor:
    """Devices without nodes; a scan that depends on the file system."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def scan(self) -> Inventory:
        """Write first, then answer."""
        with open(self._config.file, "ab") as file:
            file.write(b".")
            file.flush()
            os.fdatasync(file.fileno())
        devices = tuple(
            Device(f"d{number}", (f"t:{number}",), Parts(env={"TEST_DEVICE": f"d{number}"}))
            for number in range(self._config.devices)
        )
        return Inventory((Resource("example.com/blocking", devices),))


def make(config: Config, host: Host) -> Vendor:
    """The probe's factory."""
    return Vendor(config)


MANIFEST = Manifest(name="blocking", title="Blocks in the kernel", config=Config, vendor="blocking_vendor:make")
