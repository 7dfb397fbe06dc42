"""The health state on disk."""

from __future__ import annotations

from msgspec import Struct

from devherd.values import Clears, Severity


class SavedFault(Struct, frozen=True, omit_defaults=True):
    """An active fault. Times are monotonic seconds of the boot, except `since` (Unix seconds)."""

    thing: str
    kind: str
    source: str
    reason: str
    severity: Severity
    clears: Clears
    since: float
    last_bad: float


class SavedThing(Struct, frozen=True, omit_defaults=True):
    """How often a thing relapsed, and when it last recovered (monotonic seconds of the boot)."""

    thing: str
    relapses: int = 0
    recovered_at: float | None = None


class SavedHealth(Struct, frozen=True, omit_defaults=True):
    """All that outlives the process. Only faults an operator must clear outlive the boot as well."""

    boot_id: str
    saved_at: float
    grace_until: float = 0.0
    kubelet: str = ""
    faults: tuple[SavedFault, ...] = ()
    things: tuple[SavedThing, ...] = ()
