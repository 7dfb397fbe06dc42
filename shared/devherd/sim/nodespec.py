"""What a simulated node has, as short YAML. `{n}` in a text stands for the device's index, `{n:02x}` formats it."""

from __future__ import annotations

import os
import re
from typing import Annotated

from msgspec import Meta, Struct

from devherd.config.load import load_struct
from devherd.config.problems import ConfigError
from devherd.sim.hardware import Hardware

NODES = os.path.join(os.path.dirname(__file__), "nodes")
_INDEX = re.compile(r"\{n(:[0-9]*[xd])?\}")


def fill(template: str, index: int) -> str:
    """Put an index into a template."""
    return _INDEX.sub(lambda found: format(index, (found[1] or ":d")[1:]), template)


class Devices(Struct, frozen=True, forbid_unknown_fields=True):
    """Like devices: `count` of them, numbered from 0."""

    path: Annotated[str, Meta(pattern="^/dev/.", description="device node; `{n}` is the kernel's number of it")]
    count: Annotated[int, Meta(ge=0, le=100_000, description="how many")] = 1
    kind: Annotated[str, Meta(pattern="^[cb]$", description="character or block device")] = "c"
    major: Annotated[int, Meta(ge=0, description="major number")] = 240
    minor: Annotated[int, Meta(ge=0, description="minor number of the first")] = 0
    subsystem: Annotated[str, Meta(description="name below /sys/class")] = "misc"
    parent: Annotated[
        str,
        Meta(description="sysfs folder of the hardware, `/devices/pci0000:00/0000:00:{n:02x}.0`; empty: virtual"),
    ] = ""
    numa: Annotated[tuple[int, ...], Meta(description="NUMA nodes, dealt out in order; empty: unknown")] = ()
    files: Annotated[dict[str, str], Meta(description="files in the hardware's folder")] = {}
    driver: Annotated[str, Meta(description="name of the driver")] = ""
    bare: Annotated[bool, Meta(description="only the node and its number, nothing in sysfs: quick for thousands")] = (
        False
    )
    links: Annotated[tuple[str, ...], Meta(description="links below /dev that stay with the hardware")] = ()

    def node_path(self, slot: int) -> str:
        """The device node of a slot: slots are what the kernel numbers, in the order it finds devices."""
        return fill(self.path, slot)

    def hardware(self, index: int) -> str:
        """The sysfs folder of one device's hardware, below /sys."""
        return fill(self.parent, index) if self.parent else "/devices/virtual"

    def sysfs(self, index: int, slot: int) -> str:
        """The sysfs folder of a device while it sits in a slot."""
        return f"{self.hardware(index)}/{self.subsystem}/{os.path.basename(self.node_path(slot))}"


class NodeSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One node."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]*$", description="name of the node")]
    title: Annotated[str, Meta(description="one line for people")] = ""
    machine_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="machine-id(5)")] = "d" * 32
    devices: Annotated[tuple[Devices, ...], Meta(description="what it has")] = ()
    hardware: Annotated[tuple[Hardware, ...], Meta(description="hardware that plugins know how to simulate")] = ()


def load(name_or_path: str) -> NodeSpec:
    """Read a node that ships with devherd, by name, or any file. Raises ConfigError naming every problem."""
    path = name_or_path if "/" in name_or_path else os.path.join(NODES, name_or_path + ".yaml")
    hint = f"name a file, or one of the nodes that ship with devherd: {', '.join(names())}"
    loaded = load_struct(path, NodeSpec, absent_hint=hint)
    if loaded.value is None:
        raise ConfigError(loaded.problems)
    return loaded.value


def names() -> list[str]:
    """Nodes that ship with devherd."""
    return sorted(name[:-5] for name in os.listdir(NODES) if name.endswith(".yaml"))
