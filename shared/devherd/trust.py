"""Which foreign code may run: a vendor must be allow-listed, and nobody but root may be able to change it."""

from __future__ import annotations

import importlib.util
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devherd.settings import Settings

OURS = "devherd_"
"""Prefix of the packages that this distribution ships."""


def ours(reference: str) -> bool:
    """Whether the manifest `module:attribute` is of this distribution, so that nothing has to allow it."""
    return _package(reference).startswith(OURS)


def _package(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


def refuse_vendor(plugin: str, reference: str, settings: Settings) -> str:
    """Why the manifest `module:attribute` of `plugin` must not be imported; empty: it may. Imports nothing of it."""
    if ours(reference):
        return ""
    package = _package(reference)
    if plugin not in settings.vendors:
        return f"vendor {plugin} ({reference}) is not allowed: add it to `vendors` in devherd.yaml"
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return f"vendor {plugin}: there is no module {package}; install its wheel beside devherd"
    return changeable(spec.origin) if os.geteuid() == 0 else ""


def changeable(path: str) -> str:
    """Who besides root could change what is at `path`, any folder on the way included; empty: nobody."""
    path = os.path.realpath(path)
    while True:
        try:
            status = os.stat(path)
        except OSError as error:
            return f"{path}: {error.strerror}"
        # In a sticky folder only an entry's owner can replace it, and the entry itself is checked as well.
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid != 0:
            return f"{path} belongs to user {status.st_uid}: it must belong to root"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
            return f"{path} can be written by others than root: take that right away (chmod go-w)"
        parent = os.path.dirname(path)
        if parent == path:
            return ""
        path = parent
