"""The vendor of gpu-nvidia. Runs in the probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from devherd.values import Inventory

from devherd_gpu.nvidia.config import Config

if TYPE_CHECKING:
    from devherd.host import Host


class Vendor:
    """NVIDIA GPUs."""

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host

    def scan(self) -> Inventory:
        """Find every GPU."""
        return Inventory(absent="no GPU found")


def make(config: Config, host: Host) -> Vendor:
    """The manifest's factory."""
    return Vendor(config, host)
