"""The plugins installed here, by their light manifests: our own, and third-party vendors that the settings allow."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from devherd.cli.exits import Fault
from devherd.config.nearest import nearest
from devherd.settings import Settings
from devherd.trust import refuse_vendor
from devherd.vendor import Manifest

GROUP = "devherd.plugins"
VENDORS = "devherd.vendors"
"""Entry point group in which a package of somebody else names its manifest."""


def manifests() -> dict[str, Manifest]:
    """Our own plugins, name -> manifest. Raises Fault when one cannot be loaded."""
    found: dict[str, Manifest] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            manifest: Any = point.load()
        except Exception as error:  # a plugin's own code
            raise Fault(f"plugin {point.name} ({point.value}) cannot be loaded: {error}") from error
        found[manifest.name] = manifest
    return found


def vendors_installed() -> dict[str, EntryPoint]:
    """Name -> entry point of every third-party vendor beside us, allowed or not. Runs nothing of them."""
    return {point.name: point for point in sorted(entry_points(group=VENDORS), key=lambda point: point.name)}


def vendor_manifests(settings: Settings) -> tuple[dict[str, Manifest], dict[str, str]]:
    """The vendors that `vendors` allows: name -> manifest, and name -> why there is none.

    Code of a vendor that is not listed, or that others than root could change, is never run.
    """
    installed = vendors_installed()
    found: dict[str, Manifest] = {}
    wrong: dict[str, str] = {}
    for name in dict.fromkeys(settings.vendors):
        loaded = _load(name, installed, settings)
        if isinstance(loaded, str):
            wrong[name] = loaded
        else:
            found[name] = loaded
    return found, wrong


def _load(name: str, installed: dict[str, EntryPoint], settings: Settings) -> Manifest | str:
    """A vendor's manifest, or why there is none."""
    point = installed.get(name)
    if point is None and name in entry_points(group=GROUP).names:
        return f"{name} is devherd's own and always allowed: take it out of the list"
    if point is None:
        near = nearest(name, installed)
        meant = f"did you mean {near}?" if near else "install its package into the environment of devherd"
        return f"no vendor {name} is installed, no package has it in the entry point group {VENDORS}: {meant}"
    try:
        refused = refuse_vendor(name, point.value, settings)
        if refused:
            return refused
        manifest: Any = point.load()
    except Exception as error:  # a vendor's own code
        return f"vendor {name} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
    if not isinstance(manifest, Manifest):
        return f"vendor {name}: {point.value} is no devherd.vendor.Manifest"
    if manifest.name != name:
        return f"vendor {name}: its manifest says name={manifest.name!r}; the entry point must have the same name"
    return manifest
