"""The vendor of gpu-amd. Runs in the probe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

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
    Parts,
    Preference,
    Resource,
    Skipped,
)

from devherd_gpu.amd import answers, features, health, links, naming
from devherd_gpu.amd.config import Config, Sharing
from devherd_gpu.amd.gpus import Found, Gpu, Partition, find
from devherd_gpu.amd.select import selects, unmatched

if TYPE_CHECKING:
    from devherd.host import Host

Member = tuple[str, Gpu, Partition]
"""A device id, its GPU, its partition."""
SHARED = ".shared"
ONE_EACH = "maximum request size for shared resources is 1; found {found}"
"""The words that NVIDIA's plugin made known for this."""


class AmdVendor:
    """AMD GPUs: a look at sysfs, no device is opened and no driver library loaded."""

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host
        self._checks = health.Checks(host, config.health)
        self._found = Found((), (), None)

    def scan(self) -> Inventory:
        """Find every GPU and partition."""
        found = self._found = find(self._host)
        if found.absent:
            return Inventory(absent=found.absent)
        kfd = found.kfd
        if kfd is None:
            return Inventory(skipped=found.skipped)
        parts = [(gpu, part) for gpu in found.gpus for part in gpu.partitions]
        names, unnamed = naming.names(found.gpus, self._config.naming)
        chosen, left_out = self._chosen([(gpu, part) for gpu, part in parts if gpu.address in names])
        return Inventory(
            resources=tuple(self._resources(chosen, names, kfd)),
            evidence=tuple(health.compute(found.gpus)),
            skipped=(*found.skipped, *unnamed, *left_out, *self._idle_patterns(parts)),
            files=tuple(self._files(kfd, parts)),
        )

    def check(self, devices: Sequence[Device]) -> Iterable[Evidence]:
        """What sysfs and the exporter say about the GPUs of the last scan."""
        return tuple(self._checks.check(self._found.gpus))

    def sources(self) -> Sequence[EventSource]:
        """Nodes that come and go, drivers that bind, partitions that change."""
        folder = self._host.path("/dev/dri")
        return [*tree_events(lambda: [Watched(folder)], "dev"), *udev_events(("drm", "kfd", "pci"))]

    def _chosen(self, parts: Iterable[tuple[Gpu, Partition]]) -> tuple[list[tuple[Gpu, Partition]], list[Skipped]]:
        include, exclude = self._config.include, self._config.exclude
        chosen, skipped = [], []
        for gpu, part in parts:
            if include and not selects(include, gpu, part.id):
                skipped.append(Skipped(part.id, "include", "no pattern of include means it"))
            elif selects(exclude, gpu, part.id):
                skipped.append(Skipped(part.id, "exclude", "a pattern of exclude means it"))
            else:
                chosen.append((gpu, part))
        return chosen, skipped

    def _idle_patterns(self, parts: Sequence[tuple[Gpu, Partition]]) -> Iterator[Skipped]:
        there = [(gpu, part.id) for gpu, part in parts]
        for key, patterns in self._patterns():
            for pattern in unmatched(patterns, there):
                yield Skipped(pattern, key, NOTHING_NOW)

    def _patterns(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield "include", self._config.include
        yield "exclude", self._config.exclude
        for number, rule in enumerate(self._config.sharing):
            yield f"sharing[{number}]", rule.select

    def _resources(
        self, chosen: Iterable[tuple[Gpu, Partition]], names: dict[str, str], kfd: Node
    ) -> Iterator[Resource]:
        by_name: dict[str, list[Member]] = {}
        one_each: set[str] = set()
        for gpu, part in chosen:
            rule = self._sharing(gpu, part)
            name = f"{self._config.domain}/{names[gpu.address]}{SHARED if rule and rule.rename else ''}"
            by_name.setdefault(name, []).extend((id, gpu, part) for id in _ids(part, rule))
            if rule and rule.one_each:
                one_each.add(name)
        for name, members in sorted(by_name.items()):
            yield Resource(
                name,
                tuple(self._device(member, kfd) for member in sorted(members, key=_id)),
                preference=self._preference(members),
                limit=1 if name in one_each else 0,
                limit_text=ONE_EACH if name in one_each else "",
            )

    def _sharing(self, gpu: Gpu, part: Partition) -> Sharing | None:
        rules = self._config.sharing
        return next((rule for rule in rules if not rule.select or selects(rule.select, gpu, part.id)), None)

    def _device(self, member: Member, kfd: Node) -> Device:
        id, gpu, part = member
        rule = self._sharing(gpu, part)
        split = len(gpu.partitions) > 1
        mode = "shared" if rule else "exclusive"
        things = (gpu.thing, part.thing) if split else (gpu.thing,)
        return Device(
            id=id,
            things=things,
            parts=self._parts(kfd, part),
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

    def _parts(self, kfd: Node, part: Partition) -> Parts:
        return answers.by_name(part) if self._config.strategy == "cdi" else answers.nodes(kfd, part)

    def _preference(self, members: Sequence[Member]) -> Preference:
        group = {id: gpu.thing for id, gpu, _ in members}
        if self._config.policy == "near" and len(members) <= links.LARGEST:
            return Preference(affinity=dict(links.affinity(members)), group=group)
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


def _id(member: Member) -> str:
    return member[0]


def _ids(part: Partition, rule: Sharing | None) -> list[str]:
    return [part.id] if rule is None else [f"{part.id}::{n}" for n in range(rule.replicas)]


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
