"""Builds the list a kubelet is sent for one resource, from the scan and from everything that must not vanish.

Every message replaces the kubelet's whole list. An id that a pod holds and that is missing from it misleads the
pod's status and can crash the kubelet (it reads the id's topology without looking whether the id is there), so
such an id stays, Unhealthy, for as long as it is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from devherd.values import Device, Member, Snapshot, Verdict

# The kubelet receives at most 4 MiB in one message (gRPC's default) and drops the whole stream above that.
RECEIVE_LIMIT = 4 * 1024 * 1024
DEFAULT_LIMIT = RECEIVE_LIMIT - 16 * 1024

GONE = "gone"
STALE = "stale"
CONFLICT = "conflict"
PARKED = "parked"


class Remembered(Struct, frozen=True, omit_defaults=True):
    """What is kept of a device after it vanished. `last_seen` is Unix seconds."""

    id: str
    numa: tuple[int, ...] = ()
    things: tuple[str, ...] = ()
    last_seen: float = 0.0


def remember(remembered: Mapping[str, Remembered], found: Mapping[str, Device], now: float) -> dict[str, Remembered]:
    """The memory after a scan at Unix time `now`: what was found, and what was known before and is missing."""
    memory = dict(remembered)
    for device_id, device in found.items():
        memory[device_id] = Remembered(device_id, device.numa, device.things, now)
    return memory


def expire(
    remembered: Mapping[str, Remembered], held: Collection[str], now: float, grace: float
) -> dict[str, Remembered]:
    """Forget ids that nobody holds and that were last seen more than `grace` seconds before Unix time `now`.

    A `last_seen` in the future (the clock was set back) becomes `now`, so that it cannot stay for ever.
    """
    kept: dict[str, Remembered] = {}
    for device_id, known in remembered.items():
        if known.last_seen > now:
            kept[device_id] = replace(known, last_seen=now)
        elif device_id in held or now - known.last_seen <= grace:
            kept[device_id] = known
    return kept


def build(
    resource_name: str,
    number: int,
    found: Mapping[str, Device],
    remembered: Mapping[str, Remembered],
    held: frozenset[str],
    verdicts: Mapping[str, Verdict],
    stale: Mapping[str, str],
    parked: Mapping[str, str],
    conflicts: Mapping[str, str],
    limit: int = DEFAULT_LIMIT,
    listed: Collection[str] = (),
) -> Snapshot:
    """The resource's list: everything found, remembered or held, ordered by id.

    `verdicts` are by thing; `stale`, `parked` and `conflicts` map an id to its reason. Of several reasons an id
    shows the first of: gone, stale, conflict, its things' verdict, parked. So `parked` is shown only where
    nothing else is wrong. `limit` is the most bytes the encoded list may have; when it does not suffice, held ids
    stay, then those in `listed` (the previous list: an id must not vanish because a new one came), then the
    others by id; the rest are named in `left_out`.
    """
    ids = sorted({*found, *remembered, *held})
    members = [_member(i, found, remembered, verdicts, stale, parked, conflicts) for i in ids]
    if not all(member.numa for member in members):
        members = _without_numa(members)
    kept, left_out = _fit(members, held, listed, limit)
    if any(device_id in held for device_id in left_out):
        # Not even the held ids fit: better no topology than a held id lost.
        kept, left_out = _fit(_without_numa(members), held, listed, limit)
    return Snapshot(resource_name, number, tuple(kept), tuple(left_out))


def encoded_size(members: Iterable[Member]) -> int:
    """The most bytes these members take in a ListAndWatchResponse, whatever their health."""
    return sum(_size(member) for member in members)


def _member(
    device_id: str,
    found: Mapping[str, Device],
    remembered: Mapping[str, Remembered],
    verdicts: Mapping[str, Verdict],
    stale: Mapping[str, str],
    parked: Mapping[str, str],
    conflicts: Mapping[str, str],
) -> Member:
    device = found.get(device_id)
    if device is None:
        known = remembered.get(device_id)
        if known is None:
            return Member(device_id, False, (), "held by a pod, but no scan ever found it", GONE)
        return Member(device_id, False, _numa(known.numa), _gone_reason(known, verdicts), GONE)
    numa = _numa(device.numa)
    if device_id in stale:
        return Member(device_id, False, numa, stale[device_id], STALE)
    if device_id in conflicts:
        return Member(device_id, False, numa, conflicts[device_id], CONFLICT)
    verdict = _worst(device.things, verdicts)
    if verdict is not None:
        return Member(device_id, False, numa, verdict.reason or verdict.kind, verdict.kind)
    if device_id in parked:
        return Member(device_id, False, numa, parked[device_id], PARKED)
    return Member(device_id, True, numa)


def _gone_reason(known: Remembered, verdicts: Mapping[str, Verdict]) -> str:
    for thing in known.things:
        verdict = verdicts.get(thing)
        if verdict is not None and not verdict.healthy and verdict.kind == GONE and verdict.reason:
            return verdict.reason
    return "the last scan did not find it"


def _worst(things: tuple[str, ...], verdicts: Mapping[str, Verdict]) -> Verdict | None:
    """The unhealthy verdict that has lasted longest."""
    if not verdicts:
        return None
    worst: Verdict | None = None
    for thing in things:
        verdict = verdicts.get(thing)
        if verdict is not None and not verdict.healthy and (worst is None or verdict.since < worst.since):
            worst = verdict
    return worst


def _numa(nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Usable node numbers; none if any is unknown (sysfs: -1), because half a topology misplaces pods."""
    if len(nodes) == 1:
        return nodes if nodes[0] >= 0 else ()
    return tuple(sorted(set(nodes))) if all(node >= 0 for node in nodes) else ()


def _without_numa(members: list[Member]) -> list[Member]:
    return [replace(member, numa=()) if member.numa else member for member in members]


def _fit(
    members: list[Member], held: frozenset[str], listed: Collection[str], limit: int
) -> tuple[list[Member], list[str]]:
    sizes = [_size(member) for member in members]
    if sum(sizes) <= limit and all(sizes):
        return members, []
    before = frozenset(listed)

    def rank(index: int) -> tuple[bool, bool, int]:
        device_id = members[index].id
        return device_id not in held, device_id not in before, index

    room = limit
    chosen: set[int] = set()
    for index in sorted(range(len(members)), key=rank):
        if 0 < sizes[index] <= room:
            chosen.add(index)
            room -= sizes[index]
    kept = [member for index, member in enumerate(members) if index in chosen]
    return kept, [member.id for index, member in enumerate(members) if index not in chosen]


def _size(member: Member) -> int:
    """Encoded bytes of one Device message in the list; 0: it cannot be sent at all (empty or not UTF-8).

    The health text counts as the longer of the two, so that what fits does not depend on health.
    """
    try:
        length = len(member.id) if member.id.isascii() else len(member.id.encode())
    except UnicodeEncodeError:
        return 0
    if not length:
        return 0
    body = _field(length) + _field(len("Unhealthy"))
    if member.numa:
        # proto3 leaves out a zero, so node 0 is an empty message.
        body += _field(sum(_field(1 + _varint(node) if node else 0) for node in member.numa))
    return _field(body)


def _field(length: int) -> int:
    """Bytes of a length-delimited field with a one-byte tag."""
    return 1 + _varint(length) + length


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
