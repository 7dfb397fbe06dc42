"""From what was found to what is offered: selection, MIG strategy, names, shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from devherd.values import NOTHING_NOW, Claim, Device, Preference, Resource, Skipped
from msgspec import Struct

from devherd_gpu.common import naming, selectors, sharing
from devherd_gpu.common.naming import NameRule
from devherd_gpu.common.selectors import Facts
from devherd_gpu.common.sharing import ShareRule
from devherd_gpu.nvidia import migprofile
from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.gpus import Found, Gpu
from devherd_gpu.nvidia.responses import Responses, Target
from devherd_gpu.nvidia.validate import DOMAIN, GPU

ONE_EACH = (
    'invalid allocation request for "{name}": invalid request: '
    "maximum request size for shared resources is 1; found {{found}}"
)
"""What NVIDIA's plugin says; {found} is filled in by the front."""
MPS = "mps"


class Unit(Struct, frozen=True):
    """One GPU or MIG device that is offered: under which name, how it is shared, and by which rules (`why`)."""

    target: Target
    name: str
    facts: Facts
    share: ShareRule | None = None
    why: str = ""

    @property
    def ids(self) -> list[str]:
        """The ids that the kubelet sees."""
        return sharing.ids(self.target.uuid, self.share.replicas) if self.share else [self.target.uuid]


class Rules(Struct, frozen=True):
    """The configuration's rules, read once."""

    include: tuple[selectors.Selector, ...]
    exclude: tuple[selectors.Selector, ...]
    names: tuple[NameRule, ...]
    shares: tuple[ShareRule, ...]


def compile_rules(config: Config) -> Rules:
    """Selectors and names made ready."""
    return Rules(
        include=selectors.parse_all(config.include),
        exclude=selectors.parse_all(config.exclude),
        names=tuple(
            NameRule(f"resources[{n}]", selectors.parse_all(rule.select), naming.full(rule.name, DOMAIN))
            for n, rule in enumerate(config.resources)
        ),
        shares=tuple(
            ShareRule(
                label=f"sharing[{n}]",
                selectors=selectors.parse_all(rule.select),
                replicas=rule.replicas,
                resource=naming.full(rule.resource, DOMAIN) if rule.resource else "",
                rename=rule.rename,
                name=naming.full(rule.name, DOMAIN) if rule.name else "",
                mode=rule.mode,
                one_each=rule.mode == MPS if rule.one_each is None else rule.one_each,
            )
            for n, rule in enumerate(config.sharing)
        ),
    )


class Plan(Struct, frozen=True):
    """What is offered, and what is not with the reason."""

    units: tuple[Unit, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def plan(found: Found, rules: Rules, mig: str) -> Plan:
    """Decide about every GPU and MIG device."""
    skipped: list[Skipped] = []
    every = list(_divided(found.gpus, mig, skipped))
    units: list[Unit] = []
    for target in every:
        facts = _facts(target)
        if rules.include and not selectors.any_fits(rules.include, facts):
            skipped.append(Skipped(target.uuid, "include", "no selector of include means it"))
        elif selectors.any_fits(rules.exclude, facts):
            skipped.append(Skipped(target.uuid, "exclude", "a selector of exclude means it"))
        else:
            units.append(_unit(target, facts, rules, mig))
    skipped += _warnings(rules, [_facts(target) for target in every], units, mig == "single")
    return Plan(tuple(units), tuple(skipped))


def resources(
    chosen: Plan, responses: Responses, preference: Callable[[Sequence[Unit]], Preference], empty: str = ""
) -> tuple[Resource, ...]:
    """The resources with their devices. `empty`: the name that is there even without any."""
    by_name: dict[str, list[Unit]] = {}
    for unit in chosen.units:
        by_name.setdefault(unit.name, []).append(unit)
    if not by_name and empty:
        return (Resource(empty, ()),)
    return tuple(_resource(name, units, responses, preference(units)) for name, units in sorted(by_name.items()))


def _divided(gpus: Sequence[Gpu], mig: str, skipped: list[Skipped]) -> Iterator[Target]:
    """GPUs and MIG devices as the MIG strategy divides them."""
    if mig == "none" or not any(gpu.mig for gpu in gpus):
        yield from (Target(gpu) for gpu in gpus)
        return
    only = _single_profile(gpus) if mig == "single" else ""
    for gpu in gpus:
        if not gpu.mig and mig == "mixed":
            yield Target(gpu)
        elif not gpu.mig:
            why = f"is not divided, and mig: single offers MIG devices as {GPU}: turn MIG on, or write mig: mixed"
            skipped.append(Skipped(gpu.uuid, "mig", why))
        elif not gpu.mig_devices:
            skipped.append(
                Skipped(gpu.uuid, "mig", "MIG is on and it has no MIG device: make some (nvidia-smi mig -cgi)")
            )
        for device in gpu.mig_devices:
            if only and device.profile != only:
                why = (
                    f"is {device.profile} while most are {only}, and mig: single has one name for all: write mig: mixed"
                )
                skipped.append(Skipped(device.uuid, "mig", why))
            elif gpu.mig:
                yield Target(gpu, device)


def _single_profile(gpus: Sequence[Gpu]) -> str:
    """The profile that most MIG devices have; of equals the first by name. A pod must not get now this, now that."""
    counts = Counter(device.profile for gpu in gpus for device in gpu.mig_devices)
    return min(counts, key=lambda profile: (-counts[profile], profile), default="")


def _facts(target: Target) -> Facts:
    return target.gpu.mig_facts(target.mig) if target.mig else target.gpu.facts()


def _unit(target: Target, facts: Facts, rules: Rules, mig: str) -> Unit:
    name, why = GPU, []
    if target.mig:
        why.append(f"mig: {mig}")
        if mig == "mixed":
            name = f"{DOMAIN}/{migprofile.resource(target.mig.profile)}"
    rule = naming.rule_for(rules.names, facts)
    if rule is not None:
        name = rule.name
        why.append(rule.label)
    share = sharing.chosen(rules.shares, name, facts)
    if share is not None and target.mig and share.mode == MPS:
        share = None
    if share is not None:
        name = share.offered_as(name)
        why.append(share.label)
    return Unit(target, name, facts, share, ", ".join(why))


def _warnings(rules: Rules, every: Sequence[Facts], units: Sequence[Unit], single: bool) -> Iterator[Skipped]:
    """Selectors that mean nothing here, and rules that nothing is left for, or that mean other than one may think."""
    lists = [("include", rules.include), ("exclude", rules.exclude)]
    lists += [(rule.label, rule.selectors) for rule in rules.names]
    lists += [(rule.label, rule.selectors) for rule in rules.shares]
    for label, listed in lists:
        for selector in selectors.unmatched(listed, every):
            yield Skipped(selector.text, label, f"{NOTHING_NOW}: no GPU here is meant by it")
    used = {unit.share.label for unit in units if unit.share}
    of_mig = {unit.share.label for unit in units if unit.share and unit.target.mig}
    for rule in rules.shares:
        if single and rule.label in of_mig and not rule.selectors:
            why = f"shares MIG devices, which are {GPU} with mig: single; name them in select if that is meant"
            yield Skipped(rule.resource or rule.label, rule.label, why)
    offered = {unit.name for unit in units}
    for rule in rules.shares:
        if rule.label in used or not units or selectors.unmatched(rule.selectors, every):
            continue
        what = rule.resource or rule.label
        why = (
            "earlier rules took all that it means"
            if not rule.resource or rule.resource in offered
            else "is not offered"
        )
        yield Skipped(what, rule.label, f"{NOTHING_NOW}: {why}")


def _resource(name: str, units: Sequence[Unit], responses: Responses, preference: Preference) -> Resource:
    devices = [_device(id, unit, name, responses) for unit in units for id in unit.ids]
    one_each = any(unit.share is not None and unit.share.one_each for unit in units)
    return Resource(
        name=name,
        devices=tuple(sorted(devices, key=lambda device: device.id)),
        preference=preference,
        limit=1 if one_each else 0,
        limit_text=ONE_EACH.format(name=name) if one_each else "",
    )


def _device(id: str, unit: Unit, name: str, responses: Responses) -> Device:
    target, share = unit.target, unit.share
    gpu, mig = target.gpu, target.mig
    mode = "shared" if share or mig else "exclusive"
    things = (gpu.thing, mig.thing) if mig else (gpu.thing,)
    claims = [Claim(gpu.thing, mode)] if gpu.pci else []
    if gpu.minor >= 0 and not gpu.lost:
        claims.append(Claim(f"c:195:{gpu.minor}", mode))
    if mig and share is None:
        claims.append(Claim(mig.thing))
    return Device(
        id=id,
        things=things if gpu.pci else (f"nvidia:{gpu.uuid}",),
        parts=responses.parts(target, name, mps=share is not None and share.mode == MPS),
        numa=(gpu.numa,) if gpu.numa >= 0 else (),
        attributes=_attributes(unit),
        claims=tuple(claims),
        names=responses.names(target),
    )


def _attributes(unit: Unit) -> dict[str, str]:
    target, share = unit.target, unit.share
    gpu, mig = target.gpu, target.mig
    memory = f"{mig.memory} MiB" if mig else f"{gpu.memory >> 20} MiB" if gpu.memory else ""
    found = {
        "model": gpu.name,
        "pci": gpu.pci,
        "index": target.place,
        "minor": str(gpu.minor) if gpu.minor >= 0 else "",
        "memory": memory,
        "compute": "{}.{}".format(*gpu.compute) if any(gpu.compute) else "",
        "profile": mig.profile if mig else "",
        "gpu": gpu.uuid if mig else "",
        "shared": f"{share.replicas} times, {share.mode}" if share else "",
        "rule": unit.why,
    }
    return {key: value for key, value in found.items() if value}
