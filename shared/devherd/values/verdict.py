"""Health: evidence a vendor gathers, and the verdict the policy reaches from it."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Severity(str, Enum):
    """Hard evidence counts at once; soft evidence after a debounce."""

    HARD = "hard"
    SOFT = "soft"


class Clears(str, Enum):
    """What ends a fault: time without it, a good probe, a device reset, a reboot, or an operator."""

    TIME = "time"
    PROBE = "probe"
    RESET = "reset"
    REBOOT = "reboot"
    OPERATOR = "operator"


class Evidence(Struct, frozen=True, omit_defaults=True):
    """One observation about one thing. `kind` is the sort of fault (`gone`, `link`, `xid-79`).

    `bad=False` says that this kind is fine now, and `clears` then is what proves it: a good probe, or something
    stronger that the source saw happen (`RESET`: the device was reset), which also ends faults that only that ends.
    With an empty `kind` it is about every kind of fault of the thing. `reason` is one short sentence for a person.
    """

    thing: str
    kind: str
    bad: bool
    reason: str = ""
    severity: Severity = Severity.HARD
    clears: Clears = Clears.PROBE


class Verdict(Struct, frozen=True, omit_defaults=True):
    """Healthy or not, with the reason (empty when healthy), the deciding kind and since when (Unix seconds)."""

    healthy: bool
    reason: str = ""
    kind: str = ""
    since: float = 0.0


HEALTHY = Verdict(healthy=True)
