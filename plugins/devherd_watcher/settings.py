"""The few settings the watcher needs, read by a short-lived child, so that the watcher itself never grows by the
YAML and schema code it uses for milliseconds in months.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NamedTuple

from devherd_watcher import memory
from devherd_watcher.memory import Memory


class LogSettings(NamedTuple):
    """As `devherd.settings.Log`."""

    level: str
    format: str


class Rules(NamedTuple):
    """As `devherd.settings.Watcher`."""

    escalate: bool = True
    confirm: float = 1.0
    ping: float = 15.0
    silent: float = 60.0
    hold_first: float = 5.0
    hold_max: float = 300.0
    stable: float = 120.0


class Settings(NamedTuple):
    """What the watcher needs of devherd.yaml, and this boot's id."""

    device_plugins: str
    run: str
    log: LogSettings
    etc: str
    state: str
    log_folder: str
    boot: str
    rules: Rules


class Wrong(Exception):
    """The configuration cannot be used; the text lists every problem."""


class Read(NamedTuple):
    """The settings, what an earlier watcher knew, and what is wrong with that."""

    settings: Settings
    memory: Memory
    problem: str


def read(path: str) -> Read:
    """Read devherd.yaml and the watcher's memory. Raises Wrong."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            with open(writing, "w", encoding="utf-8") as file:
                json.dump(load(path), file)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(pid, 0)
    answer = json.loads(text) if text else {"problems": f"{path}: reading it failed"}
    return decode(answer)


def decode(answer: dict[str, Any]) -> Read:
    """What `load` gave. Raises Wrong."""
    if "problems" in answer:
        raise Wrong(answer["problems"])
    places = {key: answer[key] for key in ("device_plugins", "run", "etc", "state", "log_folder", "boot")}
    settings = Settings(log=LogSettings(*answer["log"]), rules=Rules(*answer["rules"]), **places)
    return Read(settings, memory.decode(answer["memory"]), answer["problem"])


def load(path: str) -> dict[str, Any]:
    """All of it as plain data; `problems` in place of it when the file is wrong. For a child: it needs much code."""
    from devherd.config import format_problems, load_settings
    from devherd.state import boot_id

    try:
        loaded = load_settings(path)
    except Exception as error:
        sys.excepthook(*sys.exc_info())
        return {"problems": f"{path}: {type(error).__name__}: {error}"}
    settings = loaded.value
    if settings is None:
        return {"problems": format_problems(loaded.problems)}
    paths, rules = settings.paths, settings.watcher
    boot = boot_id(paths)
    saved, problem = memory.load(os.path.join(paths.state, memory.FILE), boot)
    return {
        "device_plugins": paths.device_plugins,
        "run": paths.run,
        "etc": paths.etc,
        "state": paths.state,
        "log_folder": paths.log,
        "boot": boot,
        "log": [settings.log.level, settings.log.format],
        "rules": [getattr(rules, name) for name in Rules._fields],
        "memory": saved._asdict(),
        "problem": problem,
    }
