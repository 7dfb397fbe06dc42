"""Tells one device's soft fault from one that a whole resource shows at once (a switch, a driver, a hot room)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devherd.health.fault import Fault


def mark_mass(
    pending: Mapping[str, Sequence[Fault]], resource_things: Mapping[str, frozenset[str]], fraction: float, now: float
) -> tuple[str, ...]:
    """Mark each pending soft fault as part of a mass or not; returns one sentence for each mass.

    `pending` are the soft faults that do not count yet, by thing. A mass is one kind on more than `fraction` of a
    resource's things and on at least two, because with one thing nothing tells a common cause from its own. What
    counts already is left out: it did not come at once with these. A fault that stops being part of a mass starts
    its debounce again, because things recover from a common cause one after the other.
    """
    groups: dict[tuple[str, str], list[Fault]] = {}
    for thing, soft in pending.items():
        for resource, things in resource_things.items():
            if thing in things:
                for fault in soft:
                    groups.setdefault((resource, fault.kind), []).append(fault)
    at_once: set[int] = set()
    sentences: list[str] = []
    for (resource, kind), faults in sorted(groups.items(), key=lambda item: item[0]):
        total = len(resource_things[resource])
        if len(faults) >= 2 and len(faults) > fraction * total:
            at_once.update(map(id, faults))
            sentences.append(
                f"{resource}: {kind} on {len(faults)} of {total} devices at once ({faults[0].reason}): "
                "most likely one common cause, so they stay offered"
            )
    for soft in pending.values():
        for fault in soft:
            if fault.mass and id(fault) not in at_once:
                fault.bad_since = now
            fault.mass = id(fault) in at_once
    return tuple(sentences)
