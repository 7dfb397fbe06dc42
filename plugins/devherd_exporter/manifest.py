"""What others know of the exporter: its configuration. It has no vendor, because it has no devices."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_exporter.config import Config, validate

MANIFEST = Manifest(
    name="exporter",
    title="Prometheus metrics of this node's devherd",
    config=Config,
    vendor="",
    wakes_on=("config",),
    validate=validate,
)
