"""The state file of a simulated NVIDIA driver: `<paths.root>/run/devherd-sim/nvml.json`.

Two stand-ins for NVML read it: the compiled library (tests/support/nvml), which takes the `nvml.json` beside itself,
and `devherd_gpu.nvidia.standin`, in the process, where there is no compiler. Both read it again when its time, size or
inode changed, so writers replace the file (write beside it, rename) and change a GPU while plugins run. A file that is
not complete JSON leaves the last good state in force.

Format: one JSON object, the fields of `State` below; objects within are the structs below, by the same names. A writer
that uses these structs writes every field; a reader gives a missing one its default and ignores unknown ones.

Rules that the types do not tell:

* `gpus` is in NVML's order: a GPU's index is its place among those that are not `gone`. So `gone: true` is a card that
  was missing at boot (the ones after it have lower indices; their `minor` is what the file says).
* Errors are names of NVML's constants in lower case without `NVML_ERROR_` (`gpu_is_lost`, `not_supported`, `unknown`,
  `driver_not_loaded`, `lib_rm_version_mismatch`, `library_not_found`, `function_not_found`, `timeout`, ...), or `ok`.
* `errors` maps a function's name (pynvml's, which is C's without a `_v2` or `_v3` at its end), or a prefix followed by
  `*`, to an error. The first entry in the file that fits decides. In `State` it is about every call, in `Gpu` about
  calls on that GPU or its MIG devices, GetHandle* included. A GPU that fell off the bus is `{"*": "gpu_is_lost"}`; one
  whose handle is still given out is `{"nvmlDeviceGetHandle*": "ok", "*": "gpu_is_lost"}`.
* `hang` names functions (same patterns) that do not return until the file no longer says so.
* `init` is what nvmlInit answers: an error's name, `ok`, or `hang`. Once it is not `ok`, every other call answers
  `uninitialized` until nvmlInit succeeded again, as after an unloaded driver.
* `events`: an event set's place is the highest `seq` in the file at nvmlEventSetCreate. nvmlEventSetWait moves on from
  there, in the order of `seq`, to the next event whose `gpu` (a UUID) is registered in the set for its `type`, and
  returns it; otherwise it waits, and looks at the file every 50 ms or so. An event of a GPU that is `gone` or whose
  calls fail is delivered all the same, with its handle. Writers only append, with ever higher numbers.
* Instance ids 4294967295 in an event: no MIG instance, as NVML says it.
* A value of null means: the driver answers `not_supported`.
"""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct, field

FOLDER = "run/devherd-sim"
STATE_FILE = f"{FOLDER}/nvml.json"
LIBRARY_FILE = f"{FOLDER}/libnvidia-ml.so.1"
NO_INSTANCE = 0xFFFFFFFF
GIB = 1 << 30

ERRORS = {
    "ok": 0,
    "uninitialized": 1,
    "invalid_argument": 2,
    "not_supported": 3,
    "no_permission": 4,
    "not_found": 6,
    "driver_not_loaded": 9,
    "timeout": 10,
    "library_not_found": 12,
    "function_not_found": 13,
    "gpu_is_lost": 15,
    "reset_required": 16,
    "operating_system": 17,
    "lib_rm_version_mismatch": 18,
    "in_use": 19,
    "memory": 20,
    "no_data": 21,
    "unknown": 999,
}


class MigProfile(Struct, frozen=True):
    """A kind of GPU instance that a GPU can have.

    `profile` is NVML's enumeration (0 to 17), `id` what the GPU calls it (nvidia-smi mig -lgip), `name` as the driver
    says it without the leading `MIG `.
    """

    profile: int
    id: int
    slices: int
    memory_mib: int
    instances: int
    name: str = ""


class MigDevice(Struct, frozen=True):
    """A compute instance in a GPU instance. `profile` is the GPU instance's, in NVML's enumeration.

    `index` is NVML's MIG index (-1: the place in the list). `ci_profile` is NVML's enumeration of compute instances.
    """

    uuid: str
    gi: int
    ci: int = 0
    profile: int = 0
    ci_profile: int = 0
    slices: int = 1
    ci_slices: int = 1
    memory_mib: int = 9856
    multiprocessors: int = 14
    index: int = -1


class Mig(Struct, frozen=True):
    """Multi-instance GPU: modes (0 off, 1 on) as set and as they will be after a reset, profiles and devices."""

    current: int = 0
    pending: int = 0
    max_devices: int = 7
    profiles: tuple[MigProfile, ...] = ()
    devices: tuple[MigDevice, ...] = ()


class NvLink(Struct, frozen=True):
    """One link. `remote` is the PCI address at its other end: another GPU's, or an NVSwitch's."""

    link: int
    remote: str
    active: bool = True
    version: int = 4


class Ecc(Struct, frozen=True):
    """Error counts: since the driver was loaded, and over the GPU's life."""

    volatile_corrected: int = 0
    volatile_uncorrected: int = 0
    aggregate_corrected: int = 0
    aggregate_uncorrected: int = 0


class Remapped(Struct, frozen=True):
    """Rows that were remapped; `pending` and `failure` are 0 or 1."""

    correctable: int = 0
    uncorrectable: int = 0
    pending: int = 0
    failure: int = 0


class Pcie(Struct, frozen=True):
    """The PCIe link: as it is, and the most that card and slot can do. Replays are a counter."""

    generation: int = 5
    generation_max: int = 5
    width: int = 16
    width_max: int = 16
    replays: int = 0


class Fabric(Struct, frozen=True):
    """NVSwitch fabric or multi-node NVLink. State 3 is completed; `status` an error's number; `health` the mask."""

    state: int = 3
    status: int = 0
    cluster: str = "00000000-0000-0000-0000-000000000000"
    clique: int = 0
    health: int = 0


class Gpu(Struct, frozen=True):
    """One GPU. Memory in bytes, temperatures in degrees Celsius, power in milliwatts.

    `clock_reasons` is NVML's mask of reasons why clocks are low; `recovery_action` is field 230; `fields` are further
    field values by id; `event_types` the supported types; `arch`, `brand` and `virtualization` NVML's enumerations.
    """

    uuid: str
    pci: str
    minor: int
    name: str = "NVIDIA H100 80GB HBM3"
    memory: int = 80 * GIB
    compute: tuple[int, int] = (9, 0)
    arch: int = 9
    brand: int = 14
    pci_device: int = 0x233010DE
    pci_subsystem: int = 0x16C110DE
    virtualization: int = 0
    addressing_mode: int | None = None
    gone: bool = False
    errors: dict[str, str] = field(default_factory=dict)
    hang: tuple[str, ...] = ()
    mig: Mig | None = field(default_factory=Mig)
    nvlinks: tuple[NvLink, ...] = ()
    ecc: Ecc | None = field(default_factory=Ecc)
    remapped: Remapped | None = field(default_factory=Remapped)
    retired_pending: int | None = None
    recovery_action: int | None = 0
    temperature: int = 40
    temperature_memory: int | None = None
    temperature_shutdown: int = 92
    temperature_slowdown: int = 89
    temperature_max: int = 87
    clock_reasons: int = 0
    power: int = 80_000
    power_limit: int = 700_000
    pcie: Pcie | None = field(default_factory=Pcie)
    fabric: Fabric | None = None
    persistence: int = 1
    compute_mode: int = 0
    multiprocessors: int = 132
    event_types: int = 0xFF9F
    fields: dict[str, int] = field(default_factory=dict)


class Event(Struct, frozen=True):
    """One event. `type` is NVML's (8: an Xid, whose number is `data`)."""

    seq: int
    gpu: str
    type: int
    data: int = 0
    gi: int = NO_INSTANCE
    ci: int = NO_INSTANCE


class State(Struct, frozen=True):
    """The whole file. `topology` holds pairs of UUIDs and NVML's level between them (10 one switch, 20 several, 30 host
    bridge, 40 same NUMA node, 50 across nodes); a pair that is not in it is 50 apart."""

    version: int = 1
    driver: str = "580.95.05"
    nvml: str = "13.580.95.05"
    cuda: int = 13000
    init: str = "ok"
    errors: dict[str, str] = field(default_factory=dict)
    hang: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    topology: tuple[tuple[str, str, int], ...] = ()
    events: tuple[Event, ...] = ()


def state_path(root: str) -> str:
    """Where the file is below a root (`paths.root`)."""
    return os.path.join(root, STATE_FILE)


def decode(data: bytes) -> State:
    """Read the file's text. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=State)


def write(path: str, state: State) -> None:
    """Put a state in place, whole: readers see the old one or the new one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.new-{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state), indent=1))
    os.replace(temporary, path)


def read(path: str) -> State:
    """The state in a file. Raises OSError and msgspec.DecodeError."""
    with open(path, "rb") as file:
        return decode(file.read())


def code(name: str) -> int:
    """An error's number; one that we do not know is `unknown`."""
    return ERRORS.get(name, 999)


def fits(pattern: str, function: str) -> bool:
    """Whether a pattern of `errors` or `hang` is about a function."""
    return function.startswith(pattern[:-1]) if pattern.endswith("*") else function == pattern
