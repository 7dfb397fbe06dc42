"""The vendor of gpu-intel. Runs in the probe."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from devherd.host.events import EventSource, Watched, tree_events, udev_events
from devherd.host.nfd import feature_file
from devherd.values import NOTHING_NOW, Claim, Device, Evidence, HostFile, Inventory, Preference, Resource, Skipped

from devherd_gpu.common import wedged
from devherd_gpu.common.naming import NameRule, full
from devherd_gpu.common.naming import chosen as name_of
from devherd_gpu.common.selectors import Facts, any_fits, parse_all, unmatched
from devherd_gpu.intel import answers, features
from devherd_gpu.intel.cards import Card, Found, facts, find
from devherd_gpu.intel.config import Config
from devherd_gpu.intel.health import Checks

if TYPE_CHECKING:
    from devherd.host import Host

logger = logging.getLogger(__name__)
MONITORING = "monitoring"
ALL = "all"


class IntelVendor:
    """Intel GPUs: a look at sysfs, no device is opened."""

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host
        self._checks = Checks(host, config.health)
        self._found = Found((), ())
        self._wedged: wedged.WedgedEvents | None = None
        self._include, self._exclude = parse_all(config.include), parse_all(config.exclude)
        self._names = tuple(
            NameRule(f"resources[{n}]", parse_all(rule.select), full(rule.name, config.domain))
            for n, rule in enumerate(config.resources)
        )

    def scan(self) -> Inventory:
        """Find every card."""
        found = self._found = find(self._host)
        if found.absent:
            return Inventory(absent=found.absent)
        known = [(card, facts(card, index)) for index, card in enumerate(found.cards)]
        chosen, left_out = self._chosen(known)
        cards = [card for card, _ in chosen]
        return Inventory(
            resources=(*self._resources(chosen), *self._monitors(cards)),
            skipped=(*found.skipped, *left_out, *self._idle(known)),
            files=tuple(self._files(found.cards)),
        )

    def check(self, devices: Sequence[Device]) -> Iterable[Evidence]:
        """What the driver, the sensors and the sidecar say about the cards of the last scan."""
        given_up = self._wedged.wedged if self._wedged is not None else {}
        return tuple(self._checks.check(self._found.cards, given_up))

    def sources(self) -> Sequence[EventSource]:
        """Nodes that come and go, drivers that bind, and cards that their driver gives up."""
        folder = self._host.path("/dev/dri")
        found: list[EventSource] = [*tree_events(lambda: [Watched(folder)], "dev"), *udev_events(("drm", "pci"))]
        try:
            self._wedged = wedged.listen()
        except (OSError, ImportError) as error:
            logger.info("no events here (%s): a card that its driver gives up is not noticed", error)
            return found
        return [*found, self._wedged]

    def _chosen(self, known: Sequence[tuple[Card, Facts]]) -> tuple[list[tuple[Card, Facts]], list[Skipped]]:
        config = self._config
        allow, deny = ({text[2:].lower() for text in texts} for texts in (config.allow, config.deny))
        chosen, skipped = [], []
        for card, each in known:
            if (allow and card.device_id not in allow) or card.device_id in deny:
                rule = "allow" if allow else "deny"
                skipped.append(Skipped(card.name, rule, f"its device id is 0x{card.device_id}"))
            elif self._include and not any_fits(self._include, each):
                skipped.append(Skipped(card.name, "include", "no selector of include means it"))
            elif any_fits(self._exclude, each):
                skipped.append(Skipped(card.name, "exclude", "a selector of exclude means it"))
            else:
                chosen.append((card, each))
        return chosen, skipped

    def _idle(self, known: Sequence[tuple[Card, Facts]]) -> Iterator[Skipped]:
        every = [each for _, each in known]
        groups = [("include", self._include), ("exclude", self._exclude)]
        groups += [(rule.label, rule.selectors) for rule in self._names]
        for label, chosen in groups:
            yield from (Skipped(selector.text, label, NOTHING_NOW) for selector in unmatched(chosen, every))

    def _resources(self, chosen: Sequence[tuple[Card, Facts]]) -> Iterator[Resource]:
        by_name: dict[str, list[Card]] = {}
        for card, each in chosen:
            usual = full(card.driver, self._config.domain)
            by_name.setdefault(name_of(self._names, each, usual), []).append(card)
        for name, cards in sorted(by_name.items()):
            devices = [self._device(card, n) for card in cards for n in range(self._config.shared)]
            yield Resource(name, tuple(devices), preference=self._preference(cards))

    def _device(self, card: Card, n: int) -> Device:
        # A monitor sees every card beside whoever has it.
        mode = "shared" if self._config.shared > 1 or self._config.monitoring != "off" else "exclusive"
        things = (card.thing, *(node.thing for node in card.nodes))
        return Device(
            id=f"{card.name}-{n}",
            things=(card.thing,),
            parts=answers.answer(card, self._config.by_path, self._config.cdi),
            numa=(card.numa,) if card.numa >= 0 else (),
            attributes={"address": card.address, "device": card.device_id, "driver": card.driver},
            claims=tuple(Claim(thing, mode) for thing in things),
            names=(answers.cdi_name(card),) if self._config.cdi else (),
        )

    def _preference(self, cards: Iterable[Card]) -> Preference | None:
        """None: one share of a card each, so that the kubelet's own choice is as good."""
        if self._config.shared == 1:
            return None
        group = {f"{card.name}-{n}": card.thing for card in cards for n in range(self._config.shared)}
        return Preference(policy="packed" if self._config.policy == "packed" else "spread", group=group)

    def _monitors(self, cards: Sequence[Card]) -> Iterator[Resource]:
        if self._config.monitoring == "single" and cards:
            yield self._monitor(MONITORING, cards)
        if self._config.monitoring == "split":
            for driver in sorted({card.driver for card in cards}):
                yield self._monitor(f"{driver}_{MONITORING}", [card for card in cards if card.driver == driver])

    def _monitor(self, name: str, cards: Sequence[Card]) -> Resource:
        device = Device(id=ALL, things=(), parts=answers.everything(cards), attributes={"cards": str(len(cards))})
        return Resource(full(name, self._config.domain), (device,))

    def _files(self, cards: Sequence[Card]) -> Iterator[HostFile]:
        if self._config.cdi:
            yield from (answers.specification(self._host.paths, card, self._config.by_path) for card in cards)
        if self._config.features:
            yield feature_file(self._host.paths, "devherd-gpu-intel", features.labels(cards), time.time())


def make(config: Config, host: Host) -> IntelVendor:
    """The manifest's factory."""
    return IntelVendor(config, host)
