"""Device nodes of NVIDIA's driver: which there are, and which a container with a GPU needs.

A node's identity here is never its number: majors are dealt out anew at each boot, and a minor belongs to another GPU
once one before it is gone. So a GPU's node is that of its uuid, and an answer that still names /dev/nvidia3 is stale as
soon as /dev/nvidia3 is another GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from devherd.values import Node

from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.gpus import Gpu, MigDevice

if TYPE_CHECKING:
    from devherd.host import Host, View

UVM = "/dev/nvidia-uvm"
CONTROL = ("/dev/nvidiactl", UVM, "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""What every container with a GPU gets, each where it exists."""
MAJOR = 195
"""Of /dev/nvidiaN and the control nodes (Documentation/admin-guide/devices.txt); the others' majors are dynamic."""
CAPS = "/dev/nvidia-caps"
IMEX_FOLDER = "/dev/nvidia-caps-imex-channels"
DXG = "/dev/dxg"
_PERMISSIONS = "rw"
_EXTRAS = {
    "gdrcopy": ("/dev/gdrdrv",),
    "gds": ("/dev/nvidia-fs*",),
    "mofed": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
}


class Nodes:
    """What one scan sees in /dev. `root` is the dev root (logical)."""

    def __init__(self, view: View, root: str) -> None:
        self._view = view
        self._root = root.rstrip("/")
        self._control: tuple[Node, ...] | None = None

    def control(self) -> tuple[Node, ...]:
        """The control nodes that exist."""
        if self._control is None:
            found = (self._node(path, f"nvidia:{path[len('/dev/') :]}") for path in CONTROL)
            self._control = tuple(node for node in found if node is not None)
        return self._control

    def of_gpu(self, gpu: Gpu) -> Node | None:
        """A whole GPU's node. Its number is what the driver says, so nothing that only has the name is given."""
        if gpu.minor < 0:
            return None
        node = self._node(f"/dev/nvidia{gpu.minor}", f"gpu:{gpu.uuid}")
        return node if node is not None and (node.kind, node.major, node.minor) == ("c", MAJOR, gpu.minor) else None

    def of_mig(self, gpu: Gpu, device: MigDevice) -> tuple[Node, ...]:
        """The two capabilities of a MIG device; fewer when one is missing."""
        wanted = (
            (device.gi_minor, f"mig-gi:{gpu.uuid}/{device.gi}"),
            (device.ci_minor, f"mig-ci:{gpu.uuid}/{device.gi}/{device.ci}"),
        )
        found = (self._node(f"{CAPS}/nvidia-cap{minor}", thing) for minor, thing in wanted if minor >= 0)
        return tuple(node for node in found if node is not None)

    def imex(self, channel: int) -> Node | None:
        """An IMEX channel's node."""
        return self._node(f"{IMEX_FOLDER}/channel{channel}", f"imex:{channel}")

    def dxg(self) -> Node | None:
        """The GPU of a WSL system."""
        return self._node(DXG, "nvidia:dxg")

    def extra(self, name: str) -> tuple[str, ...]:
        """Paths of the nodes that gds, mofed or gdrcopy are about."""
        return tuple(path for pattern in _EXTRAS[name] for path in self._matching(pattern))

    def problem(self, gpu: Gpu, device: MigDevice | None) -> str:
        """Why the nodes of a GPU or MIG device cannot be given; empty when they can."""
        if gpu.minor < 0:
            return "the driver does not say which /dev/nvidiaN is its"
        if self.of_gpu(gpu) is None:
            path = f"{self._root}/dev/nvidia{gpu.minor}"
            entry = self._view.entry(path)
            if entry.is_node:
                return f"{path} is {entry.type} {entry.major}:{entry.minor}, not the GPU's c {MAJOR}:{gpu.minor}"
            return f"{path} is missing: make it with nvidia-modprobe -c {gpu.minor}"
        if device is None or len(self.of_mig(gpu, device)) == 2:
            return ""
        if -1 in (device.gi_minor, device.ci_minor):
            return "the kernel does not list its capabilities in /proc/driver/nvidia-caps/mig-minors"
        return (
            f"{CAPS}/nvidia-cap{device.gi_minor} or nvidia-cap{device.ci_minor} is missing: nvidia-modprobe -f makes it"
        )

    def _node(self, path: str, thing: str) -> Node | None:
        entry = self._view.entry(self._root + path)
        if not entry.is_node:
            return None
        return Node(self._root + path, path, _PERMISSIONS, entry.type, entry.major, entry.minor, thing)

    def _matching(self, pattern: str) -> Iterator[str]:
        folder, _, name = pattern.rpartition("/")
        start = name.rstrip("*")
        for found in self._view.names(self._root + folder):
            if found == name or (name != start and found.startswith(start)):
                yield f"{folder}/{found}"


def dev_root(config: Config, host: Host, driver_root: str) -> str:
    """The folder whose dev/ has the nodes: as configured, else the driver's own where it brings nodes."""
    if config.driver.dev_root:
        return config.driver.dev_root
    if driver_root != "/" and host.view().entry(f"{driver_root.rstrip('/')}{CONTROL[0]}").is_node:
        return driver_root
    return "/"
