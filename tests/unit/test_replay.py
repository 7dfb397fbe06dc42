"""A captured node behaves like the node it was captured from: same files, and the same after whatever happens to it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from devherd.capture.about import describe, settings_of
from devherd.capture.archive import Capture, CaptureError
from devherd.capture.reader import Order
from devherd.capture.record import Source
from devherd.capture.redact import Redactor
from devherd.host import Host
from devherd.settings import Paths, Settings
from devherd.sim.node import Node, NodeError
from devherd.sim.nodespec import load
from devherd.sim.places import read_rdev_table
from devherd.sim.replay import ReplayedNode

Pair = tuple[Node, ReplayedNode]


def captured(node: Node, folder: Path) -> Capture:
    paths = msgspec.convert(node.paths() | {"etc": str(folder), "log": str(folder), "state": str(folder)}, Paths)
    source = Source(Settings(paths=paths), str(folder / "devherd.yaml"))
    source.read_node()
    assert not source.problems
    file = str(folder / "c.tar.gz")
    source.capture(Redactor(enabled=False)).save(file)
    return Capture.load(file)


@pytest.fixture(params=["workshop", "gpu"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    node = Node.build(load(request.param), str(tmp_path / "node"))
    return node, ReplayedNode.build(captured(node, tmp_path), str(tmp_path / "replay"))


def tree(root: str) -> dict[str, str]:
    """Path -> content or link target, of all files in /dev and /sys."""
    found = {}
    for top in ("dev", "sys"):
        for at, folders, names in os.walk(os.path.join(root, top)):
            for name in [*names, *folders]:
                path = os.path.join(at, name)
                if os.path.islink(path):
                    found[path[len(root) :]] = "-> " + os.readlink(path)
                elif os.path.isfile(path):
                    found[path[len(root) :]] = Path(path).read_text()
    return found


def same(pair: Pair) -> None:
    node, replay = pair
    assert tree(replay.root) == tree(node.root)
    assert read_rdev_table(replay.rdev_table) == read_rdev_table(node.rdev_table)
    assert sorted(replay.present()) == sorted(node.present())
    assert sorted(replay.absent()) == sorted(node.absent())
    for path in node.present():
        assert replay.thing(path) == node.thing(path)


def test_it_has_the_same_files_numbers_and_hardware(pair: Pair) -> None:
    same(pair)
    node, replay = pair
    for path in node.present():
        if not node.hardware(path).startswith("/devices/virtual"):
            # A USB interface falls off with its device.
            assert node.hardware(path).startswith(replay.hardware(path))


def test_the_host_sees_no_difference(pair: Pair) -> None:
    views = [Host(msgspec.convert(node.paths(), Paths)).view() for node in pair]
    for path in pair[0].present():
        first, second = (view.node(path) for view in views)
        assert first is not None
        assert first == second
        things = [view.thing(first.kind, first.major, first.minor) for view in views]
        assert things[0] == things[1]
        assert views[0].numa(things[0]) == views[1].numa(things[1])


def first_numbered(node: Node, count: int) -> list[str]:
    """The first nodes that have hardware of their own."""
    return [path for path in node.present() if not node.hardware(path).startswith("/devices/virtual")][:count]


def test_broken_hardware_is_gone_and_comes_back_as_it_was(pair: Pair) -> None:
    node, replay = pair
    path = first_numbered(node, 1)[0]
    before = tree(replay.root)
    replay.break_device(path)
    assert not os.path.lexists(replay.root + path)
    assert not [
        at for at, to in tree(replay.root).items() if to.startswith("->") and not os.path.exists(replay.root + at)
    ]
    assert replay.absent() == [path]
    with pytest.raises(NodeError, match="no device"):
        replay.break_device(path)
    replay.heal_device(path)
    assert tree(replay.root) == before
    same(pair)


def test_a_swap_of_numbers_is_the_same_swap(pair: Pair) -> None:
    one, two, three = first_numbered(pair[0], 3)
    for moves in ({one: two, two: one}, {one: three, three: two, two: one}):
        for node in pair:
            node.renumber(moves)
        same(pair)


def test_a_reboot_closes_the_gap_of_lost_hardware(pair: Pair) -> None:
    lost = first_numbered(pair[0], 2)[1]
    boots = [node.boot_id for node in pair]
    for node in pair:
        node.break_device(lost)
        node.reboot()
    assert [node.boot_id for node in pair] != boots
    node, replay = pair
    assert sorted(replay.present()) == sorted(node.present())
    for path in node.present():
        assert replay.thing(path) == node.thing(path)
    with pytest.raises(NodeError, match="belongs to another device"):
        replay.heal_device(lost)


def outcome(act: Callable[[Node | ReplayedNode], None], node: Node | ReplayedNode) -> bool:
    try:
        act(node)
    except NodeError:
        return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_both_stay_alike(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    node, replay = pair
    group = [path for path in first_numbered(node, 99) if path.rstrip("0123456789") == first_numbered(node, 1)[0][:-1]]

    def both(act: Callable[[Node | ReplayedNode], None]) -> None:
        assert outcome(act, node) == outcome(act, replay)

    for _ in range(12):
        one, two = chance.sample(group, 2)
        match chance.randrange(4):
            case 0:
                both(lambda at, one=one: at.break_device(one))  # type: ignore[misc]
            case 1:
                both(lambda at, one=one: at.heal_device(one))  # type: ignore[misc]
            case 2:
                both(lambda at, one=one, two=two: at.renumber({one: two, two: one}))  # type: ignore[misc]
            case _:
                both(lambda at: at.reboot())
        assert sorted(replay.present()) == sorted(node.present())
        for path in node.present():
            assert replay.thing(path) == node.thing(path)
            assert os.path.exists(replay.root + path)
        assert read_rdev_table(replay.rdev_table) == read_rdev_table(node.rdev_table)


def test_nodes_on_one_piece_of_hardware_go_and_come_together(tmp_path: Path) -> None:
    card = "/sys/devices/pci0000:00/0000:03:00.0"
    capture = Capture(
        nodes={"/dev/dri/card0": "c 226 0", "/dev/dri/renderD128": "c 226 128", "/dev/fuse": "c 10 229"},
        files={f"{card}/vendor": "0x1002\n"},
        folders={f"{card}/drm/card0", f"{card}/drm/renderD128"},
        links={
            "/sys/dev/char/226:0": f"{card}/drm/card0",
            "/sys/dev/char/226:128": f"{card}/drm/renderD128",
            "/sys/bus/pci/devices/0000:03:00.0": card,
            "/sys/class/drm/card0": f"{card}/drm/card0",
        },
    )
    replay = ReplayedNode.build(capture, str(tmp_path / "r"))
    before = tree(replay.root)
    replay.break_device("/dev/dri/renderD128")
    assert replay.present() == ["/dev/fuse"]
    assert sorted(tree(replay.root)) == ["/dev/fuse"]
    replay.heal_device("/dev/dri/card0")
    assert tree(replay.root) == before


def test_a_word_as_a_name_is_no_number(tmp_path: Path) -> None:
    capture = Capture(nodes={"/dev/kvm": "c 10 232", "/dev/x0": "c 240 0", "/dev/x1": "c 240 1"})
    replay = ReplayedNode.build(capture, str(tmp_path / "r"))
    for moves, says in (
        ({"/dev/kvm": "/dev/x0"}, "no name"),
        ({"/dev/x0": "/dev/x1"}, "in use"),
        ({"/dev/x0": "/dev/x9"}, "no name"),
    ):
        with pytest.raises(NodeError, match=says):
            replay.renumber(moves)
    replay.break_device("/dev/x0")
    replay.reboot()
    assert replay.present() == ["/dev/kvm", "/dev/x0"]


def test_captured_settings_are_laid_over_a_private_instance_without_its_paths() -> None:
    text = "paths: {run: /run/x}\nlog: {level: debug}\nprobe: {scan_interval: 3}\nkubelet: {layout: top}\n"
    found = settings_of(Capture(texts={"etc/devherd.yaml": text}))
    assert found["probe"]["scan_interval"] == 3
    assert found["kubelet"]["layout"] == "top"
    assert not {"paths", "log"} & set(found)
    with pytest.raises(CaptureError, match="line 2"):
        settings_of(Capture(texts={"etc/devherd.yaml": "probe: {scan_interval: 3}\nnonsense: 1\n"}))


def test_it_is_described() -> None:
    assert "2 device nodes" in describe(Capture(nodes={"a": "", "b": ""}, about={"plugins": ["gpu"]}))


def test_orders_travel_as_json() -> None:
    order = Order(Paths(sys="/x"), ("/dev/a",), ("/sys/*",))
    assert msgspec.json.decode(msgspec.json.encode(order), type=Order) == order
