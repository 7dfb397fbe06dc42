"""Hardware that a plugin knows how to simulate: a tree from a few options, changed while the node runs.

A fault is other options: a GPU is lost when it is among `lost`. The tree is made anew, and only what differs is written
so that whoever watches the files sees what happened, and nothing else.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from devherd.config.schema import installed_manifests
from devherd.host.tree import Tree
from devherd.sim.files import NodeFiles
from devherd.vendor import Simulated, load_object


class HardwareError(Exception):
    """No such hardware, or not these options; the text says what there is."""


class Hardware(Struct, frozen=True, forbid_unknown_fields=True):
    """What a plugin simulates on a node."""

    plugin: Annotated[str, Meta(description="the plugin that knows this hardware")]
    options: Annotated[
        dict[str, Any], Meta(description="how many, of what kind, in what state; the plugin's words")
    ] = {}


class Planted:
    """The hardware of one node, as it is on disk."""

    def __init__(self, files: NodeFiles, hardware: tuple[Hardware, ...]) -> None:
        self._files = files
        self._hardware = {each.plugin: dict(each.options) for each in hardware}
        self._trees = {plugin: tree_of(plugin, options) for plugin, options in self._hardware.items()}

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """With the options as they are now."""
        return tuple(Hardware(plugin, options) for plugin, options in self._hardware.items())

    def rows(self) -> list[str]:
        """Lines of the rdev table."""
        return [
            f"{path} {number.kind} {number.major} {number.minor}"
            for tree in self._trees.values()
            for path, number in tree.nodes.items()
        ]

    def plant(self) -> None:
        """Write all of it."""
        for tree in self._trees.values():
            self._files.plant(tree)

    def alter(self, plugin: str, changes: dict[str, Any]) -> None:
        """Other options. Raises HardwareError, with nothing changed. The rdev table is the caller's."""
        if plugin not in self._hardware:
            there = ", ".join(self._hardware) or "none"
            raise HardwareError(f"this node has no hardware of {plugin}; it has that of: {there}")
        options = {**self._hardware[plugin], **changes}
        tree = tree_of(plugin, options)
        _apply(self._files, self._trees[plugin], tree)
        self._hardware[plugin], self._trees[plugin] = options, tree


def tree_of(plugin: str, options: dict[str, Any]) -> Tree:
    """The tree of a plugin's hardware. Raises HardwareError."""
    manifests = {name: one for name, one in installed_manifests().items() if one.simulator}
    if plugin not in manifests:
        raise HardwareError(f"{plugin} simulates no hardware; these do: {', '.join(sorted(manifests))}")
    simulated: Simulated = load_object(manifests[plugin].simulator)
    try:
        return simulated.tree(msgspec.convert(options, simulated.options, str_keys=True))
    except msgspec.ValidationError as error:
        known = ", ".join(simulated.options.__struct_fields__)
        raise HardwareError(f"{plugin}: {error}; options are {known}") from None
    except ValueError as error:
        raise HardwareError(f"{plugin}: {error}") from None


def _apply(files: NodeFiles, before: Tree, after: Tree) -> None:
    """From one tree to another: what is new or other is written, what is gone is removed, empty folders with it."""
    gone = {*before.files, *before.links, *before.nodes} - {*after.files, *after.links, *after.nodes}
    # Nodes and links first: nothing may lead to a place that is half gone.
    for path in sorted(gone, key=lambda path: (path not in before.nodes, path not in before.links, path)):
        files.remove(path)
    for folder in sorted({os.path.dirname(path) for path in gone} | (before.folders - after.folders), key=len)[::-1]:
        _prune(files, folder)
    files.plant(
        Tree(
            files={path: text for path, text in after.files.items() if before.files.get(path) != text},
            links={path: to for path, to in after.links.items() if before.links.get(path) != to},
            nodes={path: number for path, number in after.nodes.items() if path not in before.nodes},
            folders=after.folders - before.folders,
        )
    )


def _prune(files: NodeFiles, folder: str) -> None:
    """Remove a folder and its parents as far as they are empty, within /dev and /sys."""
    while folder.count("/") > 2:
        try:
            os.rmdir(files.real(folder))
        except OSError:
            return
        folder = os.path.dirname(folder)
