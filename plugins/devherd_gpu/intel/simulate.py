"""Intel GPUs as sysfs trees, in the shape that i915 and xe give them."""

from __future__ import annotations

from devherd.host.tree import Tree
from devherd.vendor import Simulated
from msgspec import Struct

DRM = 226
MEI = 10
FLEX_170, MAX_1100, ARC = "0x56c0", "0x0bda", "0x56a0"


class IntelNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A node of like GPUs. `drivers` names the driver of each where they differ from `driver`.

    `functions`: virtual functions of each GPU, which then stand for it. `lost` are GPUs, by number, that fell off the
    bus. `temperature` (°C) is by GPU number. `frame_buffer`: each has a by-path entry that leads to no DRM node.
    """

    count: int = 2
    driver: str = "i915"
    drivers: tuple[str, ...] = ()
    device: str = FLEX_170
    of_class: str = "0x038000"
    numa_nodes: int = 1
    functions: int = 0
    frame_buffer: bool = False
    mei: bool = True
    lost: tuple[int, ...] = ()
    temperature: dict[int, int] = {}

    def address(self, n: int, function: int = 0) -> str:
        """The PCI address of a GPU, or of one of its virtual functions."""
        return f"0000:{3 + 16 * n:02x}:00.{function}"

    def driver_of(self, n: int) -> str:
        """The n-th GPU's driver."""
        return self.drivers[n] if n < len(self.drivers) else self.driver


def tree(node: IntelNode) -> Tree:
    """The whole of it."""
    made = Tree()
    card = 0
    for n in range(node.count):
        for function in range(node.functions + 1):
            if n not in node.lost:
                _function(made, node, n, function, card)
            card += 1
    return made


def folder(node: IntelNode, n: int, function: int = 0) -> str:
    """The sysfs folder of a GPU or of one of its functions."""
    address = node.address(n, function)
    return f"/sys/devices/pci{address[:7]}/{address}"


def _function(made: Tree, node: IntelNode, n: int, function: int, card: int) -> None:
    place = folder(node, n, function)
    numa = n * node.numa_nodes // node.count if node.numa_nodes else -1
    made.pci(place, node.driver_of(n), vendor="0x8086", device=node.device, numa_node=numa)
    made.files[f"{place}/class"] = f"{node.of_class}\n"
    if function:
        made.links[f"{place}/physfn"] = folder(node, n)
    else:
        made.write(place, sriov_numvfs=node.functions)
    _nodes(made, node, place, node.address(n, function), card)
    sensor = f"{place}/hwmon/hwmon{card}"
    made.write(sensor, name=node.driver_of(n), temp2_input=node.temperature.get(n, 40) * 1000, temp2_label="pkg")
    if node.mei and not function:
        made.char(f"/dev/mei{card}", MEI, 200 + card, f"{place}/i915.mei-gsc.{card}/mei/mei{card}", "mei")


def _nodes(made: Tree, node: IntelNode, place: str, address: str, card: int) -> None:
    for name, minor, end in ((f"card{card}", card, "card"), (f"renderD{128 + card}", 128 + card, "render")):
        made.char(f"/dev/dri/{name}", DRM, minor, f"{place}/drm/{name}", "drm")
        made.links[f"/dev/dri/by-path/pci-{address}-{end}"] = f"/dev/dri/{name}"
    if node.frame_buffer:
        made.links[f"/dev/dri/by-path/pci-{address}-framebuffer"] = f"/dev/fb{card}"


SIMULATED = Simulated(IntelNode, tree)
