"""Renders an instance's configuration from the files a package installs: the same programs, other paths."""

from __future__ import annotations

import configparser
import json
import os
import re
import resource
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import devherd
from devherd import launcher
from devherd.run.layout import Layout

INTERPRETER = "/usr/lib/devherd/bin/python"
PRODUCTION = ("/etc/devherd", "/run/devherd", "/var/lib/devherd", "/var/log/devherd", "/var/cache/devherd")
_PRODUCTION = re.compile("(?:" + "|".join(PRODUCTION) + r")(?![\w.-])")
_NOT_OURS = ("--oom", "--nice")
"""Launcher options that a private instance leaves out: it must not be worth more than its user's other programs."""


class MissingFiles(Exception):
    """The configuration files devherd comes with are not where they should be."""


def shipped() -> Path:
    """The folder with supervisord.conf and conf.d/: beside the code when installed, else in the source tree."""
    package = Path(devherd.__file__).parent
    for folder in (package / "supervisorconf", package.parent.parent / "supervisorconf"):
        if (folder / "supervisord.conf").is_file():
            return folder
    raise MissingFiles(f"no supervisorconf beside {package}; the installation is incomplete")


def programs() -> list[str]:
    """Names of all programs devherd comes with."""
    return sorted(path.stem for path in (shipped() / "conf.d").glob("*.conf"))


def replacements(layout: Layout) -> dict[str, str]:
    """Production path -> the instance's."""
    return dict(zip(PRODUCTION, (layout.etc, layout.run, layout.state, layout.log, layout.cache), strict=True))


def render(layout: Layout, names: Sequence[str] | None = None, own: str = "") -> None:
    """Write supervisord's configuration and that of the programs `names` (default: all).

    `own` is the supervisord.d of a configuration: a file there stands for ours of that name, others are added.
    """
    folder = shipped()
    _write(layout.supervisor_config, _rendered(folder / "supervisord.conf", layout))
    for name in _useful(layout) if names is None else names:
        source = folder / "conf.d" / f"{name}.conf"
        if not source.is_file():
            raise MissingFiles(f"there is no program {name!r}; there are {', '.join(programs())}")
        _write(layout.at("etc", "supervisord.d", f"{name}.conf"), _rendered(source, layout))
    for source in sorted(Path(own).glob("*.conf")) if own else ():
        _write(layout.at("etc", "supervisord.d", source.name), _rendered(source, layout))


def _useful(layout: Layout) -> list[str]:
    """All programs; on a simulated node, where hardware is what its file says, those that it has something for."""
    if not os.path.isdir(os.path.join(layout.node, "sys")):
        return programs()
    return [name for name in programs() if _serves(_rendered(shipped() / "conf.d" / f"{name}.conf", layout))]


def _serves(parser: configparser.RawConfigParser) -> bool:
    section = next(iter(parser.sections()))
    words = shlex.split(parser.get(section, "command"))
    if "--hardware" not in words:
        return True
    options = launcher.parse(words[words.index("--name") :])
    return launcher.has_hardware(options)


def _rendered(source: Path, layout: Layout) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=(";",))
    parser.read(source, encoding="utf-8")
    for section in parser.sections():
        for key, value in parser.items(section):
            parser.set(section, key, _command(value, layout) if key == "command" else _moved(value, layout))
        if section == "supervisord":
            # Only root can change user, and who is root already need not.
            parser.remove_option(section, "user")
    return parser


def _moved(value: str, layout: Layout) -> str:
    private = replacements(layout)
    # In one pass: an instance's own path may contain a production path. supervisord expands % in values.
    return _PRODUCTION.sub(lambda found: private[found[0]].replace("%", "%%"), value)


def _command(value: str, layout: Layout) -> str:
    words = [sys.executable if word == INTERPRETER else word for word in shlex.split(value)]
    kept: list[str] = []
    while words:
        word = words.pop(0)
        if word in _NOT_OURS or (word == "-X" and words and words[0].startswith("pycache_prefix=")):
            # Compiled code stays where this interpreter has it, or each instance would compile everything anew.
            words.pop(0)
            continue
        kept.append(word)
        if word == "--sys" and words:
            kept.append(_sysfs(words.pop(0), layout))
        elif word == "--nofile" and words:
            kept.append(_allowed(words.pop(0)))
    return " ".join(_quoted(word, layout) for word in kept)


def _sysfs(real: str, layout: Layout) -> str:
    """The simulated node's sysfs, where the instance has such a node."""
    simulated = os.path.join(layout.node, "sys")
    return simulated if os.path.isdir(simulated) else real


def _allowed(wanted: str) -> str:
    """As many open files as this user may have; more would only be complained about at each start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if hard == resource.RLIM_INFINITY else str(min(int(wanted), hard))


def _quoted(word: str, layout: Layout) -> str:
    moved = _moved(word, layout)
    return shlex.quote(moved if word != sys.executable else word.replace("%", "%%"))


def _write(path: str, parser: configparser.RawConfigParser) -> None:
    with open(path, "w", encoding="utf-8") as file:
        parser.write(file)


def write_settings(layout: Layout, settings: Mapping[str, Any]) -> None:
    """Write devherd.yaml. JSON values are YAML 1.2; one key a line, so that people can read and change it."""
    with open(layout.config, "w", encoding="utf-8") as file:
        file.write(_yaml(settings))


def _yaml(value: Mapping[str, Any], indent: str = "") -> str:
    lines = []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            lines.append(f"{indent}{key}:\n{_yaml(item, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(item, ensure_ascii=False)}\n")
    return "".join(lines)


def write_plugin_config(layout: Layout, name: str, text: str) -> None:
    """Write `plugins.d/<name>.yaml`."""
    with open(os.path.join(layout.etc, "plugins.d", f"{name}.yaml"), "w", encoding="utf-8") as file:
        file.write(text)
