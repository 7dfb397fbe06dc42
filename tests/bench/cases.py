"""All cases, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench import allocate, fault, gpu, idle, memory, prefer, register, size, upgrade
from bench.figure import Figure
from bench.quiet import Quiet

Case = Callable[[Quiet], Sequence[Figure]]

CASES: dict[str, Case] = {
    "memory": memory.measure,
    "idle": idle.measure,
    "start": register.measure_start,
    "restart": register.measure_restart,
    "upgrade": upgrade.measure,
    "fault": fault.measure,
    "resources": size.measure_resources,
    "devices": size.measure_devices,
    "allocate": allocate.measure,
    "prefer": prefer.measure,
    "gpu": gpu.measure,
}
