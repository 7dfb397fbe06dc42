"""The generic vendor: scans rules, watches folders, says what is gone. Runs in the probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from devherd.host.events import EventSource, tree_events
from devherd.values import Inventory

from devherd_generic import watch
from devherd_generic.config import Config
from devherd_generic.presence import Presence
from devherd_generic.rules import compile_rules
from devherd_generic.scan import Scan

if TYPE_CHECKING:
    from devherd.host import Host


class GenericVendor:
    """Devices by rules. A scan reads names, links and device numbers; no device is opened."""

    def __init__(self, config: Config, host: Host) -> None:
        self._host = host
        self._rules, self._broken = compile_rules(config)
        self._absent = "" if config.devices else "no rules: generic.yaml has no devices"
        self._presence = Presence()

    def scan(self) -> Inventory:
        """Find every rule's devices."""
        if self._absent:
            return Inventory(absent=self._absent)
        view = self._host.view()
        scan = Scan(view)
        scan.run(self._rules)
        resources = scan.resources()
        return Inventory(
            resources=resources,
            evidence=self._presence.update(view, resources),
            skipped=(*self._broken, *scan.skipped()),
        )

    def sources(self) -> Sequence[EventSource]:
        """The folders that decide, by inotify."""
        return tree_events(lambda: watch.folders(self._host, self._rules), "dev") if self._rules else ()


def make(config: Config, host: Host) -> GenericVendor:
    """The manifest's factory."""
    return GenericVendor(config, host)
