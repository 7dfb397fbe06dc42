"""Simulated nodes: what the files say before and after things happen, read the way everything else reads them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from devherd.config.problems import ConfigError
from devherd.host import Host
from devherd.settings import Paths
from devherd.sim import nodespec
from devherd.sim.node import Node, NodeError, no_device
from devherd.sim.nodespec import Devices, NodeSpec
from devherd.sim.places import CreateError

SPEC = NodeSpec(
    name="test",
    devices=(
        Devices(
            path="/dev/x/x{n}",
            count=4,
            major=240,
            subsystem="x",
            parent="/devices/pci0000:00/0000:00:{n:02x}.0",
            numa=(0, 1),
            driver="xdrv",
            files={"vendor": "0x1d0f", "serial": "S{n:03d}"},
            links=("/dev/x/by-id/{n}",),
        ),
        Devices(path="/dev/plain", major=10, minor=5),
    ),
)


@pytest.fixture
def root() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    yield made
    shutil.rmtree(made)


@pytest.fixture
def node(root: str) -> Node:
    return Node.build(SPEC, root)


def number(node: Node, path: str) -> str:
    found = Host(Paths(**node.paths())).node(path)
    return f"{found.kind} {found.major}:{found.minor}" if found else ""


def thing(node: Node, path: str) -> str:
    found = node.places.number(path)
    return node.places.thing(found)


def test_the_host_layer_sees_what_the_node_says(node: Node) -> None:
    host = Host(Paths(**node.paths()))
    seen = host.node("/dev/x/x2")
    assert seen is not None
    assert (seen.kind, seen.major, seen.minor) == ("c", 240, 2)
    assert number(node, "/dev/x/by-id/2") == "c 240:2"
    assert thing(node, "/dev/x/x2") == node.thing("/dev/x/x2") == "sys:/devices/pci0000:00/0000:00:02.0/x/x2"
    assert thing(node, "/dev/plain") == "sys:/devices/virtual/misc/plain"
    with open(f"{node.root}/sys/class/x/x3/device/serial") as file:
        assert file.read() == "S003\n"
    with open(f"{node.root}/sys/bus/pci/devices/0000:00:03.0/numa_node") as file:
        assert file.read() == "1\n"
    assert os.path.basename(os.readlink(f"{node.root}/sys/bus/pci/devices/0000:00:03.0/driver")) == "xdrv"


def test_a_broken_device_leaves_nothing_behind_and_comes_back_whole(node: Node) -> None:
    def files() -> set[str]:
        return {os.path.join(at, n) for at, folders, names in os.walk(node.root) for n in [*folders, *names]}

    before = files()
    node.break_device("/dev/x/x1")
    assert node.absent() == ["/dev/x/x1"]
    assert not os.path.lexists(f"{node.root}/dev/x/by-id/1")
    assert not os.path.exists(f"{node.root}/sys/devices/pci0000:00/0000:00:01.0")
    with pytest.raises(CreateError, match="no such file or directory"):
        node.places.number("/dev/x/x1")
    broken = [name for at, _, names in os.walk(node.root) for name in names if not os.path.exists(f"{at}/{name}")]
    assert broken == []
    node.heal_device("/dev/x/x1")
    assert files() == before
    assert number(node, "/dev/x/x1") == "c 240:1"


def test_renumbering_keeps_paths_and_numbers_and_swaps_hardware(node: Node) -> None:
    node.renumber({"/dev/x/x1": "/dev/x/x2", "/dev/x/x2": "/dev/x/x1"})
    assert number(node, "/dev/x/x1") == "c 240:1"
    assert node.hardware("/dev/x/x1") == "/devices/pci0000:00/0000:00:02.0"
    assert thing(node, "/dev/x/x1") == "sys:/devices/pci0000:00/0000:00:02.0/x/x1"
    assert number(node, "/dev/x/by-id/1") == "c 240:2", "links stay with the hardware"


def test_reboot_numbers_what_is_left_from_zero(node: Node) -> None:
    boot = node.boot_id
    node.break_device("/dev/x/x0")
    node.reboot()
    assert node.boot_id != boot
    assert node.present() == ["/dev/x/x0", "/dev/x/x1", "/dev/x/x2", "/dev/plain"]
    assert node.hardware("/dev/x/x0") == "/devices/pci0000:00/0000:00:01.0"


def test_a_device_whose_number_was_given_away_comes_back_with_the_lowest_free_one(node: Node) -> None:
    node.break_device("/dev/x/x0")
    node.reboot()
    assert node.heal_device("/dev/x/x0") == "/dev/x/x3"
    assert node.present() == ["/dev/x/x3", "/dev/x/x0", "/dev/x/x1", "/dev/x/x2", "/dev/plain"]
    assert node.hardware("/dev/x/x3") == "/devices/pci0000:00/0000:00:00.0"
    assert node.hardware("/dev/x/x0") == "/devices/pci0000:00/0000:00:01.0"


def test_reboot_may_leave_the_numbers_alone(node: Node) -> None:
    node.break_device("/dev/x/x0")
    node.reboot(compact=False)
    assert node.hardware("/dev/x/x1") == "/devices/pci0000:00/0000:00:01.0"


def test_impossible_wishes_are_explained(node: Node) -> None:
    with pytest.raises(NodeError, match=r"no device /dev/x/x9; there are: /dev/x/x0, /dev/x/x1"):
        node.break_device("/dev/x/x9")
    with pytest.raises(NodeError, match="no broken device"):
        node.heal_device("/dev/x/x1")
    with pytest.raises(NodeError, match="/dev/x/x2 is in use"):
        node.renumber({"/dev/x/x1": "/dev/x/x2"})
    with pytest.raises(NodeError, match="no name a device"):
        node.renumber({"/dev/x/x1": "/dev/y"})
    assert node.present()[:4] == [f"/dev/x/x{n}" for n in range(4)]


def test_a_node_can_be_opened_again(node: Node, root: str) -> None:
    node.break_device("/dev/x/x1")
    again = Node.open(root)
    assert again.absent() == ["/dev/x/x1"]
    again.heal_device("/dev/x/x1")
    assert Node.open(root).absent() == []
    with pytest.raises(NodeError, match="no simulated node"):
        Node.open(root + "/etc")


def test_bare_devices_have_a_number_and_nothing_else(root: str) -> None:
    node = Node.build(NodeSpec(name="b", devices=(Devices(path="/dev/p{n}", count=50, bare=True),)), root)
    assert number(node, "/dev/p49") == "c 240:49"
    assert thing(node, "/dev/p49") == node.thing("/dev/p49") == "c:240:49"
    assert os.listdir(f"{root}/sys/dev/char") == []


@pytest.mark.parametrize("name", nodespec.names())
def test_nodes_that_ship_are_valid(name: str) -> None:
    spec = nodespec.load(name)
    assert spec.name == name
    assert spec.title
    numbers = [(g.kind, g.major, g.minor + n) for g in spec.devices for n in range(g.count)]
    assert len(set(numbers)) == len(numbers), "two devices have the same number"


def test_every_problem_of_a_node_file_is_reported(root: str) -> None:
    path = os.path.join(root, "n.yaml")
    with open(path, "w") as file:
        file.write("name: bad\ndevices:\n  - path: /etc/x\n  - path: /dev/x\n    kund: c\n")
    with pytest.raises(ConfigError) as caught:
        nodespec.load(path)
    assert sorted(p.line for p in caught.value.problems) == [3, 5]


def test_a_long_list_of_devices_says_how_many_are_not_shown() -> None:
    text = no_device("/dev/y", [f"/dev/x{number}" for number in range(11)])
    assert text.endswith("/dev/x7 and 3 more")
    assert no_device("/dev/y", []).endswith("there are: none")
