"""CDI as a container runtime does it: names in an answer lead to devices in specification files, or to an error."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from devherd.sim.places import CreateError

Edits = dict[str, Any]


def edits(folders: Sequence[str], names: Iterable[str]) -> list[Edits]:
    """The container edits of the named devices, spec-wide ones first. Raises CreateError for names nobody defines.

    Without folders CDI is off and names are ignored without a word, as containerd before 1.7 does.
    """
    wanted = list(names)
    if not folders or not wanted:
        return []
    devices, specs = _load(folders)
    missing = [name for name in wanted if name not in devices]
    if missing:
        raise CreateError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    found: list[Edits] = []
    for name in wanted:
        common = specs[name]
        if common not in found:
            found.append(common)
        found.append(devices[name])
    return found


def _load(folders: Sequence[str]) -> tuple[dict[str, Edits], dict[str, Edits]]:
    devices: dict[str, Edits] = {}
    specs: dict[str, Edits] = {}
    for folder in folders:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            for spec in _read(os.path.join(folder, name)):
                for device in spec.get("devices") or ():
                    full = f"{spec.get('kind')}={device.get('name')}"
                    devices[full] = device.get("containerEdits") or {}
                    specs[full] = spec.get("containerEdits") or {}
    return devices, specs


def _read(path: str) -> list[dict[str, Any]]:
    """One file's specification; a broken file defines nothing, and its devices are then unresolvable."""
    try:
        with open(path, encoding="utf-8") as file:
            if path.endswith(".json"):
                spec = json.load(file)
            elif path.endswith((".yaml", ".yml")):
                spec = yaml.safe_load(file)
            else:
                return []
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [spec] if isinstance(spec, dict) else []
