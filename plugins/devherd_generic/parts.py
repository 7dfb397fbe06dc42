"""From what a path led to, to what a container gets for it; or why it gets nothing."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from devherd.values import Mount, Node

from devherd_generic import dangerous, tree
from devherd_generic.rules import Rule

if TYPE_CHECKING:
    from devherd.host import Entry, Host, View

_NAMES = {"dir": "a folder", "file": "a plain file", "socket": "a socket", "fifo": "a pipe"}
FOLDER_AT_MOST = 256


class Piece(NamedTuple):
    """One path's share of a unit, or the problem with it."""

    nodes: tuple[Node, ...] = ()
    mounts: tuple[Mount, ...] = ()
    problem: str = ""


def private_folders(host: Host) -> tuple[str, ...]:
    """Folders of this node that no pod may have, wherever its settings put them."""
    paths = host.paths
    kubelet = (paths.device_plugins, posixpath.dirname(paths.pod_resources))
    return tuple(host.logical(path) for path in (*kubelet, paths.run, paths.state, paths.etc))


class Maker:
    """Makes pieces during one scan."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._private = private_folders(view.host)

    def device(self, rule: Rule, entry: Entry, container_path: str, permissions: str) -> Piece:
        """The node at a path, or the nodes in a folder."""
        if entry.is_node:
            return self._nodes(rule, [(entry, container_path)], permissions)
        if entry.type == "denied":
            return Piece(problem=f"{entry.path} cannot be read: permission denied")
        if entry.type != "dir":
            return Piece(problem=f"{entry.path} is {_NAMES.get(entry.type, entry.type)}, no device node")
        found = list(tree.nodes(self._view, entry.path))
        if not found:
            return Piece(problem=f"{entry.path} is a folder without device nodes")
        if len(found) > FOLDER_AT_MOST:
            return Piece(problem=f"{entry.path} holds {len(found)} device nodes, at most {FOLDER_AT_MOST} go together")
        pairs = [(node, container_path + path[len(entry.path) :]) for path, node in found]
        return self._nodes(rule, pairs, permissions)

    def mount(self, rule: Rule, entry: Entry, container_path: str, read_only: bool) -> Piece:
        """A bind mount of what is there."""
        if not entry.exists:
            return Piece(problem=f"{entry.path} is not there" if entry.type == "missing" else f"{entry.path} is closed")
        if problem := unprintable(entry.path):
            return Piece(problem=problem)
        if not rule.config.dangerous:
            reason = dangerous.mount(entry.path, read_only, self._private)
            if entry.is_node:
                reason = reason or dangerous.node(entry.path, entry.type, entry.major, entry.minor)
            if reason:
                return Piece(problem=f"{reason}: {dangerous.OVERRIDE}")
        return Piece(mounts=(Mount(container_path, entry.path, read_only),))

    def extra_mounts(self, rule: Rule) -> Piece:
        """The mounts that every unit of a rule brings."""
        mounts: list[Mount] = []
        for extra in rule.config.mounts:
            entry = self._view.entry(extra.host_path)
            if entry.type == "missing" and extra.optional:
                continue
            piece = self.mount(rule, entry, extra.container_path or extra.host_path, extra.read_only)
            if piece.problem:
                return piece
            mounts += piece.mounts
        return Piece(mounts=tuple(mounts))

    def _nodes(self, rule: Rule, found: Sequence[tuple[Entry, str]], permissions: str) -> Piece:
        nodes: list[Node] = []
        for entry, container_path in found:
            path, kind, major, minor = entry
            if problem := unprintable(path):
                return Piece(problem=problem)
            if not rule.config.dangerous and (reason := dangerous.node(path, kind, major, minor)):
                return Piece(problem=f"{reason}: {dangerous.OVERRIDE}")
            thing = self._view.thing(kind, major, minor)
            nodes.append(Node(path, container_path, permissions, kind, major, minor, thing))
        return Piece(nodes=tuple(nodes))


def unprintable(path: str) -> str:
    """Why a path cannot be told to anyone: the kubelet speaks UTF-8 only. Empty when it can."""
    if path.isascii():
        return ""
    try:
        path.encode()
    except UnicodeEncodeError:
        return f"{path!a} is not valid UTF-8"
    return ""
