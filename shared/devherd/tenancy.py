"""Who holds which id, and when nobody holds it any more. The kubelet never says so; it has to be worked out.

PodResources List shows what running pods hold, but: after a kubelet start it is empty for a while although
pods run; it does not show plain init containers; a device just allocated is not in it yet; pods rejected after
Allocate never are. So an id counts as released only after several misses over some time, never while the
kubelet is settling, and an id that List never showed only when the kubelet's checkpoint does not have it either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec import Struct

Held = Mapping[str, Mapping[str, str]]


class Guards(Struct, frozen=True):
    """How careful a release is; times in seconds.

    `misses`: Lists in a row without the id, over at least `span`. `settle`: after another kubelet, unless every
    id it showed before is back earlier. `fresh`: a new allocation need not be listed yet. `blind`: age at which
    an id that List never showed counts as released although the checkpoint could not be read.
    """

    misses: int = 3
    span: float = 10.0
    settle: float = 180.0
    fresh: float = 60.0
    blind: float = 3600.0


@dataclass
class _Tenant:
    opened: float
    owner: str = ""
    listed: bool = False
    misses: int = 0
    missed_since: float = 0.0


class Tenancy:
    """Holders of ids. Times are monotonic seconds; pass only the plugin's own resources.

    A new one starts as if the kubelet had just changed: who was there before is not known.
    """

    def __init__(self, now: float, guards: Guards | None = None) -> None:
        self._guards = guards or Guards()
        self._tenants: dict[tuple[str, str], _Tenant] = {}
        self._checkpoint: dict[str, dict[str, str]] = {}
        self._checkpoint_at: float | None = None
        self._ended: dict[tuple[str, str], str] = {}
        self._settling_until = now + self._guards.settle
        self._awaited: set[tuple[str, str]] | None = None
        self._list_ok = False

    def allocated(self, resource: str, ids: Iterable[str], now: float) -> None:
        """Allocate answered these ids. Opens their tenancy, or makes it fresh again."""
        for device_id in ids:
            self._ended.pop((resource, device_id), None)
            known = self._tenants.get((resource, device_id))
            owner = known.owner if known else ""
            self._tenants[resource, device_id] = _Tenant(now, owner)

    def suspected(self, resource: str, ids: Iterable[str], now: float) -> None:
        """These ids may be held from before (the ledger has them): treat them so until the kubelet shows otherwise."""
        for device_id in ids:
            self._tenants.setdefault((resource, device_id), _Tenant(now))

    def checkpoint(self, held: Held, now: float) -> None:
        """The kubelet's checkpoint was read and holds these ids, with their owners."""
        self._checkpoint = {resource: dict(ids) for resource, ids in held.items() if ids}
        self._checkpoint_at = now
        for key, owner in list(self._ended.items()):
            # The kubelet drops entries of finished pods lazily; the same entry is not a new holder.
            if self._checkpoint.get(key[0], {}).get(key[1]) != owner:
                del self._ended[key]
        for key, owner in _pairs(held):
            if key not in self._ended and key not in self._tenants:
                self._tenants[key] = _Tenant(now, owner)

    def listed(self, held: Held, now: float) -> None:
        """PodResources List succeeded and shows these ids, with their owners."""
        self._list_ok = True
        present = dict(_pairs(held))
        for key, owner in present.items():
            tenant = self._tenants.setdefault(key, _Tenant(now))
            tenant.owner, tenant.listed, tenant.misses = owner, True, 0
            self._ended.pop(key, None)
        if self._awaited is not None and self._awaited <= present.keys():
            self._settling_until, self._awaited = min(self._settling_until, now), None
        if now < self._settling_until:
            return
        for key, tenant in self._tenants.items():
            if key not in present:
                if not tenant.misses:
                    tenant.missed_since = now
                tenant.misses += 1

    def list_failed(self, now: float) -> None:
        """PodResources List failed: that says nothing about who holds what."""
        self._list_ok = False

    def kubelet_changed(self, now: float) -> None:
        """Another kubelet answers: its List is empty or partial until it has seen its pods."""
        self._settling_until = now + self._guards.settle
        shown = {key for key, tenant in self._tenants.items() if tenant.listed}
        # With nothing to wait for, an empty List proves nothing: only time does.
        self._awaited = (self._awaited or set()) | shown or None
        for tenant in self._tenants.values():
            tenant.misses = 0

    def settling(self, now: float) -> bool:
        """Whether releases are held back because the kubelet is new."""
        return now < self._settling_until

    def held(self, resource: str) -> frozenset[str]:
        """Ids that a pod holds or may hold, the checkpoint's included."""
        return frozenset(self._checkpoint.get(resource, ())) | {i for r, i in self._tenants if r == resource}

    def owner(self, resource: str, device_id: str) -> str:
        """Who holds the id, for people; empty: nobody."""
        tenant = self._tenants.get((resource, device_id))
        in_checkpoint = self._checkpoint.get(resource, {}).get(device_id, "")
        if tenant is None:
            return in_checkpoint
        if tenant.misses and tenant.listed:
            return f"{tenant.owner or in_checkpoint}, which the kubelet does not list any more"
        return tenant.owner or in_checkpoint or "a pod that the kubelet has not listed"

    @property
    def doubtful(self) -> bool:
        """Whether some holder was missing in the last List: looking again soon settles it."""
        return any(tenant.misses for tenant in self._tenants.values())

    def released(self, now: float) -> list[tuple[str, str]]:
        """The (resource, id) pairs that nobody holds any more; each end of a tenancy is returned once, ordered."""
        if self.settling(now):
            return []
        over = sorted(key for key, tenant in self._tenants.items() if self._over(key, tenant, now))
        for key in over:
            del self._tenants[key]
            still = self._checkpoint.get(key[0], {}).get(key[1])
            if still is not None:
                self._ended[key] = still
        return over

    def _over(self, key: tuple[str, str], tenant: _Tenant, now: float) -> bool:
        guards = self._guards
        if tenant.misses < guards.misses or now - tenant.missed_since < guards.span:
            return False
        if now - tenant.opened < guards.fresh:
            return False
        if tenant.listed:
            return True
        if self._checkpoint_at is None or self._checkpoint_at <= tenant.opened:
            return now - tenant.opened >= guards.blind
        return key[1] not in self._checkpoint.get(key[0], ())


def _pairs(held: Held) -> Iterable[tuple[tuple[str, str], str]]:
    for resource, ids in held.items():
        for device_id, owner in ids.items():
            yield (resource, device_id), owner
