"""What a container receives with a device."""

from __future__ import annotations

from msgspec import Struct, field


class Node(Struct, frozen=True, omit_defaults=True):
    """One device node.

    `host_path` is the logical path (`/dev/x`), whatever root was scanned. `permissions` is a subset of
    `rwm` (cgroup device access; the kubelet passes it on unchecked). `kind` is `c` or `b`. `thing` names
    the physical device behind the path at scan time; an answer is stale once the path leads elsewhere.
    """

    host_path: str
    container_path: str
    permissions: str
    kind: str
    major: int
    minor: int
    thing: str


class Mount(Struct, frozen=True, omit_defaults=True):
    """A bind mount; paths are absolute, the host path is logical."""

    container_path: str
    host_path: str
    read_only: bool = False


class Parts(Struct, frozen=True, omit_defaults=True):
    """One device's share of a container's answer. CDI names are `vendor/class=name`.

    `picks` are the names by which a runtime finds the device where the answer holds no node of it (`index:3` for a
    variable with an index). They are no part of the answer: see `Device.names`.
    """

    nodes: tuple[Node, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
    picks: tuple[str, ...] = ()


class Composed(Struct, frozen=True):
    """One container's merged answer: each container path, key and CDI name once."""

    nodes: tuple[Node, ...]
    mounts: tuple[Mount, ...]
    env: dict[str, str]
    annotations: dict[str, str]
    cdi: tuple[str, ...]
