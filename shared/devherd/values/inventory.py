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


class HostFile(Struct, frozen=True, omit_defaults=True):
    """A file that a vendor wants on the host: a CDI specification, a feature file.

    `path` is where it really goes (below `paths.cdi` or `paths.features`). The probe writes it before it answers the
    scan, so it is there before the kubelet can pass on a name in it, and removes it when no scan wants it any more.
    `optional`: left out, without a word, where its folder does not exist.
    """

    path: str
    text: str
    optional: bool = False


class Resource(Struct, frozen=True, omit_defaults=True):
    """A name pods ask for (`vendor.example/kind`) and the devices that satisfy it.

    `pre_start` asks the kubelet to call PreStartContainer before every container creation. `limit` is the most devices
    that one container may ask for (0: any number), `limit_text` what it is told that asks for more; `{found}` in it
    stands for how many it asked for.
    """

    name: str
    devices: tuple[Device, ...]
    pre_start: bool = False
    preference: Preference | None = None
    limit: int = 0
    limit_text: str = ""


class Inventory(Struct, frozen=True, omit_defaults=True):
    """One scan's result. `absent` says why there is no hardware for this plugin at all; empty: there is.

    `files` stay in the probe, which writes them; a front gets an inventory without.
    """

    resources: tuple[Resource, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    absent: str = ""
    files: tuple[HostFile, ...] = ()
