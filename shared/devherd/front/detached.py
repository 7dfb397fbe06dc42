"""Detached: an operator's wish that this plugin lets go of its driver, so that it can be unloaded or a device be reset.

The probe ends, and with it every handle on the hardware; the front stays registered and serves from memory. What nobody
holds is parked meanwhile (all of it, or the named devices); held devices stay as they are. It outlives restarts of the
front and ends with a boot.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from devherd.values import Device


class Wish(Struct, frozen=True, omit_defaults=True):
    """What was asked for. `names` are device ids or things; empty: everything. `since` is Unix seconds."""

    names: tuple[str, ...] = ()
    reason: str = ""
    by: str = ""
    since: float = 0.0
    boot_id: str = ""

    def means(self, id: str, device: Device | None) -> bool:
        """Whether a device is meant."""
        return not self.names or id in self.names or (device is not None and bool({*device.things} & {*self.names}))


def wish_from(request: Mapping[str, object], boot_id: str) -> Wish:
    """From a control request. Raises ValueError."""
    names = request.get("names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ValueError('"names" must be a list of device ids')
    reason, by = str(request.get("reason") or ""), str(request.get("by") or "")
    return Wish(tuple(names), reason, by, time.time(), boot_id)


def parked(wish: Wish | None, found: Mapping[str, Device], ids: Iterable[str], held: Collection[str]) -> dict[str, str]:
    """Device id -> why it cannot be had now: those that are meant and that nobody holds."""
    if wish is None:
        return {}
    text = f"detached: {wish.reason}" if wish.reason else "detached by an operator"
    return {id: text for id in ids if id not in held and wish.means(id, found.get(id))}
