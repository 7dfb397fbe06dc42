"""What discovery finds, as frozen values."""

from __future__ import annotations

from devherd.values import Skipped
from msgspec import Struct

from devherd_gpu.common.selectors import Facts


class MigDevice(Struct, frozen=True):
    """One MIG device: a compute instance `ci` in GPU instance `gi`.

    `index` is NVML's within its GPU; `profile` as the driver writes it (`1g.10gb`, `1g.10gb+me`, `1c.2g.20gb`); memory
    in MiB; the minors are those of /dev/nvidia-caps/nvidia-capN, -1 when the kernel does not say.
    """

    uuid: str
    index: int
    gi: int
    ci: int
    profile: str
    memory: int
    slices: int
    multiprocessors: int = 0
    gi_minor: int = -1
    ci_minor: int = -1

    @property
    def thing(self) -> str:
        """The identity of this instance for health."""
        return f"mig:{self.uuid}"


class Gpu(Struct, frozen=True):
    """One GPU. `index` is NVML's and moves when a GPU before it goes; `minor` that of /dev/nvidiaN (-1: unknown).

    Memory in bytes; `mig`: MIG is on; `lost`: why the driver cannot reach it, empty when it can (then index is -1, and
    the rest is what was known of it).
    """

    uuid: str
    pci: str
    index: int
    minor: int
    name: str
    memory: int = 0
    compute: tuple[int, int] = (0, 0)
    numa: int = -1
    mig: bool = False
    mig_devices: tuple[MigDevice, ...] = ()
    lost: str = ""

    @property
    def thing(self) -> str:
        """The identity of the card for health and claims."""
        return f"pci:{self.pci}"

    def facts(self) -> Facts:
        """By what selectors may mean it."""
        index = (str(self.index),) if self.index >= 0 else ()
        return {"index": index, "uuid": (self.uuid,), "pci": (self.pci,), "model": (self.name,)}

    def mig_facts(self, device: MigDevice) -> Facts:
        """By what selectors may mean one of its MIG devices: whatever means the GPU, and its own."""
        facts = self.facts()
        own = f"{self.index}:{device.index}"
        return {
            **facts,
            "index": (*facts["index"], own),
            "uuid": (self.uuid, device.uuid),
            "profile": (device.profile, device.profile.replace("+", ".")),
        }


class Found(Struct, frozen=True):
    """One look at the host.

    `problem` says why there is no working driver while there are cards (`cards`: the PCI addresses of all NVIDIA GPUs
    that are not somebody else's); `absent` why there is no NVIDIA GPU here at all.
    """

    gpus: tuple[Gpu, ...] = ()
    cards: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problem: str = ""
    absent: str = ""
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
