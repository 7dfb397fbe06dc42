"""The configuration of the generic plugin, `plugins.d/generic.yaml`.

Field names and meaning of `devices`, `groups` and `paths` are those of the well-known generic device plugin, so that
its configuration works as it is; the rest is ours.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

MANY = 65536

DEFAULT_PERMISSIONS = "mrw"
DEFAULT_MATCH_PERMISSIONS = "rw"


class PathRule(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One path of a group."""

    path: Annotated[
        str,
        Meta(description="absolute host path; *, ? and [a-z] match within one component; links are followed"),
    ]
    mount_path: Annotated[
        str,
        Meta(description="path in the container; empty: the same; with a / at its end: a folder for the base name"),
    ] = ""
    type: Annotated[
        Literal["Device", "Mount"],
        Meta(description="Device: a device node, or a folder's device nodes; Mount: a bind mount"),
    ] = "Device"
    permissions: Annotated[
        str, Meta(description="letters of r, w, m (read, write, make the node) for a Device; empty: mrw")
    ] = ""
    read_only: Annotated[bool, Meta(description="for a Mount")] = False
    limit: Annotated[
        int,
        Meta(ge=1, le=MANY, description="how many units may use the same match, to pair it with longer globs"),
    ] = 1
    optional: Annotated[bool, Meta(description="left out of a unit when nothing matches, instead of no unit")] = False


class Group(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A way to make units. The n-th match of every path makes unit n; the path with fewest matches ends it."""

    paths: Annotated[tuple[PathRule, ...], Meta(description="what one unit is made of")] = ()
    match: Annotated[
        str,
        Meta(description="instead of paths: regular expression on the path below /dev (net/tun); each match is a unit"),
    ] = ""
    anchored: Annotated[bool, Meta(description="match must cover the whole path; false: any part of it")] = True
    permissions: Annotated[str, Meta(description="like a path's, for match; empty: rw")] = ""
    count: Annotated[int, Meta(ge=1, le=MANY, description="how many containers may share one unit")] = 1


class ExtraMount(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A bind mount beside the device; it has no part in the device's id."""

    host_path: Annotated[str, Meta(description="absolute host path, no glob")]
    container_path: Annotated[str, Meta(description="absolute path in the container; empty: the same")] = ""
    read_only: Annotated[bool, Meta(description="whether the container may only read it")] = True
    optional: Annotated[bool, Meta(description="left out when missing, instead of no unit")] = False


class DeviceRule(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A resource and what it is made of. All units of a resource are interchangeable."""

    groups: Annotated[tuple[Group, ...], Meta(description="ways to make units of this resource")]
    name: Annotated[
        str,
        Meta(
            description="resource name below the domain, or a full one with a /; empty (match groups only): "
            "one resource for each match, named after its path"
        ),
    ] = ""
    env: Annotated[
        dict[str, str],
        Meta(description="environment; {path}, {host_path}, {name}, {index}, {copy} and {id} are filled in"),
    ] = field(default_factory=dict)
    annotations: Annotated[dict[str, str], Meta(description="container annotations; same placeholders")] = field(
        default_factory=dict
    )
    cdi: Annotated[tuple[str, ...], Meta(description="CDI device names, vendor/class=name; same placeholders")] = ()
    mounts: Annotated[tuple[ExtraMount, ...], Meta(description="bind mounts that every unit brings")] = ()
    numa: Annotated[
        tuple[int, ...] | None, Meta(description="NUMA nodes to report; null: what sysfs says; empty list: none")
    ] = None
    shared: Annotated[
        bool, Meta(description="other rules and plugins may offer the same device, if they say so too")
    ] = False
    dangerous: Annotated[
        bool, Meta(description="allow host paths that hand the node over: /, /etc, sockets, memory, raw disks")
    ] = False


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    domain: Annotated[str, Meta(description="prefix of resource names that have none")] = "devherd.io"
    devices: Annotated[tuple[DeviceRule, ...], Meta(description="the rules")] = ()
