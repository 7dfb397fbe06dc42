"""What a GPU says about its own health when it is asked: one reading for each kind of evidence.

A reading that the card or the driver does not have says nothing. A reading that fails in another way raises NvmlError:
the caller decides what that means for the GPU, and keeps what it knew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from devherd.values import Clears, Severity

from devherd_gpu.nvidia.nvml import Nvml

_UNCORRECTED, _VOLATILE = 1, 0
RECOVERY_FIELD = 230
_IDLE, _HOT, _BRAKED = 0x1, 0x40, 0x80
_FABRIC_DONE = 3
_DEGRADED = ("bandwidth is degraded", "routes are being recovered", "routes are unhealthy", "memory access timed out")


class Sign(NamedTuple):
    """One reading: `bad`, why, and what ends it. A good one of a kind that a reset ends proves that it was reset."""

    kind: str
    bad: bool
    reason: str = ""
    severity: Severity = Severity.HARD
    clears: Clears = Clears.PROBE


Reading = Callable[[Nvml, Any], Iterator[Sign]]

ACTIONS: Mapping[int, tuple[str, Severity, Clears]] = MappingProxyType(
    {
        1: ("the driver asks for a reset of the GPU", Severity.HARD, Clears.RESET),
        2: ("the driver asks for a reboot of the node", Severity.HARD, Clears.REBOOT),
        3: ("the driver asks to end work that uses other GPUs' memory", Severity.SOFT, Clears.RESET),
        4: ("the driver asks to drain the GPU and reset it", Severity.HARD, Clears.RESET),
        5: ("the driver asks to recover the IMEX domain", Severity.SOFT, Clears.RESET),
        6: ("the driver asks for a reset of the GPU's bus", Severity.HARD, Clears.RESET),
        7: ("the driver asks for a power cycle of the system", Severity.HARD, Clears.REBOOT),
    }
)
"""NVML's field 230, the recovery action, by value (0: none)."""


def answers(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """The active probe: a question that every working GPU and MIG device answers."""
    nvml.call("nvmlDeviceGetMemoryInfo", handle)
    yield Sign("no-answer", False)


def ecc(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """Double-bit errors since the last reset: memory that was in use then cannot be trusted."""
    count = nvml.optional("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE)
    if count is not None:
        text = "memory errors that could not be corrected since the last reset"
        yield Sign("ecc", count > 0, text, Severity.HARD, Clears.RESET)


def remapped_rows(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """Ampere and later replace bad rows at a reset. One that cannot be replaced is a matter for the vendor."""
    rows = nvml.optional("nvmlDeviceGetRemappedRows", handle)
    if rows is not None:
        _, _, pending, failure = rows[:4]
        text = "a bad memory row waits for a reset to be replaced"
        yield Sign("remap-pending", bool(pending), text, Severity.HARD, Clears.RESET)
        text = "a bad memory row could not be replaced: the GPU has to be exchanged"
        yield Sign("remap-failure", bool(failure), text, Severity.HARD, Clears.OPERATOR)


def retired_pages(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """The same before Ampere: pages are retired at a reset."""
    pending = nvml.optional("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    if pending is not None:
        text = "a bad memory page waits for a reset to be retired"
        yield Sign("page-retirement", bool(pending), text, Severity.HARD, Clears.RESET)


def recovery_action(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """What the driver itself says is needed."""
    values = nvml.optional("nvmlDeviceGetFieldValues", handle, [RECOVERY_FIELD])
    if not values or values[0].nvmlReturn:
        return
    action = int(values[0].value.uiVal)
    if action == 0:
        yield Sign("recovery-action", False, clears=Clears.REBOOT)
        return
    unknown = (f"the driver asks for recovery action {action}", Severity.HARD, Clears.RESET)
    yield Sign("recovery-action", True, *ACTIONS.get(action, unknown))


def clocks(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """Slowdowns that the hardware enforces. Those that software chooses (power cap, target temperature) are normal."""
    reasons = _reasons(nvml, handle)
    if reasons is not None:
        text = "is slowed down by its hardware because it is too hot"
        yield Sign("heat", bool(reasons & _HOT), text, Severity.SOFT)
        text = "is slowed down by its hardware because of its power supply"
        yield Sign("power", bool(reasons & _BRAKED), text, Severity.SOFT)


def fabric(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """NVSwitch: the fabric manager has made the GPU part of the fabric, and the fabric is whole."""
    info = fabric_info(nvml, handle)
    if info is None or int(info.state) == 0:
        return
    state, status = int(info.state), int(info.status)
    reason = ""
    if state != _FABRIC_DONE:
        reason = "the NVSwitch fabric is not ready: does nvidia-fabricmanager run?"
    elif status:
        reason = f"the NVSwitch fabric does not take the GPU (NVML error {status})"
    else:
        mask = int(getattr(info, "healthMask", 0))
        # Two bits for each condition: 0 not supported, 1 so, 2 not so.
        found = [text for place, text in enumerate(_DEGRADED) if mask >> (2 * place) & 3 == 1]
        reason = f"NVSwitch fabric: {', '.join(found)}" if found else ""
    yield Sign("fabric", bool(reason), reason, Severity.SOFT)


def fabric_info(nvml: Nvml, handle: Any) -> Any:
    """State of the GPU in the NVSwitch fabric; None where there is none."""
    make = getattr(nvml.api, "c_nvmlGpuFabricInfoV_t", None)
    info: Any = SimpleNamespace(clusterUuid=[0] * 16, status=0, cliqueId=0, state=0, healthMask=0)
    place = info
    if make is not None:
        import ctypes

        # pynvml passes on what it is given, and NVML wants a pointer: a structure itself would crash the process.
        info = make()
        place = ctypes.byref(info)
    return info if nvml.optional("nvmlDeviceGetGpuFabricInfoV", handle, place) is not None else None


def pcie(nvml: Nvml, handle: Any) -> Iterator[Sign]:
    """The link against what card and slot can do. An idle card slows its link down, so speed counts while it works."""
    width = nvml.optional("nvmlDeviceGetCurrPcieLinkWidth", handle)
    best = nvml.optional("nvmlDeviceGetMaxPcieLinkWidth", handle)
    if not width or not best:
        return
    reason = f"PCIe: {width} of {best} lanes work" if width < best else ""
    speed = nvml.optional("nvmlDeviceGetCurrPcieLinkGeneration", handle)
    fastest = nvml.optional("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    slower = bool(speed and fastest and speed < fastest)
    if not reason and slower:
        reasons = _reasons(nvml, handle)
        if reasons is None or reasons & _IDLE:
            return
        reason = f"PCIe: works at generation {speed}, card and slot can do {fastest}"
    yield Sign("pcie", bool(reason), reason, Severity.SOFT)


def _reasons(nvml: Nvml, handle: Any) -> int | None:
    reasons = nvml.optional("nvmlDeviceGetCurrentClocksEventReasons", handle)
    return None if reasons is None else int(reasons)


READINGS: tuple[Reading, ...] = (
    answers,
    recovery_action,
    ecc,
    remapped_rows,
    retired_pages,
    clocks,
    fabric,
    pcie,
)
"""Of a GPU, the most telling first."""
OF_INSTANCE: tuple[Reading, ...] = (answers,)
"""Of a MIG device: the rest is its GPU's."""
