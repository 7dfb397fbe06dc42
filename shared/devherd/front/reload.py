"""Configuration as a front uses it: the good one, whatever the files say now."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from devherd.config import Problem, load_plugin_config, load_settings
from devherd.settings import Settings
from devherd.state import StateFile, machine_id
from devherd.vendor import Manifest


@dataclass(frozen=True)
class Configuration:
    """What a front runs with. `problems` are those of the files now; with any, the values are the last good ones."""

    path: str
    settings: Settings
    config: Any
    problems: tuple[Problem, ...]
    loaded: float

    @property
    def encoded(self) -> msgspec.Raw:
        """The plugin's configuration for the probe."""
        return msgspec.Raw(msgspec.msgpack.encode(self.config))


class ConfigurationFile:
    """Reads settings and plugin configuration, and keeps a copy of the last good pair in the state folder.

    With the copy a node whose file was broken before a reboot still registers its devices after it.
    """

    def __init__(self, path: str, manifest: Manifest) -> None:
        self._path = path
        self._manifest = manifest

    def read(self, current: Configuration | None) -> Configuration:
        """Read both files. Wrong ones leave `current` (or the saved copy, or the defaults) in force."""
        loaded = load_settings(self._path)
        settings = loaded.value if loaded.value is not None else (current.settings if current else Settings())
        plugin = load_plugin_config(settings, self._manifest)
        problems = (*loaded.problems, *plugin.problems)
        if not problems:
            return Configuration(self._path, settings, plugin.value, (), time.time())
        if current is not None:
            return replace(current, problems=problems)
        saved = self._copy(settings).load().value
        config = saved if saved is not None else self._manifest.config()
        return Configuration(self._path, settings, config, problems, time.time())

    def keep(self, configuration: Configuration) -> tuple[StateFile[Any], Any]:
        """The file and the value to save once a configuration proved good."""
        return self._copy(configuration.settings), configuration.config

    def _copy(self, settings: Settings) -> StateFile[Any]:
        path = f"{settings.paths.state}/{self._manifest.name}.config.json"
        return StateFile(path, "configuration", machine_id=machine_id(settings.paths), codec=self._manifest.config)
