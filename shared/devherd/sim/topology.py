"""Topology manager: hints per resource, merged to one NUMA mask per container. Masks are frozen sets of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product

from msgspec import Struct

from devherd.sim.devices import DeviceManager
from devherd.sim.pods import Container, Pod

Mask = frozenset[int]


class Hint(Struct, frozen=True):
    """One way to satisfy a request. `mask` None: no preference."""

    mask: Mask | None
    preferred: bool


class AffinityError(Exception):
    """The policy refuses the pod."""


def hints_for(
    devices: DeviceManager, pod: Pod, container: Container, reuse: Mapping[str, set[str]]
) -> dict[str, list[Hint] | None]:
    """Hints per resource of one container; None: the resource does not care. Raises devices.Crash."""
    result: dict[str, list[Hint] | None] = {}
    for resource, count in container.requests.items():
        if not devices.is_device_resource(resource):
            continue
        if not any(seen.nodes for seen in devices.all.get(resource, {}).values()):
            result[resource] = None
            continue
        held = devices.held(pod.uid, container.name, resource)
        if held:
            result[resource] = _hints(devices, resource, held, set(), count) if len(held) == count else []
            continue
        free = devices.healthy.get(resource, set()) - devices.allocated.get(resource, set())
        reusable = reuse.get(resource, set())
        enough = len(free | reusable) >= count
        result[resource] = _hints(devices, resource, free, reusable, count) if enough else []
    return result


def _hints(devices: DeviceManager, resource: str, available: set[str], reusable: set[str], count: int) -> list[Hint]:
    listed = devices.all[resource]
    for device in available | reusable:
        if device not in listed:
            devices.vanished(resource, device)
    machine = set(devices.options().numa_nodes)
    bearing = sorted({node for seen in listed.values() for node in seen.nodes or ()} & machine) or sorted(machine)

    def inside(ids: Iterable[str], mask: Mask) -> int:
        return sum(1 for i in ids if i in listed and mask & set(listed[i].nodes or ()))

    smallest = len(bearing)
    fitting: list[Mask] = []
    for size in range(1, len(bearing) + 1):
        for nodes in combinations(bearing, size):
            mask = frozenset(nodes)
            if inside(listed, mask) >= count:
                smallest = min(smallest, size)
            reused = inside(reusable, mask)
            if reused >= len(reusable) and inside(available - reusable, mask) + reused >= count:
                fitting.append(mask)
    return [Hint(mask, len(mask) == smallest) for mask in fitting]


def merge(policy: str, hints: Mapping[str, Sequence[Hint] | None], nodes: Iterable[int]) -> Mask | None:
    """The mask a container gets; None for no preference. Raises AffinityError where the policy refuses."""
    if policy == "none":
        return None
    everything = frozenset(nodes)
    lists: list[list[Hint]] = []
    for of_resource in hints.values():
        if of_resource is None:
            lists.append([Hint(None, True)])
        elif policy == "single-numa-node":
            kept = [h for h in of_resource if h.preferred and (h.mask is None or len(h.mask) == 1)]
            lists.append(kept or [Hint(None, False)])
        else:
            lists.append(list(of_resource) or [Hint(None, False)])
    best = Hint(everything, not lists)
    for way in product(*lists):
        mask = everything
        for hint in way:
            if hint.mask is not None:
                mask &= hint.mask
        if not mask:
            continue
        merged = Hint(mask, all(h.preferred for h in way))
        if _better(merged, best):
            best = merged
    if policy == "restricted" and not best.preferred:
        raise AffinityError
    if policy == "single-numa-node" and not best.preferred:
        raise AffinityError
    return None if policy == "single-numa-node" and best.mask == everything else best.mask


def _better(new: Hint, old: Hint) -> bool:
    if new.preferred != old.preferred:
        return new.preferred
    return len(new.mask or ()) < len(old.mask or ())


def split(
    devices: DeviceManager, resource: str, available: set[str], mask: Mask | None
) -> tuple[set[str], set[str], set[str]]:
    """Available ids as (aligned with the mask, elsewhere, without topology). Without mask all are in the last."""
    if mask is None:
        return set(), set(), set(available)
    listed = devices.all.get(resource, {})
    aligned: set[str] = set()
    unaligned: set[str] = set()
    without: set[str] = set()
    for device in available:
        nodes = listed[device].nodes if device in listed else None
        if not nodes:
            without.add(device)
        elif mask & set(nodes):
            aligned.add(device)
        else:
            unaligned.add(device)
    return aligned, unaligned, without
