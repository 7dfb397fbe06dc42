"""The generic vendor under other names: `more_generic:second` is the manifest of a program `second`.

A node with several vendors has several programs; what they serve matters less here than that there are many.
"""

from __future__ import annotations

import dataclasses

from devherd.vendor import Manifest
from devherd_generic.manifest import MANIFEST


def __getattr__(name: str) -> Manifest:
    if name.startswith("_"):
        raise AttributeError(name)
    return dataclasses.replace(MANIFEST, name=name, title=f"More devices ({name})")
