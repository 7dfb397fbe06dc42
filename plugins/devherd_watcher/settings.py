"""The few settings the watcher needs, read by a short-lived child, so that the watcher itself never grows by the
YAML and schema code it uses for milliseconds in months.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple


class LogSettings(NamedTuple):
    """As `devherd.settings.Log`."""

    level: str
    format: str


class Settings(NamedTuple):
    """What the watcher needs of devherd.yaml."""

    device_plugins: str
    run: str
    log: LogSettings


class Wrong(Exception):
    """The configuration cannot be used; the text lists every problem."""


def read_settings(path: str) -> Settings:
    """Read devherd.yaml. Raises Wrong."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            with open(writing, "w", encoding="utf-8") as file:
                json.dump(_load(path), file)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(pid, 0)
    answer = json.loads(text) if text else {"problems": f"{path}: reading it failed"}
    if "problems" in answer:
        raise Wrong(answer["problems"])
    return Settings(answer["device_plugins"], answer["run"], LogSettings(*answer["log"]))


def _load(path: str) -> dict[str, object]:
    from devherd.config import format_problems, load_settings

    try:
        loaded = load_settings(path)
    except Exception as error:
        sys.excepthook(*sys.exc_info())
        return {"problems": f"{path}: {type(error).__name__}: {error}"}
    settings = loaded.value
    if settings is None:
        return {"problems": format_problems(loaded.problems)}
    log = [settings.log.level, settings.log.format]
    return {"device_plugins": settings.paths.device_plugins, "run": settings.paths.run, "log": log}
