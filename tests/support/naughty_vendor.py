"""A vendor that does what its file says at each scan: nothing bad, crash, hang, eat memory, or kill its front."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from devherd.host import Host
from devherd.values import Device, Inventory, Parts, Resource
from devherd.vendor import Manifest
from msgspec import Struct

RESOURCE = "naughty.example/card"
COUNT = 4


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Which file holds the mood."""

    mood: str


class Vendor:
    """Four devices without nodes."""

    def __init__(self, config: Config) -> None:
        self._mood = Path(config.mood)

    def scan(self) -> Inventory:
        """Do as told."""
        mood = self._mood.read_text(encoding="utf-8").strip()
        if mood == "crash":
            os._exit(3)
        if mood == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
        if mood == "hang":
            time.sleep(3600)
        if mood == "memory":
            # Touched, so that it is really had.
            eaten = [b"x" * (16 << 20) for _ in range(1_000)]
            assert eaten
        devices = tuple(Device(f"n{n}", (f"t:n{n}",), Parts(env={"NAUGHTY": f"n{n}"})) for n in range(COUNT))
        return Inventory((Resource(RESOURCE, devices),))


def make(config: Config, host: Host) -> Vendor:
    """The probe's factory."""
    return Vendor(config)


MANIFEST = Manifest(name="naughty", title="Misbehaves", config=Config, vendor="naughty_vendor:make")
