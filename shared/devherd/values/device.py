"""A device: one allocatable unit, under an id that never changes."""

from __future__ import annotations

from msgspec import Struct, field

from devherd.values.answer import Parts


class Claim(Struct, frozen=True):
    """A device's wish to own a physical thing. Several `shared` claims get along; `exclusive` is alone."""

    thing: str
    mode: str = "exclusive"


class Device(Struct, frozen=True, omit_defaults=True):
    """One allocatable unit of a resource.

    `things` are the physical devices it stands on (health follows each of them). `numa` holds the NUMA
    node numbers, empty when unknown (sysfs says -1). `attributes` are facts for people: driver, serial, rule.
    `names` are all names by which a runtime would find this device now (`index:3`, `uuid:GPU-...`), whichever of them
    its answer uses: an answer given earlier is stale once one of its `Parts.picks` is no longer among them.
    """

    id: str
    things: tuple[str, ...]
    parts: Parts
    numa: tuple[int, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    names: tuple[str, ...] = ()
