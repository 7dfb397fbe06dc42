"""Which devherd a command speaks to: a given configuration, this user's private instance, or the node's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from devherd.cli.exits import ERROR, NOT_READY, USAGE, Fault
from devherd.run.layout import RUN_SOCKET, Layout, instances_folder
from devherd.settings import Settings

NODE_CONFIG = "/etc/devherd/devherd.yaml"


@dataclass(frozen=True)
class Place:
    """A devherd: its settings, the file they came from, and the private instance's folder, if it is one."""

    settings: Settings
    config: str
    instance: Path | None = None

    @property
    def run(self) -> Path:
        """Folder of the control sockets."""
        return Path(self.settings.paths.run)

    @property
    def title(self) -> str:
        """How to name it to a person."""
        if self.instance is None:
            return f"this node ({self.config})"
        return f"private instance {self.instance.name!r} ({self.instance})"


def running_instances() -> list[Path]:
    """Folders of the private instances whose runner answers, by name."""
    folder = Path(instances_folder())
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if _answers(folder / name / "run" / RUN_SOCKET)]


def find(config: str | None, instance: str | None) -> Place:
    """Resolve `--config` and `--instance`. Raises Fault with what to do when the choice is not clear."""
    path = _of_source(config) or find_config(config, instance)
    if path == NODE_CONFIG and not config and not os.path.exists(path):
        return Place(Settings(), path)
    return Place(read_settings(path), path, _instance_of(path))


def find_config(config: str | None, instance: str | None) -> str:
    """Path of the configuration to use; NODE_CONFIG (which need not exist) where nothing else is meant."""
    if config and instance:
        raise Fault("--config and --instance exclude each other", code=USAGE)
    if config:
        return config
    if instance:
        return _named(instance)
    running = running_instances()
    if len(running) > 1:
        names = ", ".join(path.name for path in running)
        raise Fault(f"several private instances run: {names}", f"Choose one: --instance {running[0].name}", code=USAGE)
    return str(_config_of(running[0])) if running else NODE_CONFIG


def source_of(place_config: str) -> str:
    """The devherd.yaml that a foreground run was given, for the copy its instance has; empty: it has none."""
    folder = _instance_of(place_config)
    return _source(folder) if folder else ""


def _of_source(config: str | None) -> str:
    """The configuration of the running instance that was given this file; empty: none was."""
    if not config or not os.path.exists(config):
        return ""
    for folder in running_instances():
        source = _source(folder)
        if source and os.path.realpath(source) == os.path.realpath(config):
            return str(_config_of(folder))
    return ""


def _source(folder: Path) -> str:
    from devherd.control import ControlError, ask

    try:
        return str(ask(str(folder / "run" / RUN_SOCKET), {"op": "status"}, timeout=1.0).get("source") or "")
    except ControlError:
        return ""


def _named(instance: str) -> str:
    try:
        folder = Path(Layout.named(instance).folder)
    except ValueError as error:
        raise Fault(str(error), code=USAGE) from None
    found = _config_of(folder)
    if not found.exists():
        names = ", ".join(path.name for path in running_instances()) or "none"
        raise Fault(f"there is no instance {instance!r} in {instances_folder()}", f"running: {names}", code=NOT_READY)
    return str(found)


def _config_of(folder: Path) -> Path:
    return folder / "etc" / "devherd.yaml"


def read_settings(path: str) -> Settings:
    """The settings in a file. Raises Fault naming every problem in it."""
    from devherd.config import format_problems, load_settings

    if not os.path.exists(path):
        raise Fault(f"{path}: no such file", "Give the path of a devherd.yaml with --config or DEVHERD_CONFIG.")
    loaded = load_settings(path)
    if loaded.value is None:
        raise Fault(f"{path} cannot be used:\n{format_problems(loaded.problems)}", code=ERROR)
    return loaded.value


def _instance_of(config: str) -> Path | None:
    """The instance folder a configuration file belongs to, when it lies in one."""
    folder = Path(config).resolve().parent.parent
    return folder if (folder / "run" / RUN_SOCKET).exists() else None


def _answers(path: Path) -> bool:
    from devherd.control import ControlError, ask

    if not path.exists():
        return False
    try:
        ask(str(path), {"op": "ping"}, timeout=1.0)
    except ControlError:
        return False
    return True
