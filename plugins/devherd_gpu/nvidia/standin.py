"""NVML without a library: pynvml's functions, names and exceptions, answered from a simulation's state file.

What the file holds is described in `standinstate`. A simulation on a machine with a compiler uses the compiled
stand-in instead, through pynvml; this one is for machines without, and for quick tests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from devherd_gpu.nvidia import standinstate as file
from devherd_gpu.nvidia.standincalls import OF_GPU, Handle, NVMLError, mig_index, profile_of
from devherd_gpu.nvidia.standinstate import Gpu, MigDevice, State

LOOK_AGAIN = 0.05
"""Seconds between two looks at the file while a call hangs or waits for an event."""


class _Instance(NamedTuple):
    """A GPU instance or, with `ci`, a compute instance."""

    handle: Handle
    gi: int
    ci: int = -1


class _EventSet:
    def __init__(self, place: int) -> None:
        self.place = place
        self.types: dict[str, int] = {}


class StandIn:
    """Use it where pynvml would be used: `StandIn(path).nvmlInit()`."""

    NVMLError = NVMLError

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._state = State(init="library_not_found")
        self._up = False
        self._sets: list[_EventSet] = []

    # -- the library and the system

    def nvmlInitWithFlags(self, flags: int) -> None:  # noqa: N802
        """Load and initialise. Raises as a missing, unloaded or mismatched driver would make it."""
        while self._read().init == "hang":
            time.sleep(LOOK_AGAIN)
        self._ready("nvmlInitWithFlags", up=False)
        _fail(file.code(self._state.init))
        self._up = True

    def nvmlInit(self) -> None:  # noqa: N802
        """The same without flags."""
        self.nvmlInitWithFlags(0)

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Let go."""
        self._ready("nvmlShutdown")
        self._up = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Every other function, by pynvml's name."""
        if not name.startswith("nvml"):
            raise AttributeError(name)
        plain = name.removesuffix("_v2").removesuffix("_v3")
        of_gpu = OF_GPU.get(plain)
        if of_gpu is not None:
            return lambda handle, *rest: of_gpu(*self._gpu(plain, handle), *rest)
        own = getattr(self, f"_{plain}", None) if not name.startswith("_") else None
        if own is None:
            raise NVMLError(file.code("function_not_found"))
        return self._checked(plain, own)

    def _nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self._state.driver

    def _nvmlSystemGetNVMLVersion(self) -> str:  # noqa: N802
        return self._state.nvml

    def _nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return self._state.cuda

    def _nvmlErrorString(self, code: int) -> str:  # noqa: N802
        return str(NVMLError(code))

    # -- handles

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._present())

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:  # noqa: N802
        present = self._present()
        if not 0 <= index < len(present):
            raise NVMLError(file.code("invalid_argument"))
        return self._handed("nvmlDeviceGetHandleByIndex", present[index])

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:  # noqa: N802
        for gpu in self._present():
            if gpu.uuid == uuid:
                return self._handed("nvmlDeviceGetHandleByUUID", gpu)
            if gpu.mig and any(device.uuid == uuid for device in gpu.mig.devices):
                self._handed("nvmlDeviceGetHandleByUUID", gpu)
                return Handle(gpu.uuid, uuid)
        raise NVMLError(file.code("not_found"))

    def _nvmlDeviceGetHandleByPciBusId(self, address: str) -> Handle:  # noqa: N802
        for gpu in self._present():
            if gpu.pci.lower() == address.lower()[-12:]:
                return self._handed("nvmlDeviceGetHandleByPciBusId", gpu)
        raise NVMLError(file.code("not_found"))

    def _nvmlDeviceGetIndex(self, handle: Handle) -> int:  # noqa: N802
        gpu, mig = self._gpu("nvmlDeviceGetIndex", handle)
        if mig:
            return mig_index(gpu, mig)
        return [one.uuid for one in self._present()].index(gpu.uuid)

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Handle, other: Handle) -> int:  # noqa: N802
        self._gpu("nvmlDeviceGetTopologyCommonAncestor", one)
        self._gpu("nvmlDeviceGetTopologyCommonAncestor", other)
        pair = {one.gpu, other.gpu}
        return next((level for a, b, level in self._state.topology if {a, b} == pair), 50)

    # -- instances

    def _nvmlDeviceGetGpuInstanceById(self, handle: Handle, gi: int) -> _Instance:  # noqa: N802
        gpu, _ = self._gpu("nvmlDeviceGetGpuInstanceById", handle)
        if not gpu.mig or all(device.gi != gi for device in gpu.mig.devices):
            raise NVMLError(file.code("not_found"))
        return _Instance(handle, gi)

    def _nvmlGpuInstanceGetInfo(self, instance: _Instance) -> Any:  # noqa: N802
        gpu, device = self._instance("nvmlGpuInstanceGetInfo", instance)
        profile = profile_of(gpu, device.profile)
        return SimpleNamespace(id=instance.gi, profileId=profile.id, device=instance.handle)

    def _nvmlGpuInstanceGetComputeInstanceById(self, instance: _Instance, ci: int) -> _Instance:  # noqa: N802
        self._instance("nvmlGpuInstanceGetComputeInstanceById", instance._replace(ci=ci))
        return instance._replace(ci=ci)

    def _nvmlComputeInstanceGetInfo(self, instance: _Instance) -> Any:  # noqa: N802
        _, device = self._instance("nvmlComputeInstanceGetInfo", instance)
        return SimpleNamespace(id=instance.ci, profileId=device.ci_profile, device=instance.handle)

    def _instance(self, function: str, instance: _Instance) -> tuple[Gpu, MigDevice]:
        gpu, _ = self._gpu(function, instance.handle)
        for device in gpu.mig.devices if gpu.mig else ():
            if device.gi == instance.gi and instance.ci in (-1, device.ci):
                return gpu, device
        raise NVMLError(file.code("not_found"))

    # -- events

    def _nvmlEventSetCreate(self) -> _EventSet:  # noqa: N802
        events = _EventSet(max((event.seq for event in self._state.events), default=0))
        self._sets.append(events)
        return events

    def _nvmlEventSetFree(self, events: _EventSet) -> None:  # noqa: N802
        self._sets = [one for one in self._sets if one is not events]

    def _nvmlDeviceRegisterEvents(self, handle: Handle, types: int, events: _EventSet) -> None:  # noqa: N802
        gpu, mig = self._gpu("nvmlDeviceRegisterEvents", handle)
        if mig or types & ~gpu.event_types:
            raise NVMLError(file.code("not_supported"))
        events.types[gpu.uuid] = events.types.get(gpu.uuid, 0) | types

    def _nvmlEventSetWait(self, events: _EventSet, milliseconds: int) -> Any:  # noqa: N802
        end = time.monotonic() + milliseconds / 1000
        while True:
            for event in sorted(self._read().events, key=lambda one: one.seq):
                if event.seq <= events.place:
                    continue
                events.place = event.seq
                if events.types.get(event.gpu, 0) & event.type:
                    return SimpleNamespace(
                        device=Handle(event.gpu),
                        eventType=event.type,
                        eventData=event.data,
                        gpuInstanceId=event.gi,
                        computeInstanceId=event.ci,
                    )
            left = end - time.monotonic()
            if left <= 0:
                raise NVMLError(file.code("timeout"))
            time.sleep(min(left, LOOK_AGAIN))

    # -- how calls end

    def _checked(self, function: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any) -> Any:
            self._ready(function)
            return call(*args)

        return checked

    def _ready(self, function: str, up: bool = True) -> None:
        """What the file says about every call."""
        while any(file.fits(pattern, function) for pattern in self._read().hang):
            time.sleep(LOOK_AGAIN)
        if up and self._state.init != "ok":
            self._up = False
        if up and not self._up:
            raise NVMLError(file.code("uninitialized"))
        _fail(_error(self._state.errors, function))

    def _handed(self, function: str, gpu: Gpu) -> Handle:
        self._gpu(function, Handle(gpu.uuid))
        return Handle(gpu.uuid)

    def _gpu(self, function: str, handle: Handle) -> tuple[Gpu, MigDevice | None]:
        """What a handle stands for; raises what the file says about this call on it."""
        while True:
            self._ready(function)
            gpu = next((one for one in self._state.gpus if one.uuid == handle.gpu), None)
            if gpu is None or gpu.gone:
                raise NVMLError(file.code("gpu_is_lost"))
            if not any(file.fits(pattern, function) for pattern in gpu.hang):
                break
            time.sleep(LOOK_AGAIN)
        _fail(_error(gpu.errors, function))
        if not handle.mig:
            return gpu, None
        for device in gpu.mig.devices if gpu.mig else ():
            if device.uuid == handle.mig:
                return gpu, device
        raise NVMLError(file.code("invalid_argument"))

    def _present(self) -> list[Gpu]:
        return [gpu for gpu in self._state.gpus if not gpu.gone]

    def _read(self) -> State:
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._state = file.read(self._path)
                self._stamp = stamp
        except FileNotFoundError:
            self._state, self._stamp = State(init="library_not_found"), None
        except (OSError, msgspec.DecodeError):
            pass
        return self._state


def _fail(number: int) -> None:
    if number:
        raise NVMLError(number)


def _error(errors: dict[str, str], function: str) -> int:
    return next((file.code(name) for pattern, name in errors.items() if file.fits(pattern, function)), 0)
