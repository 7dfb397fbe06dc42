"""What others know of the generic plugin without loading it."""

from __future__ import annotations

from devherd.vendor import Manifest

from devherd_generic.config import Config
from devherd_generic.validate import validate

MANIFEST = Manifest(
    name="generic",
    title="Devices by path, glob or regular expression",
    config=Config,
    vendor="devherd_generic.vendor:make",
    wakes_on=("config",),
    validate=validate,
)
