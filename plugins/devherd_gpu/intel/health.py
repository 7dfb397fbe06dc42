"""Evidence about Intel GPUs: wedged, too hot, or not well by the Level Zero sidecar."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from devherd.host import Host
from devherd.host.sysfs import Sysfs
from devherd.values import Clears, Evidence, Severity

from devherd_gpu.intel import levelzero
from devherd_gpu.intel.cards import Card
from devherd_gpu.intel.config import Health

_TEMPERATURE = re.compile(r"(temp\d+)_input")


class Checks:
    """Looks at cards again and again."""

    def __init__(self, host: Host, config: Health) -> None:
        self._host = host
        self._sysfs = Sysfs(host)
        self._config = config

    def check(self, cards: Iterable[Card], wedged: Mapping[str, str]) -> Iterator[Evidence]:
        """One round. `wedged` maps the address of a GPU its driver gave up to the recovery the driver names."""
        for card in cards:
            yield self._wedged(card, wedged.get(card.address, ""))
            if self._sysfs.text(f"{card.folder}/power/runtime_status") != "suspended":
                yield self._heat(card)
            yield from self._level_zero(card)

    def _wedged(self, card: Card, recovery: str) -> Evidence:
        reason = f"{card.driver} declared it wedged; recovery: {recovery}"
        # Only the driver's next binding ends it, which the source of this evidence sees.
        return Evidence(card.thing, "wedged", bool(recovery), reason, clears=Clears.PROBE)

    def _heat(self, card: Card) -> Evidence:
        hot: list[str] = []
        for place in self._sysfs.names(f"{card.folder}/hwmon"):
            for name in self._sysfs.names(f"{card.folder}/hwmon/{place}"):
                if match := _TEMPERATURE.fullmatch(name):
                    hot += self._sensor(f"{card.folder}/hwmon/{place}/{match[1]}")
        return Evidence(card.thing, "heat", bool(hot), "; ".join(hot), Severity.SOFT)

    def _sensor(self, sensor: str) -> list[str]:
        """Millidegrees (Documentation/hwmon/sysfs-interface.rst)."""
        now = self._sysfs.integer(f"{sensor}_input")
        limit = self._config.temperature_max * 1000 or self._sysfs.integer(f"{sensor}_crit")
        if now is None or not limit or now < limit:
            return []
        label = self._sysfs.text(f"{sensor}_label") or sensor.rpartition("/")[2]
        return [f"{label} {now // 1000} °C, limit {limit // 1000} °C"]

    def _level_zero(self, card: Card) -> Iterator[Evidence]:
        place = self._host.path(self._config.level_zero) if self._config.level_zero else ""
        parts = levelzero.bad_parts(place, card.address)
        if parts is not None:
            yield Evidence(card.thing, "level-zero", bool(parts), f"Level Zero: {', '.join(parts)} not well")
        found = levelzero.temperatures(place, card.address)
        if found is not None and self._config.temperature_max:
            hot = [f"{name} {value:.0f} °C" for name, value in found.items() if value >= self._config.temperature_max]
            yield Evidence(card.thing, "level-zero-heat", bool(hot), "; ".join(hot), Severity.SOFT)
