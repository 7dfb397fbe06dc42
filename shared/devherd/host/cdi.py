"""CDI specifications: what a container runtime adds to a container for a device name (`vendor/class=name`).

Field names, the rules for names and the version each field needs are those of the Container Device Interface
specification (SPEC.md). A file states the lowest version that it needs, so that old runtimes read it too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from devherd.values import HostFile

if TYPE_CHECKING:
    from devherd.settings import Paths


class CdiNode(Struct, frozen=True):
    """A device node in the container. `host_path` empty: the same path. Without `type` (`c`, `b`) the runtime looks.

    `major` and `minor` are written only with a type. `mode` is the node's file mode (0: the host's).
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    permissions: str = ""
    mode: int = 0


class CdiMount(Struct, frozen=True):
    """A bind mount; `options` as mount(8) knows them."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "rbind", "rprivate")


class CdiHook(Struct, frozen=True):
    """An OCI hook: `name` is its moment (`createContainer`), `args` begin with the program's name."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class CdiEdits(Struct, frozen=True):
    """What is added to a container. `env` holds `KEY=value`; `gids` are supplementary groups."""

    nodes: tuple[CdiNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    env: tuple[str, ...] = ()
    hooks: tuple[CdiHook, ...] = ()
    gids: tuple[int, ...] = ()


class CdiDevice(Struct, frozen=True):
    """One name and its edits."""

    name: str
    edits: CdiEdits


NO_EDITS = CdiEdits()


def spec(kind: str, devices: Sequence[CdiDevice], common: CdiEdits = NO_EDITS) -> str:
    """The file's text. `kind` is `vendor/class`; `common` goes to every container that gets any of the devices."""
    document: dict[str, Any] = {
        "cdiVersion": _version(kind, devices, common),
        "kind": kind,
        "devices": [{"name": one.name, "containerEdits": _edits(one.edits)} for one in devices],
    }
    if common != NO_EDITS:
        document["containerEdits"] = _edits(common)
    return json.dumps(document, indent=1) + "\n"


def spec_file(paths: Paths, kind: str, text: str) -> HostFile:
    """The specification of a kind in the node's CDI folder: `<vendor>-<class>.json`."""
    return HostFile(os.path.join(paths.cdi, kind.replace("/", "-") + ".json"), text)


def _version(kind: str, devices: Sequence[CdiDevice], common: CdiEdits) -> str:
    every = [common, *(one.edits for one in devices)]
    if any(one.gids for one in every):
        return "0.7.0"
    if "." in kind.partition("/")[2]:
        return "0.6.0"
    named = any(not one.name[:1].isalpha() for one in devices)
    if named or any(node.host_path and node.host_path != node.path for one in every for node in one.nodes):
        return "0.5.0"
    return "0.3.0"


def _edits(edits: CdiEdits) -> dict[str, Any]:
    found: dict[str, Any] = {
        "env": list(edits.env),
        "deviceNodes": [_node(node) for node in edits.nodes],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [_hook(hook) for hook in edits.hooks],
        "additionalGids": list(edits.gids),
    }
    return {key: value for key, value in found.items() if value}


def _node(node: CdiNode) -> dict[str, Any]:
    found: dict[str, Any] = {"path": node.path}
    if node.host_path and node.host_path != node.path:
        found["hostPath"] = node.host_path
    if node.type:
        found |= {"type": node.type, "major": node.major, "minor": node.minor}
    if node.mode:
        found["fileMode"] = node.mode
    if node.permissions:
        found["permissions"] = node.permissions
    return found


def _mount(mount: CdiMount) -> dict[str, Any]:
    found: dict[str, Any] = {"hostPath": mount.host_path, "containerPath": mount.container_path}
    return found | ({"options": list(mount.options)} if mount.options else {})


def _hook(hook: CdiHook) -> dict[str, Any]:
    found: dict[str, Any] = {"hookName": hook.name, "path": hook.path}
    return found | {key: list(value) for key, value in (("args", hook.args), ("env", hook.env)) if value}


def names(kind: str, devices: Iterable[CdiDevice]) -> tuple[str, ...]:
    """The qualified names of devices, as an answer gives them."""
    return tuple(f"{kind}={one.name}" for one in devices)
