"""Every configuration file of a node at once: what is read, what nobody reads, what is wrong.

The caller finds the plugins, since only it knows what is installed; here files are compared with them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from devherd.config.load import load_plugin_config
from devherd.config.nearest import listing, nearest
from devherd.config.problems import Problem

if TYPE_CHECKING:
    from devherd.settings import Settings
    from devherd.vendor import Manifest

_LOOKS_MEANT = frozenset({".yml", ".yaml", ".json", ".conf", ".cfg", ".toml", ""})


class Checked(Struct, frozen=True):
    """What a look at all plugins' files gave. `ignored`: files that no plugin reads and that need not be a mistake."""

    files: tuple[str, ...]
    problems: tuple[Problem, ...]
    ignored: tuple[str, ...]


def check_plugins(settings: Settings, known: Mapping[str, Manifest]) -> Checked:
    """Read `plugins.d` as the plugins would."""
    folder = os.path.join(settings.paths.etc, "plugins.d")
    files: list[str] = []
    problems: list[Problem] = []
    ignored: list[str] = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        names = []
    except OSError as error:
        names = []
        problems.append(Problem(folder, 0, 0, "", f"cannot be read: {error.strerror}"))
    for name in names:
        path = os.path.join(folder, name)
        stem, suffix = os.path.splitext(name)
        if suffix == ".yaml" and stem in known:
            files.append(path)
            problems += load_plugin_config(settings, known[stem]).problems
        elif problem := _stray(path, name, settings, known):
            files.append(path)
            problems.append(problem)
        elif not name.startswith("."):
            ignored.append(path)
    return Checked(tuple(files), tuple(problems), tuple(ignored))


def _stray(path: str, name: str, settings: Settings, known: Mapping[str, Manifest]) -> Problem | None:
    """The problem with a file that looks meant for a plugin, and that none reads."""
    stem, suffix = os.path.splitext(name)
    plugin = stem if stem in known else nearest(stem, known)
    if name.startswith(".") or suffix.lower() not in _LOOKS_MEANT or (suffix != ".yaml" and not plugin):
        return None
    if suffix == ".yaml" and stem in settings.vendors:
        message = f"is not checked: vendor {stem} cannot be loaded here"
        return Problem(path, 0, 0, "", message, "why stands beside `vendors` of devherd.yaml")
    if suffix == ".yaml":
        hint = f"did you mean {plugin}.yaml?" if plugin else f"plugins are: {listing(tuple(known))}"
        return Problem(path, 0, 0, "", f"there is no plugin {stem!r}", f"{hint}{_vendor_hint(stem)}")
    return Problem(path, 0, 0, "", "is read by no plugin: its name is not right", f"did you mean {plugin}.yaml?")


def _vendor_hint(stem: str) -> str:
    return (
        f"; a third-party one has to be in `vendors` of devherd.yaml: vendors: [{stem}]" if stem.isidentifier() else ""
    )
