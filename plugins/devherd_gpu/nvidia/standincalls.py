"""NVML's functions about one GPU or MIG device, as the in-process stand-in answers them from the state file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from devherd_gpu.nvidia import standinstate as file
from devherd_gpu.nvidia.standinstate import Gpu, MigDevice, MigProfile, NvLink


class NVMLError(Exception):
    """As pynvml's: `value` is NVML's error number."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return next((name for name, number in file.ERRORS.items() if number == self.value), str(self.value))


class Handle(NamedTuple):
    """A GPU, or with `mig` one of its MIG devices."""

    gpu: str
    mig: str = ""


Mig = MigDevice | None


def supported(value: Any) -> Any:
    """The value; raises for None, as the driver does for what a card does not have."""
    if value is None:
        raise NVMLError(file.code("not_supported"))
    return value


def profile_of(gpu: Gpu, profile: int) -> MigProfile:
    """A GPU instance profile by NVML's enumeration; one that nobody knows where the file has none."""
    for one in gpu.mig.profiles if gpu.mig else ():
        if one.profile == profile:
            return one
    return MigProfile(profile, 1000 + profile, 1, 0, 0)


def mig_index(gpu: Gpu, device: MigDevice) -> int:
    """NVML's index of a MIG device in its GPU."""
    return device.index if device.index >= 0 or not gpu.mig else gpu.mig.devices.index(device)


def _name(gpu: Gpu, mig: Mig) -> str:
    return f"{gpu.name} MIG {profile_of(gpu, mig.profile).name}" if mig else gpu.name


def _bus_id(address: str) -> bytes:
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}".encode()


def _place(address: str, device: int = 0, subsystem: int = 0) -> Any:
    domain, bus, rest = address.split(":")
    return SimpleNamespace(
        busId=_bus_id(address),
        domain=int(domain, 16),
        bus=int(bus, 16),
        device=int(rest[:2], 16),
        pciDeviceId=device,
        pciSubSystemId=subsystem,
    )


def _pci(gpu: Gpu, mig: Mig) -> Any:
    return _place(gpu.pci, gpu.pci_device, gpu.pci_subsystem)


def _memory(gpu: Gpu, mig: Mig, version: int = 0) -> Any:
    total = mig.memory_mib << 20 if mig else gpu.memory
    return SimpleNamespace(total=total, used=0, free=total, reserved=0)


def _mig_mode(gpu: Gpu, mig: Mig) -> list[int]:
    modes = supported(gpu.mig)
    return [modes.current, modes.pending]


def _mig_handle(gpu: Gpu, mig: Mig, index: int) -> Handle:
    for device in gpu.mig.devices if gpu.mig and gpu.mig.current else ():
        if mig_index(gpu, device) == index:
            return Handle(gpu.uuid, device.uuid)
    raise NVMLError(file.code("not_found"))


def _attributes(gpu: Gpu, mig: Mig) -> Any:
    device = supported(mig)
    engines = ("CopyEngine", "Decoder", "Encoder", "Jpeg", "Ofa")
    return SimpleNamespace(
        multiprocessorCount=device.multiprocessors,
        gpuInstanceSliceCount=device.slices,
        computeInstanceSliceCount=device.ci_slices,
        memorySizeMB=device.memory_mib,
        **{f"shared{engine}Count": int(engine == "CopyEngine") for engine in engines},
    )


def _profile_info(gpu: Gpu, mig: Mig, profile: int, version: int = 2) -> Any:
    for one in gpu.mig.profiles if gpu.mig else ():
        if one.profile == profile:
            return SimpleNamespace(
                id=one.id,
                sliceCount=one.slices,
                instanceCount=one.instances,
                multiprocessorCount=0,
                memorySizeMB=one.memory_mib,
                name=f"MIG {one.name}".encode(),
            )
    raise NVMLError(file.code("not_supported"))


def _link(gpu: Gpu, link: int) -> NvLink:
    found: NvLink = supported(next((one for one in gpu.nvlinks if one.link == link), None))
    return found


def _ecc(gpu: Gpu, mig: Mig, kind: int, counter: int) -> Any:
    ecc = supported(gpu.ecc)
    volatile = (ecc.volatile_corrected, ecc.volatile_uncorrected)
    return (volatile if counter == 0 else (ecc.aggregate_corrected, ecc.aggregate_uncorrected))[kind]


def _rows(gpu: Gpu, mig: Mig) -> tuple[int, int, int, int]:
    rows = supported(gpu.remapped)
    return rows.correctable, rows.uncorrectable, rows.pending, rows.failure


def _fields(gpu: Gpu, mig: Mig, wanted: list[Any]) -> list[Any]:
    return [_field(gpu, one[0] if isinstance(one, tuple) else one) for one in wanted]


def _field(gpu: Gpu, number: int) -> Any:
    value = gpu.fields.get(str(number), gpu.recovery_action if number == 230 else None)
    return SimpleNamespace(
        fieldId=number,
        nvmlReturn=file.code("not_supported") if value is None else 0,
        valueType=3,  # unsigned long long
        value=SimpleNamespace(ullVal=value or 0, uiVal=value or 0),
    )


def _threshold(gpu: Gpu, mig: Mig, threshold: int) -> Any:
    known = {0: gpu.temperature_shutdown, 1: gpu.temperature_slowdown, 3: gpu.temperature_max}
    return supported(known.get(threshold))


def _fabric(gpu: Gpu, mig: Mig, info: Any) -> int:
    fabric = supported(gpu.fabric)
    cluster = bytes.fromhex(fabric.cluster.replace("-", ""))
    for place, byte in enumerate(cluster):
        info.clusterUuid[place] = byte
    info.status, info.cliqueId, info.state, info.healthMask = fabric.status, fabric.clique, fabric.state, fabric.health
    return 0


OF_GPU: Mapping[str, Callable[..., Any]] = {
    "nvmlDeviceGetUUID": lambda gpu, mig: mig.uuid if mig else gpu.uuid,
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetMinorNumber": lambda gpu, mig: gpu.minor,
    "nvmlDeviceGetPciInfo": _pci,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetCudaComputeCapability": lambda gpu, mig: gpu.compute,
    "nvmlDeviceGetArchitecture": lambda gpu, mig: gpu.arch,
    "nvmlDeviceGetBrand": lambda gpu, mig: gpu.brand,
    "nvmlDeviceGetVirtualizationMode": lambda gpu, mig: gpu.virtualization,
    "nvmlDeviceGetAddressingMode": lambda gpu, mig: supported(gpu.addressing_mode),
    "nvmlDeviceGetPersistenceMode": lambda gpu, mig: gpu.persistence,
    "nvmlDeviceGetComputeMode": lambda gpu, mig: gpu.compute_mode,
    "nvmlDeviceSetComputeMode": lambda gpu, mig, mode: None,
    "nvmlDeviceGetAttributes": _attributes,
    "nvmlDeviceIsMigDeviceHandle": lambda gpu, mig: SimpleNamespace(value=int(mig is not None)),
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu, mig: gpu.mig.max_devices if gpu.mig else 0,
    "nvmlDeviceGetMigDeviceHandleByIndex": _mig_handle,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda gpu, mig: Handle(gpu.uuid),
    "nvmlDeviceGetGpuInstanceId": lambda gpu, mig: supported(mig).gi,
    "nvmlDeviceGetComputeInstanceId": lambda gpu, mig: supported(mig).ci,
    "nvmlDeviceGetGpuInstanceProfileInfo": _profile_info,
    "nvmlDeviceGetNvLinkState": lambda gpu, mig, link: int(_link(gpu, link).active),
    "nvmlDeviceGetNvLinkVersion": lambda gpu, mig, link: _link(gpu, link).version,
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, mig, link: _place(_link(gpu, link).remote),
    "nvmlDeviceGetGpuFabricInfo": _fabric,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlDeviceGetTotalEccErrors": _ecc,
    "nvmlDeviceGetRemappedRows": _rows,
    "nvmlDeviceGetRetiredPagesPendingStatus": lambda gpu, mig: supported(gpu.retired_pending),
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlDeviceGetTemperature": lambda gpu, mig, sensor: gpu.temperature,
    "nvmlDeviceGetTemperatureThreshold": _threshold,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu, mig: gpu.clock_reasons,
    "nvmlDeviceGetPowerUsage": lambda gpu, mig: gpu.power,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu, mig: gpu.power_limit,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu, mig: supported(gpu.pcie).generation,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu, mig: supported(gpu.pcie).generation_max,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu, mig: supported(gpu.pcie).width,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu, mig: supported(gpu.pcie).width_max,
    "nvmlDeviceGetPcieReplayCounter": lambda gpu, mig: supported(gpu.pcie).replays,
    "nvmlDeviceGetSupportedEventTypes": lambda gpu, mig: gpu.event_types,
}
"""By pynvml's name without a version at its end; called with the GPU, the MIG device or None, and the arguments."""
