"""JSON Schema of the configuration files, for editors and for whoever generates them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from devherd.settings import Settings

if TYPE_CHECKING:
    from devherd.vendor import Manifest

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The schema of `devherd.yaml`."""
    return _schema(Settings, "devherd.yaml")


def plugin_schema(manifest: Manifest) -> dict[str, Any]:
    """The schema of a plugin's `plugins.d/<name>.yaml`."""
    return _schema(manifest.config, f"plugins.d/{manifest.name}.yaml")


def installed_manifests(distribution: str = "") -> dict[str, Manifest]:
    """Plugin name -> manifest of every installed plugin, or of one distribution's.

    Raises ImportError or AttributeError, naming the plugin, when one cannot be loaded.
    """
    from importlib.metadata import entry_points

    found: dict[str, Manifest] = {}
    for point in sorted(entry_points(group="devherd.plugins"), key=lambda point: point.name):
        if not distribution or (point.dist is not None and point.dist.name == distribution):
            manifest: Manifest = point.load()
            found[manifest.name] = manifest
    return found


def _schema(kind: type[Any], title: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"$schema": DIALECT, "title": title, **msgspec.json.schema(kind)}
    schema = msgspec.json.decode(msgspec.json.encode(schema))  # defaults may be tuples or enum members
    for part in _parts(schema):
        # The decoder refuses unknown keys everywhere, whatever the struct itself says.
        if part.get("type") == "object" and "properties" in part:
            part["additionalProperties"] = False
    return schema


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a schema."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _parts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _parts(value)
