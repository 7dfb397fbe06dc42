"""The vendor of gpu-amd. Runs in the probe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from devherd.host.events import EventSource, Watched, tree_events, udev_events
from devherd.host.nfd import feature_file
from devherd.values import (
    NOTHING_NOW,
    Claim,
    Device,
    Evidence,
    HostFile,
    Inventory,
    Node,
    Preference,
    Resource,
    Skipped,
)

from devherd_gpu.amd import answers, features, health, links, naming
from devherd_gpu.amd.config import Config
from devherd_gpu.amd.gpus import Found, Gpu, Partition, facts, find
from devherd_gpu.common.naming import NameRule, full
from devherd_gpu.common.naming import chosen as name_of
from devherd_gpu.common.selectors import Facts, any_fits, parse_all, unmatched
from devherd_gpu.common.sharing import ShareRule, ids
from devherd_gpu.common.sharing import chosen as share_of

if TYPE_CHECKING:
    from devherd.host import Host

ONE_EACH = "maximum request size for shared resources is 1; found {found}"
"""The words that NVIDIA's plugin made known for this."""


class Offer(NamedTuple):
    """A partition that is offered: its GPU, what it may be selected by, its resource's full name, how it is shared."""

    gpu: Gpu
    part: Partition
    facts: Facts
    resource: str
    rule: ShareRule | None

    @property
    def ids(self) -> list[str]:
        """Its device ids."""
        return ids(self.part.id, self.rule.replicas) if self.rule else [self.part.id]


class AmdVendor:
    """AMD GPUs: a look at sysfs, no device is opened and no driver library loaded."""

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host
        self._checks = health.Checks(host, config.health)
        self._found = Found((), (), None)
        self._include, self._exclude = parse_all(config.include), parse_all(config.exclude)
        self._names = tuple(
            NameRule(f"resources[{n}]", parse_all(rule.select), full(rule.name, config.domain))
            for n, rule in enumerate(config.resources)
        )
        self._shares = tuple(
            ShareRule(
                f"sharing[{n}]",
                parse_all(rule.select),
                rule.replicas,
                rename=rule.rename,
                one_each=rule.one_each,
            )
            for n, rule in enumerate(config.sharing)
        )

    def scan(self) -> Inventory:
        """Find every GPU and partition."""
        found = self._found = find(self._host)
        if found.absent:
            return Inventory(absent=found.absent)
        kfd = found.kfd
        if kfd is None:
            return Inventory(skipped=found.skipped)
        parts = [
            (gpu, part, facts(gpu, part, index)) for index, gpu in enumerate(found.gpus) for part in gpu.partitions
        ]
        offers, left_out = self._offers(parts)
        return Inventory(
            resources=tuple(self._resources(offers, kfd)),
            evidence=tuple(health.compute(found.gpus)),
            skipped=(*found.skipped, *left_out, *self._idle([each for _, _, each in parts])),
            files=tuple(self._files(kfd, [(gpu, part) for gpu, part, _ in parts])),
        )

    def check(self, devices: Sequence[Device]) -> Iterable[Evidence]:
        """What sysfs and the exporter say about the GPUs of the last scan."""
        return tuple(self._checks.check(self._found.gpus))

    def sources(self) -> Sequence[EventSource]:
        """Nodes that come and go, drivers that bind, partitions that change."""
        folder = self._host.path("/dev/dri")
        return [*tree_events(lambda: [Watched(folder)], "dev"), *udev_events(("drm", "kfd", "pci"))]

    def _offers(self, parts: Sequence[tuple[Gpu, Partition, Facts]]) -> tuple[list[Offer], list[Skipped]]:
        names, skipped = naming.names(self._found.gpus, self._config.naming)
        offers = []
        for gpu, part, known in parts:
            if self._include and not any_fits(self._include, known):
                skipped.append(Skipped(part.id, "include", "no selector of include means it"))
            elif any_fits(self._exclude, known):
                skipped.append(Skipped(part.id, "exclude", "a selector of exclude means it"))
            elif gpu.address in names:
                usual = full(names[gpu.address], self._config.domain)
                offers.append(self._offer(gpu, part, known, name_of(self._names, known, usual)))
        return offers, skipped

    def _offer(self, gpu: Gpu, part: Partition, known: Facts, resource: str) -> Offer:
        rule = share_of(self._shares, resource, known)
        return Offer(gpu, part, known, rule.offered_as(resource) if rule else resource, rule)

    def _idle(self, every: Sequence[Facts]) -> Iterator[Skipped]:
        """Selectors that mean nothing now."""
        groups = [("include", self._include), ("exclude", self._exclude)]
        groups += [(rule.label, rule.selectors) for rule in self._names]
        groups += [(rule.label, rule.selectors) for rule in self._shares]
        for label, chosen in groups:
            yield from (Skipped(selector.text, label, NOTHING_NOW) for selector in unmatched(chosen, every))

    def _resources(self, offers: Sequence[Offer], kfd: Node) -> Iterator[Resource]:
        for name in sorted({offer.resource for offer in offers}):
            members = sorted((id, offer) for offer in offers if offer.resource == name for id in offer.ids)
            limited = any(offer.rule is not None and offer.rule.one_each for _, offer in members)
            yield Resource(
                name,
                tuple(self._device(id, offer, kfd) for id, offer in members),
                preference=self._preference(members),
                limit=1 if limited else 0,
                limit_text=ONE_EACH if limited else "",
            )

    def _device(self, id: str, offer: Offer, kfd: Node) -> Device:
        gpu, part = offer.gpu, offer.part
        split = len(gpu.partitions) > 1
        mode = "shared" if offer.rule else "exclusive"
        return Device(
            id=id,
            things=(gpu.thing, part.thing) if split else (gpu.thing,),
            parts=answers.by_name(part) if self._config.strategy == "cdi" else answers.nodes(kfd, part),
            numa=(gpu.numa,) if gpu.numa >= 0 else (),
            attributes=_attributes(gpu, part),
            # Partitions divide the GPU among themselves; each render node is its own.
            claims=(
                Claim(gpu.thing, "shared" if split else mode),
                Claim(part.card.thing, mode),
                Claim(part.render.thing, mode),
            ),
            names=(answers.cdi_name(part),) if self._has_spec else (),
        )

    def _preference(self, members: Sequence[tuple[str, Offer]]) -> Preference:
        group = {id: offer.gpu.thing for id, offer in members}
        if self._config.policy == "near" and len(members) <= links.LARGEST:
            weighed = links.affinity([(id, offer.gpu, offer.part) for id, offer in members])
            return Preference(affinity=dict(weighed), group=group)
        return Preference(policy="spread" if self._config.policy == "spread" else "packed", group=group)

    @property
    def _has_spec(self) -> bool:
        return self._config.strategy == "cdi" or self._config.cdi_spec

    def _files(self, kfd: Node, parts: Sequence[tuple[Gpu, Partition]]) -> Iterator[HostFile]:
        if self._has_spec:
            yield answers.specification(self._host.paths, kfd, parts)
        if self._config.features:
            labels = features.labels(self._host, self._found.gpus)
            yield feature_file(self._host.paths, "devherd-gpu-amd", labels, time.time())


def _attributes(gpu: Gpu, part: Partition) -> dict[str, str]:
    found = {
        "product": gpu.product,
        "device": gpu.device_id,
        "address": gpu.address,
        "partition": gpu.style,
        "memory": f"{gpu.vram >> 20} MiB" if gpu.vram else "",
        "units": str(part.kfd.cu_count) if part.kfd and part.kfd.cu_count else "",
    }
    return {name: value for name, value in found.items() if value}


def make(config: Config, host: Host) -> AmdVendor:
    """The manifest's factory."""
    return AmdVendor(config, host)
