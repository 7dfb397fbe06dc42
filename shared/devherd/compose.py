"""Merges the answer parts of a container's devices into one answer, or says why they do not go together.

The kubelet checks nothing of what Allocate returns and hands it to the runtime as it is, so what would
break a container later is refused here, with a text short enough for a pod's status.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from devherd.values import Composed, Mount, Node, Parts

# Environment keys as the Kubernetes API accepts them for a container.
_ENV_KEY = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
# Qualified names (annotation keys): an optional DNS subdomain, then at most 63 characters.
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# `vendor/class=device` as the Container Device Interface specification writes it.
_CDI_NAME = re.compile(
    r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
    r"=[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)
_RESERVED = ("kubernetes.io", "k8s.io")
# The one prefix below k8s.io that exists for device plugins: CDI names for runtimes that read annotations.
_CDI_PREFIX = "cdi.k8s.io"


class ComposeError(Exception):
    """The parts contradict each other or are malformed. The text is one short sentence."""


def compose(parts: Sequence[Parts]) -> Composed:
    """Merge, in the given order (the caller's id order decides the order of joined values).

    A node or mount that several devices bring is listed once, with the union of what they may do.
    An environment or annotation key with different values gets them joined by commas, each value once.
    Raises ComposeError.
    """
    nodes: dict[str, Node] = {}
    mounts: dict[str, Mount] = {}
    env: dict[str, list[str]] = {}
    annotations: dict[str, list[str]] = {}
    cdi: dict[str, None] = {}
    for part in parts:
        for node in part.nodes:
            _add_node(nodes, node)
        for mount in part.mounts:
            _add_mount(mounts, mount)
        for key, value in part.env.items():
            _add_env(env, key, value)
        for key, value in part.annotations.items():
            _add_annotation(annotations, key, value)
        for name in part.cdi:
            cdi[_cdi_name(name)] = None
    for path in nodes.keys() & mounts.keys():
        raise ComposeError(f"{_clip(path)} would be a device node and a mount at once")
    return Composed(
        nodes=tuple(nodes.values()),
        mounts=tuple(mounts.values()),
        env={key: ",".join(values) for key, values in env.items()},
        annotations={key: ",".join(values) for key, values in annotations.items()},
        cdi=tuple(cdi),
    )


def check_resources(parts: Mapping[str, Sequence[Parts]]) -> list[str]:
    """Warn of what two resources would set differently in one container.

    A container may ask for both; the kubelet then merges their answers in random order and keeps the first,
    so which value or device it gets is chance. Returns one sentence for each key or path, ordered.
    """
    values: dict[tuple[str, str], dict[str, set[str]]] = {}
    for resource, each in parts.items():
        for what, key, value in _settings(each):
            values.setdefault((what, key), {}).setdefault(resource, set()).add(value)
    warnings: list[str] = []
    for (what, key), by_resource in sorted(values.items()):
        if len(by_resource) > 1 and len(set().union(*by_resource.values())) > 1:
            names = " and ".join(sorted(by_resource))
            warnings.append(
                f"{what} {key} is set differently by {names}: a container that asks for both gets one by chance"
            )
    return warnings


def _settings(parts: Iterable[Parts]) -> Iterable[tuple[str, str, str]]:
    for part in parts:
        for key, value in part.env.items():
            yield "environment variable", key, value
        for key, value in part.annotations.items():
            yield "annotation", key, value
        for node in part.nodes:
            yield "container path", node.container_path, node.host_path
        for mount in part.mounts:
            yield "container path", mount.container_path, mount.host_path


def _add_node(nodes: dict[str, Node], node: Node) -> None:
    _check_path(node.host_path, "host")
    _check_path(node.container_path, "container")
    permissions = _permissions(node.permissions, node.container_path)
    known = nodes.get(node.container_path)
    if known is None:
        nodes[node.container_path] = _with_permissions(node, permissions)
        return
    if known.host_path != node.host_path:
        raise _two(node.container_path, known.host_path, node.host_path)
    both = _permissions("".join(set(known.permissions + permissions)), node.container_path)
    nodes[node.container_path] = _with_permissions(known, both)


def _with_permissions(node: Node, permissions: str) -> Node:
    if node.permissions == permissions:
        return node
    return Node(node.host_path, node.container_path, permissions, node.kind, node.major, node.minor, node.thing)


def _permissions(letters: str, path: str) -> str:
    if not letters or len(set(letters)) != len(letters) or set(letters) - set("rwm"):
        raise ComposeError(f"{_clip(path)}: permissions {_short(letters)} are not some of r, w and m")
    return "".join(letter for letter in "rwm" if letter in letters)


def _add_mount(mounts: dict[str, Mount], mount: Mount) -> None:
    _check_path(mount.host_path, "host")
    _check_path(mount.container_path, "container")
    if mount.container_path == "/":
        raise ComposeError("a mount would cover the container's root")
    known = mounts.get(mount.container_path)
    if known is None:
        mounts[mount.container_path] = mount
        return
    if known.host_path != mount.host_path:
        raise _two(mount.container_path, known.host_path, mount.host_path)
    if known.read_only and not mount.read_only:
        mounts[mount.container_path] = mount


def _check_path(path: str, side: str) -> None:
    if "\0" in path:
        raise ComposeError(f"{side} path {_short(path)} contains a NUL")
    if not path.startswith("/") or path.startswith("//") or posixpath.normpath(path) != path:
        raise ComposeError(f"{side} path {_short(path)} is not absolute and normalised")


def _add_env(env: dict[str, list[str]], key: str, value: str) -> None:
    if not _ENV_KEY.fullmatch(key):
        raise ComposeError(f"environment key {_short(key)} is malformed")
    if "\0" in value:
        raise ComposeError(f"environment variable {_short(key)} contains a NUL")
    _join(env, key, value)


def _add_annotation(annotations: dict[str, list[str]], key: str, value: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and (len(prefix) > 253 or not _DOMAIN.fullmatch(prefix))):
        raise ComposeError(f"annotation key {_short(key)} is malformed")
    if prefix != _CDI_PREFIX and any(prefix == own or prefix.endswith("." + own) for own in _RESERVED):
        raise ComposeError(f"annotation key {_short(key)} is reserved by Kubernetes")
    _join(annotations, key, value)


def _join(into: dict[str, list[str]], key: str, value: str) -> None:
    values = into.setdefault(key, [])
    if value not in values:
        values.append(value)


def _cdi_name(name: str) -> str:
    if not _CDI_NAME.fullmatch(name):
        raise ComposeError(f"CDI name {_short(name)} is not vendor/class=device")
    return name


def _two(path: str, one: str, other: str) -> ComposeError:
    return ComposeError(f"{_clip(path)} would be both {_clip(one)} and {_clip(other)}")


def _short(text: str) -> str:
    return repr(_clip(text))


def _clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
