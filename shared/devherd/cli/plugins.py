"""The plugins installed here, by their light manifests."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from devherd.cli.exits import Fault
from devherd.vendor import Manifest

GROUP = "devherd.plugins"


def manifests() -> dict[str, Manifest]:
    """Plugin name -> manifest. Raises Fault when one cannot be loaded."""
    found: dict[str, Manifest] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            manifest: Any = point.load()
        except Exception as error:  # a plugin's own code
            raise Fault(f"plugin {point.name} ({point.value}) cannot be loaded: {error}") from error
        found[manifest.name] = manifest
    return found
