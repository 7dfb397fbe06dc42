"""Which folders to watch for a set of rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from devherd.host.events import Watched

from devherd_generic import globs, tree
from devherd_generic.rules import Pattern, Rule

if TYPE_CHECKING:
    from devherd.host import Host, View


def folders(host: Host, rules: Iterable[Rule]) -> list[Watched]:
    """Every folder whose change may change the inventory; asked anew whenever folders come and go."""
    view = host.view()
    wanted: dict[Watched, None] = {}
    for rule in rules:
        for group in rule.groups:
            if group.expression:
                wanted |= dict.fromkeys(_all_of_dev(view))
            for pattern in group.patterns:
                wanted |= dict.fromkeys(_way(view, pattern.glob))
                wanted |= dict.fromkeys(_targets(view, pattern))
        for mount in rule.config.mounts:
            parent, _, name = mount.host_path.rpartition("/")
            wanted[Watched(host.path(parent or "/"), re.compile(re.escape(name)))] = None
    if host.paths.rdev_table:
        parent, name = os.path.split(host.paths.rdev_table)
        wanted[Watched(parent, re.compile(re.escape(name)), content=True)] = None
    return list(wanted)


def _all_of_dev(view: View) -> Iterator[Watched]:
    yield Watched(view.host.path("/dev"))
    for path, entry in tree.walk(view):
        if entry.type == "dir" and entry.path == path:
            yield Watched(view.host.path(path))


def _way(view: View, glob: globs.Glob) -> Iterator[Watched]:
    """The folders down a path in which a name decides: each with a glob for a child, and the last."""
    bases = [""]
    for level, component in enumerate(glob.components):
        last = level == len(glob.components) - 1
        if component.literal is not None and not last:
            bases = [f"{base}/{component.literal}" for base in bases]
            continue
        for base in bases:
            yield Watched(view.host.path(base or "/"), component.names)
        if not last:
            fits = component.names.fullmatch
            bases = [f"{base}/{name}" for base in bases for name in view.names(base or "/") if fits(name)]


def _targets(view: View, pattern: Pattern) -> Iterator[Watched]:
    """Where the matches really lie: the folders that links lead to, and folders whose nodes are handed out."""
    if pattern.mount:
        return
    try:
        found = globs.find(view, pattern.glob)
    except globs.GlobError:
        return
    links = False
    for path, entry in found:
        if entry.type == "dir":
            yield Watched(view.host.path(entry.path))
            for below, child in tree.walk(view, entry.path):
                if child.type == "dir" and child.path == below:
                    yield Watched(view.host.path(below))
        links = links or entry.path != path
    # A link may be made later, when nobody asks again; what it leads to lies nearly always in /dev itself.
    if links or not found or len(pattern.glob.components) > 2:
        yield Watched(view.host.path("/dev"))
