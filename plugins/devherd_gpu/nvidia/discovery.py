"""Which NVIDIA GPUs are here: NVML's word, put beside what the kernel shows.

One GPU that cannot be reached costs no other one. It keeps its id, its minor and its place in the list as long as the
card is on the bus, marked as lost; its identity is what an earlier look or the kernel module said of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from devherd.values import Skipped
from msgspec.structs import replace

from devherd_gpu.nvidia import migprofile
from devherd_gpu.nvidia.cards import Caps, Cards, caps, card, cards, other_system
from devherd_gpu.nvidia.gpus import Found, Gpu, MigDevice
from devherd_gpu.nvidia.nvml import GPU_IS_LOST, SESSION_OVER, Driver, DriverProblem, Nvml, NvmlError

if TYPE_CHECKING:
    from devherd.host import Host, View

logger = logging.getLogger("devherd_gpu.nvidia.discovery")

NO_CARD = "there is no NVIDIA GPU on the PCI bus"
_DISPLAYS = ("NVIDIA DGX Display", "DGX Display")
"""Cards that only drive a workstation's screens; NVIDIA's plugin leaves them out as well."""
_HOST_VGPU = 3
_UNKNOWN = 999


class Discovery:
    """Looks again and again; what cannot change while NVML stays open is asked once."""

    def __init__(self, host: Host, driver: Driver, mode: str = "auto") -> None:
        self._host = host
        self._driver = driver
        self._mode = mode
        self._generation = 0
        self._fixed: dict[str, Gpu] = {}
        self._profiles: dict[tuple[str, int], tuple[int, str]] = {}
        self._last: dict[str, Gpu] = {}

    def look(self) -> Found:
        """Everything there is now. Never raises for a GPU or a driver."""
        there = cards(self._host)
        system = self._system(there)
        if system:
            return _only(system)
        every = (*there.bound, *there.unbound)
        if not every and self._mode != "nvml" and not self._driver.simulated:
            why = f"{NO_CARD} but those of others" if there.skipped else NO_CARD
            return Found(skipped=there.skipped, absent=why)
        try:
            nvml = self._driver.open(there.bound)
            return self._found(nvml, there)
        except DriverProblem as problem:
            return self._without_driver(str(problem), there)
        except NvmlError as error:
            over = self._driver.failed(error)
            return self._without_driver(str(over or f"the driver does not list its GPUs: {error}"), there)

    def _system(self, there: Cards) -> str:
        if self._mode in ("wsl", "tegra"):
            return self._mode
        if self._mode == "nvml" or there.bound or there.unbound or self._driver.simulated:
            return ""
        return other_system(self._host)

    def _without_driver(self, problem: str, there: Cards) -> Found:
        every = (*there.bound, *there.unbound)
        skipped = tuple(Skipped(pci, "driver", problem) for pci in every) or (Skipped("nvidia", "driver", problem),)
        return Found(cards=every, skipped=(*there.skipped, *skipped), problem=problem)

    def _found(self, nvml: Nvml, there: Cards) -> Found:
        if self._generation != self._driver.generation:
            self._generation = self._driver.generation
            self._fixed, self._profiles = {}, {}
        look = _Look(self._host.view(), nvml, self._fixed, self._profiles)
        for index in range(nvml.count()):
            look.take(index)
        for pci in there.unbound:
            look.skip(pci, "pci", "has no driver: load the NVIDIA driver for it, or look into dmesg for why it refuses")
        reached = {gpu.pci for gpu in look.gpus}
        lost = [pci for pci in there.bound if pci not in reached and pci not in look.left]
        gpus = [*look.gpus, *self._lost(lost, look)]
        if not lost:
            for index, error in look.failures:
                look.skip(f"GPU {index}", "nvml", f"the driver cannot reach it: {error}")
        self._last = {gpu.pci: gpu for gpu in gpus}
        return Found(
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.pci)),
            cards=(*there.bound, *there.unbound),
            skipped=(*there.skipped, *look.skipped),
            driver=nvml.driver_version(),
            cuda=nvml.cuda_version(),
        )

    def _lost(self, lost: list[str], look: _Look) -> Iterator[Gpu]:
        """Cards on the bus that the driver does not reach."""
        said = {str(error) for _, error in look.failures}
        why = f"the driver lost it: {'; '.join(sorted(said))}" if said else "the driver does not list it, see dmesg"
        minors = {gpu.minor for gpu in look.gpus}
        for pci in lost:
            known = card(self._host, pci)
            if known.excluded:
                look.skip(pci, "driver", "is excluded by the driver's own configuration")
                continue
            if known.name in _DISPLAYS:
                continue
            last = self._last.get(pci)
            if last is None and known.uuid:
                numa = look.view.numa(f"pci:{pci}")
                last = Gpu(known.uuid, pci, -1, known.minor, known.name or "unknown model", numa=numa)
            if last is None:
                look.skip(pci, "driver", f"{why}; the kernel module does not say its id either")
            else:
                # Its minor may be another GPU's by now: the driver deals them out anew when it is loaded.
                yield replace(last, lost=why, index=-1, minor=-1 if last.minor in minors else last.minor)


class _Look:
    """One enumeration."""

    def __init__(
        self, view: View, nvml: Nvml, fixed: dict[str, Gpu], profiles: dict[tuple[str, int], tuple[int, str]]
    ) -> None:
        self.view = view
        self._nvml = nvml
        self._fixed = fixed
        self._profiles = profiles
        self._caps: Caps | None = None
        self.gpus: list[Gpu] = []
        self.skipped: list[Skipped] = []
        self.failures: list[tuple[int, NvmlError]] = []
        self.left: set[str] = set()

    def skip(self, what: str, rule: str, reason: str) -> None:
        """Say why something is not offered."""
        self.skipped.append(Skipped(what, rule, reason))

    def take(self, index: int) -> None:
        """One GPU by NVML's index."""
        try:
            handle = self._nvml.by_index(index)
            uuid = self._nvml.uuid(handle)
            if uuid not in self._fixed:
                self._fixed[uuid] = self._ask(handle, uuid, index)
            gpu = replace(self._fixed[uuid], index=index)
            if gpu.name in _DISPLAYS:
                self.left.add(gpu.pci)
                self.skip(gpu.pci, "model", f"{gpu.name} is a card for screens, not for computing")
            elif self._nvml.optional("nvmlDeviceGetVirtualizationMode", handle) == _HOST_VGPU:
                self.left.add(gpu.pci)
                self.skip(gpu.pci, "vgpu", "is divided into vGPUs for virtual machines")
            else:
                self.gpus.append(self._with_mig(gpu, handle))
        except NvmlError as error:
            if error.code in SESSION_OVER:
                raise
            logger.warning("GPU %d: %s", index, error)
            self.failures.append((index, error))

    def _ask(self, handle: Any, uuid: str, index: int) -> Gpu:
        nvml = self._nvml
        pci = nvml.pci(handle)
        minor = nvml.optional("nvmlDeviceGetMinorNumber", handle)
        memory = nvml.optional("nvmlDeviceGetMemoryInfo", handle)
        return Gpu(
            uuid=uuid,
            pci=pci,
            index=index,
            minor=-1 if minor is None else int(minor),
            name=str(nvml.call("nvmlDeviceGetName", handle)),
            memory=int(memory.total) if memory is not None else 0,
            compute=tuple(nvml.optional("nvmlDeviceGetCudaComputeCapability", handle) or (0, 0)),
            numa=self.view.numa(f"pci:{pci}"),
        )

    def _with_mig(self, gpu: Gpu, handle: Any) -> Gpu:
        modes = self._nvml.optional("nvmlDeviceGetMigMode", handle)
        if modes is None or not modes[0]:
            return gpu
        devices: list[MigDevice] = []
        for index, mig in self._nvml.mig_handles(handle):
            devices += self._described(gpu, handle, index, mig)
        return replace(gpu, mig=True, mig_devices=tuple(devices))

    def _described(self, gpu: Gpu, parent: Any, index: int, handle: Any) -> list[MigDevice]:
        """The MIG device, or none with the reason: one that cannot be told costs no other one."""
        try:
            return [self._mig_device(gpu, parent, index, handle)]
        except NvmlError as error:
            if error.code in (*SESSION_OVER, GPU_IS_LOST):
                raise
            self.skip(f"{gpu.uuid} MIG {index}", "mig", f"the driver does not say what it is: {error}")
        except ValueError as error:
            self.skip(f"{gpu.uuid} MIG {index}", "mig", str(error))
        return []

    def _mig_device(self, gpu: Gpu, parent: Any, index: int, handle: Any) -> MigDevice:
        """Raises ValueError for a profile without a name."""
        nvml = self._nvml
        gi = int(nvml.call("nvmlDeviceGetGpuInstanceId", handle))
        ci = int(nvml.call("nvmlDeviceGetComputeInstanceId", handle))
        has = nvml.call("nvmlDeviceGetAttributes_v2", handle)
        instance = nvml.call("nvmlDeviceGetGpuInstanceById", parent, gi)
        number = int(nvml.call("nvmlGpuInstanceGetInfo", instance).profileId)
        profile, said = self._profile(gpu, parent, number)
        slices, part = int(has.gpuInstanceSliceCount), int(has.computeInstanceSliceCount)
        memory = int(has.memorySizeMB)
        name = migprofile.name(profile, slices, part, memory, gpu.memory) or said
        name = name or migprofile.from_text(str(nvml.call("nvmlDeviceGetName", handle)))
        if not name:
            raise ValueError(f"its profile {number} is unknown to this version and has no name")
        known = self._caps = self._caps or caps(self.view.host)
        return MigDevice(
            uuid=nvml.uuid(handle),
            index=index,
            gi=gi,
            ci=ci,
            profile=name,
            memory=memory,
            slices=slices,
            multiprocessors=int(has.multiprocessorCount),
            gi_minor=known.gi.get((gpu.minor, gi), -1),
            ci_minor=known.ci.get((gpu.minor, gi, ci), -1),
        )

    def _profile(self, gpu: Gpu, parent: Any, number: int) -> tuple[int, str]:
        """NVML's enumeration of a GPU instance profile, by the GPU's own number; and the driver's name of it."""
        if (gpu.uuid, number) not in self._profiles:
            for profile in range(migprofile.PROFILES):
                info = self._profile_info(parent, profile)
                if info is not None:
                    said = getattr(info, "name", b"")
                    text = said.decode("ascii", "replace") if isinstance(said, bytes) else str(said)
                    self._profiles[gpu.uuid, int(info.id)] = (profile, migprofile.from_text(text))
        return self._profiles.get((gpu.uuid, number), (_UNKNOWN, ""))

    def _profile_info(self, parent: Any, profile: int) -> Any:
        absent = (2, 3, 13, 25)  # invalid argument, not supported, no such function, no such version of its structure
        function = "nvmlDeviceGetGpuInstanceProfileInfo"
        info = self._nvml.optional(function, parent, profile, missing=absent)
        return info if info is not None else self._nvml.optional(function, parent, profile, 1, missing=absent)


def _only(system: str) -> Found:
    """The one GPU of a system where NVML does not list it."""
    uuid = {"wsl": "all", "tegra": "tegra"}[system]
    return Found(gpus=(Gpu(uuid, "", 0, -1, system),), driver=system)
