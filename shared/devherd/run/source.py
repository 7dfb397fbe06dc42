"""Follows the devherd.yaml that a foreground run was given: what is edited there reaches the instance's own copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from devherd.config import format_problems, load_settings

if TYPE_CHECKING:
    from devherd.run.instance import Instance
    from devherd.settings import Settings

PRIVATE = ("run", "state", "log", "cache")
"""Paths that a foreground run keeps in its own folder, whatever the configuration says."""


def sections(settings: Settings) -> dict[str, Any]:
    """Settings as an instance is given them: all but the paths that are its own."""
    raw: dict[str, Any] = msgspec.to_builtins(settings)
    raw["paths"] = {key: value for key, value in raw["paths"].items() if key not in PRIVATE}
    return raw


class Source:
    """One file, looked at now and then: its content counts when a program is told to read it (SIGHUP)."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._seen = self._stamp()

    def follow(self) -> str:
        """Take over an edit. Returns what to tell a person, empty when nothing changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return ""
        self._seen = stamp
        path = self._instance.wish.source
        if stamp is None:
            return f"{path} is gone; the settings stay as they are"
        loaded = load_settings(path)
        if loaded.value is None:
            return f"{path} cannot be used, the settings stay as they are:\n{format_problems(loaded.problems)}"
        self._instance.write_settings(sections(loaded.value))
        return f"{path} has changed; SIGHUP makes a program read it"

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._instance.wish.source)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
