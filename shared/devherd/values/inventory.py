"""Everything one scan found."""

from __future__ import annotations

from msgspec import Struct

from devherd.values.device import Device
from devherd.values.verdict import Evidence

NOTHING_NOW = "nothing matches now"
"""How the reason begins where a rule's pattern (`what`) has no match: no mistake, the device may come yet."""


class Skipped(Struct, frozen=True, omit_defaults=True):
    """Something the scan saw and did not offer: what it was, the rule or selector that looked at it, and why."""

    what: str
    rule: str
    reason: str


class Preference(Struct, frozen=True, omit_defaults=True):
    """Data for preferred allocation, used by the front.

    `affinity` maps a pair of ids (`a`, `b` with a < b, joined by a NUL) to a weight; higher is nearer.
    `group` maps an id to the physical thing whose shares should be packed (or spread).
    """

    policy: str = "packed"
    affinity: dict[str, int] = {}
    group: dict[str, str] = {}


class Resource(Struct, frozen=True, omit_defaults=True):
    """A name pods ask for (`vendor.example/kind`) and the devices that satisfy it.

    `pre_start` asks the kubelet to call PreStartContainer before every container creation.
    """

    name: str
    devices: tuple[Device, ...]
    pre_start: bool = False
    preference: Preference | None = None


class Inventory(Struct, frozen=True, omit_defaults=True):
    """One scan's result. `absent` says why there is no hardware for this plugin at all; empty: there is."""

    resources: tuple[Resource, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    absent: str = ""
