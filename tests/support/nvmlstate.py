"""A simulated NVIDIA driver for tests: its state file, changed while somebody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from devherd_gpu.nvidia import standinstate
from devherd_gpu.nvidia.gpus import Gpu, MigDevice
from devherd_gpu.nvidia.standinstate import Event, State

XID = 8


def uuid(number: int) -> str:
    """A GPU's UUID."""
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def mig_uuid(gpu: int, place: int) -> str:
    """A MIG device's UUID."""
    return f"MIG-{gpu:04x}{place:04x}-5555-6666-7777-888888888888"


def gpus(count: int = 8, **fields: Any) -> tuple[standinstate.Gpu, ...]:
    """Like GPUs on a bus each."""
    return tuple(
        standinstate.Gpu(uuid=uuid(number), pci=f"0000:{number + 0x10:02x}:00.0", minor=number, **fields)
        for number in range(count)
    )


def mig(gpu: int, instances: int = 3) -> standinstate.Mig:
    """MIG on, with so many 1g instances (gi 7, 8, ...)."""
    profile = standinstate.MigProfile(profile=0, id=19, slices=1, memory_mib=9856, instances=7, name="1g.10gb")
    devices = tuple(standinstate.MigDevice(uuid=mig_uuid(gpu, n), gi=7 + n, index=n) for n in range(instances))
    return standinstate.Mig(current=1, pending=1, profiles=(profile,), devices=devices)


class SimDriver:
    """The state file below a root. Each change is one replaced file."""

    def __init__(self, root: str, gpus: Sequence[standinstate.Gpu], **fields: Any) -> None:
        self._take(root, State(gpus=tuple(gpus), **fields))
        self.write()

    @classmethod
    def of(cls, root: str) -> SimDriver:
        """The one that a simulated node has."""
        driver = cls.__new__(cls)
        driver._take(root, standinstate.read(standinstate.state_path(root)))
        return driver

    def _take(self, root: str, state: State) -> None:
        self.path = standinstate.state_path(root)
        self.state = state
        self._seq = max((event.seq for event in state.events), default=0)

    def write(self) -> None:
        """Put the state in place."""
        standinstate.write(self.path, self.state)

    def change(self, **fields: Any) -> None:
        """Change fields of the whole."""
        self.state = msgspec.structs.replace(self.state, **fields)
        self.write()

    def gpu(self, number: int, **fields: Any) -> None:
        """Change fields of one GPU."""
        changed = list(self.state.gpus)
        changed[number] = msgspec.structs.replace(changed[number], **fields)
        self.change(gpus=tuple(changed))

    def lose(self, number: int) -> None:
        """The GPU falls off the bus."""
        self.gpu(number, errors={"*": "gpu_is_lost"})

    def event(self, number: int, type: int = XID, data: int = 0, **instance: int) -> None:
        """Something happens to a GPU."""
        self._seq += 1
        event = Event(self._seq, self.state.gpus[number].uuid, type, data, **instance)
        self.change(events=(*self.state.events, event))

    def found(self) -> tuple[Gpu, ...]:
        """What discovery makes of it."""
        return tuple(
            Gpu(
                uuid=gpu.uuid,
                pci=gpu.pci,
                index=index,
                minor=gpu.minor,
                name=gpu.name,
                mig=bool(gpu.mig and gpu.mig.current),
                mig_devices=tuple(
                    MigDevice(device.uuid, place, device.gi, device.ci, "1g.10gb", device.memory_mib, 1)
                    for place, device in enumerate(gpu.mig.devices if gpu.mig else ())
                ),
            )
            for index, gpu in enumerate(gpu for gpu in self.state.gpus if not gpu.gone)
        )
