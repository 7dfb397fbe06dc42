"""What a container is answered for each GPU: NVIDIA's plugin's strategies, byte for byte.

A `Parts` is one device's share; the front joins them (values of one variable by commas, in the order of ids). What all
devices of an answer bring alike is listed once. Two things differ from NVIDIA's plugin on purpose, and are on the
plugin's page: the annotation's key is the same each time, and its extra names have a key of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from devherd.sha1 import sha1_hex
from devherd.values import Mount, Node, Parts
from msgspec import Struct

from devherd_gpu.nvidia import drivermount
from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.driverfiles import DriverFiles
from devherd_gpu.nvidia.gpus import Gpu, MigDevice
from devherd_gpu.nvidia.nodes import Nodes

CDI_VENDOR = "k8s.device-plugin.nvidia.com"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
IMEX = "NVIDIA_IMEX_CHANNELS"
LIST_FOLDER = "/var/run/nvidia-container-devices"
EXTRAS = {"gdrcopy": "NVIDIA_GDRCOPY", "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED"}
DRIVER_MOUNT = "driver-mount"
BY_RUNTIME = frozenset({"envvar", "volume-mounts"})
"""Strategies where NVIDIA's runtime finds the nodes."""
NO_FILES = DriverFiles()
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_MPS_FOLDER = "/mps"
_SHM = "/dev/shm"


class Target(Struct, frozen=True):
    """A GPU or one of its MIG devices, as it is called."""

    gpu: Gpu
    mig: MigDevice | None = None

    @property
    def uuid(self) -> str:
        """Its own id."""
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def thing(self) -> str:
        """Its identity for health: the card's, or the MIG device's."""
        return self.mig.thing if self.mig else self.gpu.thing

    @property
    def place(self) -> str:
        """NVML's index, `3` or `3:1`; empty while it has none."""
        if self.gpu.index < 0:
            return ""
        return f"{self.gpu.index}:{self.mig.index}" if self.mig else str(self.gpu.index)


class Responses:
    """Makes the parts of one scan's devices."""

    def __init__(self, config: Config, nodes: Nodes, files: DriverFiles = NO_FILES, root: str = "/") -> None:
        self._config = config
        self._nodes = nodes
        self._driver = tuple(drivermount.mounts(files, root)) if DRIVER_MOUNT in config.device_list else ()
        self._strategies = frozenset(config.device_list)
        self._by_list = bool(self._strategies & BY_RUNTIME)
        self.extras = tuple(name for name in EXTRAS if getattr(config, name))
        self.channels = tuple(channel for channel in config.imex.channels if nodes.imex(channel) is not None)

    def parts(self, target: Target, resource: str, mps: bool = False) -> Parts:
        """One device's share of an answer."""
        name = self.name(target)
        env: dict[str, str] = {}
        mounts: list[Mount] = []
        nodes: list[Node] = []
        if "envvar" in self._strategies:
            env[VISIBLE] = name
            if self.channels:
                env[IMEX] = ",".join(map(str, self.channels))
        if "volume-mounts" in self._strategies:
            env[VISIBLE] = LIST_FOLDER
            mounts += [_listed(entry) for entry in (name, *(f"imex/{channel}" for channel in self.channels))]
        if mps:
            # MPS is no part of NVIDIA's CDI specification: its pipe and memory go with every strategy.
            env[MPS_PIPE] = f"{_MPS_FOLDER}/{resource}/pipe"
            mounts.append(Mount(env[MPS_PIPE], f"{self._config.mps_root}/{resource}/pipe"))
            mounts.append(Mount(_SHM, f"{self._config.mps_root}/shm"))
        if DRIVER_MOUNT in self._strategies:
            nodes += self.nodes(target)
            mounts += self._driver
            env |= dict(word.split("=", 1) for word in drivermount.environment())
        elif self._config.pass_device_specs and self._by_list:
            nodes += self.nodes(target)
        env |= {EXTRAS[extra]: "enabled" for extra in self.extras}
        return Parts(
            nodes=tuple(nodes),
            mounts=tuple(mounts),
            env=env,
            annotations=self._annotations(target, resource) if "cdi-annotations" in self._strategies else {},
            cdi=(self.cdi_name(target), *self._cdi_extras()) if "cdi-cri" in self._strategies else (),
            picks=(f"index:{name}",) if self._config.ids == "index" else (),
        )

    def name(self, target: Target) -> str:
        """What the runtime is told: the uuid, or the index."""
        return target.place if self._config.ids == "index" else target.uuid

    def names(self, target: Target) -> tuple[str, ...]:
        """All names by which the runtime would find it now; specifications name each device by uuid and by index."""
        if not target.place or target.gpu.lost:
            return (f"uuid:{target.uuid}",)
        specified = any(strategy.startswith("cdi-") for strategy in self._strategies)
        cdi = tuple(f"{CDI_VENDOR}/gpu={name}" for name in (target.uuid, target.place) if specified)
        return (f"uuid:{target.uuid}", f"index:{target.place}", *cdi)

    def cdi_name(self, target: Target) -> str:
        """Its CDI name."""
        return f"{CDI_VENDOR}/gpu={self.name(target)}"

    def nodes(self, target: Target) -> list[Node]:
        """Control nodes, the GPU's own, the MIG device's, the channels'; those that exist."""
        if target.uuid == "all":
            dxg = self._nodes.dxg()
            return [] if dxg is None else [dxg]
        if target.uuid == "tegra":
            return []
        own = self._nodes.of_gpu(target.gpu)
        caps = self._nodes.of_mig(target.gpu, target.mig) if target.mig else ()
        channels = (self._nodes.imex(channel) for channel in self.channels)
        return [node for node in (*self._nodes.control(), own, *caps, *channels) if node is not None]

    def _annotations(self, target: Target, resource: str) -> dict[str, str]:
        found = {self._key(resource): self.cdi_name(target)}
        if extras := self._cdi_extras():
            found[self._key(f"{resource} extras")] = ",".join(extras)
        return found

    def _cdi_extras(self) -> Iterable[str]:
        names = [f"imex-channel={channel}" for channel in self.channels]
        names += [f"{extra}=all" for extra in self.extras if self._nodes.extra(extra)]
        return [f"{CDI_VENDOR}/{name}" for name in names]

    def _key(self, about: str) -> str:
        """A key that looks like NVIDIA's (a UUID at its end), but is the same each time and differs by resource."""
        digest = sha1_hex(about)
        parts = (digest[:8], digest[8:12], f"5{digest[13:16]}", f"a{digest[17:20]}", digest[20:32])
        return f"{self._config.cdi.annotation_prefix}nvidia-device-plugin_{'-'.join(parts)}"


def _listed(entry: str) -> Mount:
    return Mount(f"{LIST_FOLDER}/{entry}", "/dev/null")
