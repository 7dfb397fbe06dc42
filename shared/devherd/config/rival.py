"""Another plugin's configuration as users have it: a manifest of its DaemonSet, its own file, or its command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from devherd.config import yaml12
from devherd.config.problems import Problem, Report
from devherd.config.scalars import resolve

_SPLIT = re.compile(r"(?m)^---(?:[ \t].*)?$")
_LARGEST_DEPTH = 12


class Rival(Struct, frozen=True):
    """What was found. `args` without the program's name; `env` only of literal values; `files` of ConfigMaps, by name.

    A text that is no manifest is in `files` under the empty name. `image` is the container's, for people.
    """

    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    image: str = ""


class Imported(Struct, frozen=True):
    """A configuration of ours, as the plugin's schema has it, and what becomes different, one sentence each."""

    config: dict[str, Any]
    notes: tuple[str, ...] = ()


class Flags:
    """A command line in Go's manner: `-a=b`, `--a b`, `-switch`. What nobody asked for is in `left()`."""

    def __init__(self, args: Sequence[str], switches: Collection[str] = ()) -> None:
        self._values: dict[str, str] = {}
        self._asked: set[str] = set()
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word.strip("-") == "":
                self._values[word] = ""
                continue
            name, equals, value = word.lstrip("-").partition("=")
            if not equals:
                value = "true" if name in switches or not rest or rest[0].startswith("-") else rest.pop(0)
            self._values[name] = value

    def get(self, name: str, default: str = "") -> str:
        """A flag's value."""
        self._asked.add(name)
        return self._values.get(name, default)

    def has(self, name: str) -> bool:
        """Whether it was given."""
        self._asked.add(name)
        return name in self._values

    def left(self) -> list[str]:
        """Flags given that nobody asked for."""
        return [name for name in self._values if name not in self._asked]


def truth(text: str) -> bool:
    """A switch as Go reads one."""
    return text.strip().lower() in ("1", "t", "true", "yes", "on")


def read(text: str, path: str) -> tuple[Rival, tuple[Problem, ...]]:
    """A file: one or more Kubernetes objects, or anything else. Problems are those of a YAML that cannot be read."""
    found: list[Rival] = []
    problems: list[Problem] = []
    other = False
    for part in _SPLIT.split(text):
        if not part.strip():
            continue
        report = Report(path)
        node = yaml12.parse(part, report)
        value = plain(node) if node is not None else None
        if isinstance(value, dict) and "apiVersion" in value and "kind" in value:
            found += _objects(value)
        else:
            other = True
            problems += report.problems()
    if other and not found:
        return Rival(files={"": text}), tuple(problems)
    return _merged(found), ()


def plain(node: yaml12.Node) -> Any:
    """A node as dicts, lists and scalars."""
    if isinstance(node, yaml12.Mapping):
        return {pair.key.text: plain(pair.value) for pair in node.pairs}
    if isinstance(node, yaml12.Sequence):
        return [plain(item) for item in node.items]
    if isinstance(node, yaml12.Scalar):
        return resolve(node.text) if node.plain else node.text
    return None


def _objects(value: Mapping[str, Any], depth: int = 0) -> Iterator[Rival]:
    if value.get("kind") == "List" and depth < _LARGEST_DEPTH:
        for item in value.get("items") or []:
            if isinstance(item, dict):
                yield from _objects(item, depth + 1)
    elif value.get("kind") == "ConfigMap":
        yield Rival(files={str(name): str(text) for name, text in (value.get("data") or {}).items()})
    else:
        yield from _containers(value)


def _containers(value: Mapping[str, Any]) -> Iterator[Rival]:
    spec = value.get("spec") or {}
    template = spec.get("template") or {}
    pod = (template.get("spec") or {}) if template else spec
    for container in pod.get("containers") or []:
        if not isinstance(container, dict):
            continue
        words = [str(word) for word in [*(container.get("command") or []), *(container.get("args") or [])]]
        if container.get("command"):
            words = words[1:]
        env = container.get("env") or []
        literal = {str(one["name"]): str(one["value"]) for one in env if isinstance(one, dict) and "value" in one}
        yield Rival(tuple(words), literal, image=str(container.get("image") or ""))


def _merged(found: Sequence[Rival]) -> Rival:
    """Several objects as one: a DaemonSet's plugin container is the first that has arguments or variables."""
    speaking = next((one for one in found if one.image and (one.args or one.env)), None)
    image = next((one for one in found if one.image), Rival())
    chosen = speaking or image
    files = {name: text for one in found for name, text in one.files.items()}
    return Rival(chosen.args, chosen.env, files, chosen.image)
