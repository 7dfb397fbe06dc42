"""The generic vendor on a fake node: acceptance cases by number (fpga_generic.md, section 8), and what users see."""

from __future__ import annotations

import hashlib
import os
import select
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from devherd.compose import compose
from devherd.host import Host
from devherd.settings import Paths
from devherd.values import Device, Inventory, Mount
from devherd.vendor import Checks, Watches
from devherd_generic.config import Config
from devherd_generic.manifest import MANIFEST
from devherd_generic.validate import validate
from devherd_generic.vendor import GenericVendor, make


class Node:
    """A fake node that an ordinary user can build: plain files, and their numbers in a table."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("dev", "sys/dev/char", "sys/dev/block", "proc"):
            (root / name).mkdir(parents=True)
        self.table: dict[str, str] = {}
        self.host = Host(
            Paths(
                root=str(root),
                sys=f"{root}/sys",
                dev=f"{root}/dev",
                proc=f"{root}/proc",
                rdev_table=f"{root}/rdev.table",
            )
        )

    def add(self, path: str, number: str = "", device: str = "") -> None:
        """A node; `number` like `c 240:4`; `device` its folder below /sys."""
        number = number or f"c 240:{len(self.table)}"
        self.table[path] = number.replace(":", " ")
        self._write()
        if device:
            (self.root / f"sys{device}").mkdir(parents=True, exist_ok=True)
            kind = "char" if number.startswith("c") else "block"
            (self.root / "sys/dev" / kind / number[2:]).symlink_to("../.." + device)
        file = self.root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def renumber(self, path: str, number: str) -> None:
        self.table[path] = number.replace(":", " ")
        self._write()

    def remove(self, path: str) -> None:
        (self.root / path[1:]).unlink()

    def link(self, path: str, target: str) -> None:
        file = self.root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)

    def folder(self, path: str) -> None:
        (self.root / path[1:]).mkdir(parents=True, exist_ok=True)

    def vendor(self, *devices: dict[str, Any], domain: str = "devherd.io") -> GenericVendor:
        config = msgspec.convert({"domain": domain, "devices": list(devices)}, Config)
        assert validate(config) == []
        return make(config, self.host)

    def _write(self) -> None:
        fresh = self.root / "rdev.new"
        fresh.write_text("".join(f"{path} {number}\n" for path, number in self.table.items()))
        fresh.rename(self.root / "rdev.table")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def rule(name: str, *paths: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    count = more.pop("count", 1)
    full = [{"path": path} if isinstance(path, str) else path for path in paths]
    return {"name": name, "groups": [{"count": count, "paths": full}], **more}


def devices(inventory: Inventory, resource: str) -> dict[str, Device]:
    found = {each.name: each for each in inventory.resources}
    return {device.id: device for device in found[resource].devices} if resource in found else {}


def only(inventory: Inventory, resource: str) -> Device:
    (device,) = devices(inventory, resource).values()
    return device


def reasons(inventory: Inventory) -> str:
    return "\n".join(f"{skipped.what}: {skipped.reason}" for skipped in inventory.skipped)


def test_case_15_fuse_with_count_3_has_the_known_ids_and_one_node(node: Node) -> None:
    node.add("/dev/fuse", "c 10:229")
    found = devices(node.vendor(rule("fuse", "/dev/fuse", count=3)).scan(), "devherd.io/fuse")
    assert list(found) == [
        "a68db766f638034740111848aafee2d2dcd6b642",
        "e599ef874758d327fa12ad6d44bcd43b1af19dfb",
        "88147f87fc92e69580ba38051f238b947269e059",
    ]
    for device in found.values():
        (fuse,) = device.parts.nodes
        assert (fuse.host_path, fuse.container_path, set(fuse.permissions)) == ("/dev/fuse", "/dev/fuse", set("mrw"))
        assert (fuse.kind, fuse.major, fuse.minor) == ("c", 10, 229)
    answer = compose([device.parts for device in list(found.values())[:2]])
    assert [each.container_path for each in answer.nodes] == ["/dev/fuse"]


def test_case_16_glob_into_a_container_folder(node: Node) -> None:
    node.add("/dev/ttyUSB0")
    node.add("/dev/ttyUSB1")
    inventory = node.vendor(rule("serial", {"path": "/dev/ttyUSB*", "mountPath": "/dev/serial/"})).scan()
    found = devices(inventory, "devherd.io/serial")
    assert [device.parts.nodes[0].container_path for device in found.values()] == [
        "/dev/serial/ttyUSB0",
        "/dev/serial/ttyUSB1",
    ]
    assert [device.parts.nodes[0].host_path for device in found.values()] == ["/dev/ttyUSB0", "/dev/ttyUSB1"]


def test_case_17_limit_pairs_one_path_with_a_longer_glob(node: Node) -> None:
    for name in ("a", "b0", "b1", "b2"):
        node.add(f"/dev/{name}")
    inventory = node.vendor(rule("pair", {"path": "/dev/a", "limit": 10}, "/dev/b*")).scan()
    pairs = [[n.host_path for n in d.parts.nodes] for d in devices(inventory, "devherd.io/pair").values()]
    assert pairs == [["/dev/a", "/dev/b0"], ["/dev/a", "/dev/b1"], ["/dev/a", "/dev/b2"]]
    assert list(devices(inventory, "devherd.io/pair")) == [
        hashlib.sha1(f"0/dev/a/dev/b{i}".encode()).hexdigest() for i in range(3)
    ]


def test_case_17_absent_required_path_voids_the_unit_optional_does_not(node: Node) -> None:
    node.add("/dev/a")
    required = node.vendor(rule("x", "/dev/a", "/dev/c")).scan()
    assert devices(required, "devherd.io/x") == {}
    assert [resource.name for resource in required.resources] == ["devherd.io/x"]
    assert "/dev/c: nothing matches now" in reasons(required)
    optional = node.vendor(rule("x", "/dev/a", {"path": "/dev/c", "optional": True})).scan()
    assert "/dev/c: nothing matches now; it is optional" in reasons(optional)
    assert only(optional, "devherd.io/x").id == hashlib.sha1(b"0/dev/a").hexdigest()
    assert [n.host_path for n in only(optional, "devherd.io/x").parts.nodes] == ["/dev/a"]
    none = node.vendor(rule("x", {"path": "/dev/c", "optional": True}, {"path": "/dev/d", "optional": True})).scan()
    assert devices(none, "devherd.io/x") == {}


def test_every_pattern_without_a_match_is_named_not_only_the_first(node: Node) -> None:
    inventory = node.vendor(rule("x", "/dev/a*", "/dev/c"), {"groups": [{"match": "video[0-9]+"}]}).scan()
    assert [(skipped.what, skipped.rule) for skipped in inventory.skipped] == [
        ("/dev/a*", "devices[0] x"),
        ("/dev/c", "devices[0] x"),
        ("video[0-9]+", "devices[1]"),
    ]
    assert all(skipped.reason.startswith("nothing matches now") for skipped in inventory.skipped)


def test_case_18_type_mount_gives_a_mount_and_no_device(node: Node) -> None:
    node.folder("/run/pulse")
    inventory = node.vendor(rule("pulse", {"path": "/run/pulse", "type": "Mount", "readOnly": True})).scan()
    device = only(inventory, "devherd.io/pulse")
    assert device.parts.nodes == ()
    assert device.parts.mounts == (Mount("/run/pulse", "/run/pulse", True),)
    assert device.things == ()


def test_case_22_regex_names_its_resource_and_is_anchored_unless_asked(node: Node) -> None:
    node.add("/dev/net/tun", "c 10:200")
    node.add("/dev/video0")
    node.add("/dev/xvideo0")
    vendor = node.vendor(
        {"groups": [{"match": "^net/tun$", "count": 2}]},
        {"groups": [{"match": "video0"}]},
        domain="smarter-devices",
    )
    inventory = vendor.scan()
    assert sorted(resource.name for resource in inventory.resources) == [
        "smarter-devices/net_tun",
        "smarter-devices/video0",
    ]
    assert list(devices(inventory, "smarter-devices/net_tun")) == ["0", "1"]
    assert devices(inventory, "smarter-devices/net_tun")["0"].parts.nodes[0].permissions == "rw"
    asked = node.vendor({"groups": [{"match": "video0", "anchored": False}]}).scan()
    assert sorted(resource.name for resource in asked.resources) == ["devherd.io/video0", "devherd.io/xvideo0"]


def test_case_23_removed_is_gone_and_added_is_listed_within_one_scan(node: Node) -> None:
    node.add("/dev/ttyUSB0", "c 188:0", "/devices/usb/1-1/ttyUSB0")
    node.add("/dev/ttyUSB1", "c 188:1", "/devices/usb/1-2/ttyUSB1")
    vendor = node.vendor(rule("serial", "/dev/ttyUSB*"))
    before = devices(vendor.scan(), "devherd.io/serial")
    node.remove("/dev/ttyUSB1")
    after = vendor.scan()
    assert len(devices(after, "devherd.io/serial")) == 1
    (evidence,) = after.evidence
    assert (evidence.thing, evidence.kind, evidence.bad) == ("sys:/devices/usb/1-2/ttyUSB1", "gone", True)
    assert evidence.reason == "/dev/ttyUSB1 is gone"
    assert vendor.scan().evidence == after.evidence
    node.add("/dev/ttyUSB1", "c 188:1")
    node.add("/dev/ttyUSB2", "c 188:2")
    again = vendor.scan()
    assert before.keys() < devices(again, "devherd.io/serial").keys()
    assert [(each.thing, each.bad) for each in again.evidence] == [("sys:/devices/usb/1-2/ttyUSB1", False)]


def test_case_23_a_hint_comes_at_once_when_a_device_appears_or_goes(node: Node) -> None:
    vendor = node.vendor(rule("serial", "/dev/serial/by-id/*", shared=True), rule("x", "/dev/x*", shared=True))
    (source,) = vendor.sources()

    def hinted() -> bool:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if select.select([source], [], [], 0.5)[0] and source.drain():
                return True
        return False

    started = time.monotonic()
    node.add("/dev/x0")
    assert hinted()
    node.link("/dev/serial/by-id/usb-1", "../../x0")
    assert hinted()
    assert list(devices(vendor.scan(), "devherd.io/x"))
    node.remove("/dev/x0")
    assert hinted()
    node.renumber("/dev/x0", "c 240:77")
    assert hinted()
    assert time.monotonic() - started < 4
    source.close()


def test_case_25_a_match_resource_is_withdrawn_with_its_node_a_named_one_stays_empty(node: Node) -> None:
    node.add("/dev/video0")
    vendor = node.vendor({"groups": [{"match": "video[0-9]+"}]}, rule("cam", "/dev/video9"))
    assert [resource.name for resource in vendor.scan().resources] == ["devherd.io/cam", "devherd.io/video0"]
    node.remove("/dev/video0")
    assert [resource.name for resource in vendor.scan().resources] == ["devherd.io/cam"]


def test_link_is_resolved_on_the_host_kept_in_the_container_and_keys_the_id(node: Node) -> None:
    node.add("/dev/ttyUSB3", "c 188:3")
    node.link("/dev/serial/by-id/usb-Acme_1", "../../ttyUSB3")
    vendor = node.vendor(rule("acme", "/dev/serial/by-id/usb-Acme*"))
    device = only(vendor.scan(), "devherd.io/acme")
    assert device.parts.nodes[0].host_path == "/dev/ttyUSB3"
    assert device.parts.nodes[0].container_path == "/dev/serial/by-id/usb-Acme_1"
    node.remove("/dev/ttyUSB3")
    assert devices(vendor.scan(), "devherd.io/acme") == {}
    node.add("/dev/ttyUSB5", "c 188:5")
    node.remove("/dev/serial/by-id/usb-Acme_1")
    node.link("/dev/serial/by-id/usb-Acme_1", "../../ttyUSB5")
    replugged = only(vendor.scan(), "devherd.io/acme")
    assert replugged.id == device.id
    assert replugged.parts.nodes[0].host_path == "/dev/ttyUSB5"


def test_a_node_that_leads_to_another_device_is_said_to(node: Node) -> None:
    node.add("/dev/x4", "c 240:4")
    vendor = node.vendor(rule("x", "/dev/x*"))
    vendor.scan()
    node.renumber("/dev/x4", "c 240:5")
    inventory = vendor.scan()
    assert only(inventory, "devherd.io/x").things == ("c:240:5",)
    assert [(e.thing, e.reason) for e in inventory.evidence] == [("c:240:4", "/dev/x4 leads to another device now")]


def test_a_unit_that_loses_a_partner_does_not_call_the_rest_gone(node: Node) -> None:
    node.add("/dev/a", "c 240:1")
    node.add("/dev/b", "c 240:2")
    vendor = node.vendor(rule("pair", "/dev/a", "/dev/b"))
    vendor.scan()
    node.remove("/dev/b")
    assert {each.thing: each.bad for each in vendor.scan().evidence} == {"c:240:1": False, "c:240:2": True}


def test_numa_comes_from_sysfs_or_from_the_rule(node: Node) -> None:
    node.add("/dev/x0", "c 240:0", "/devices/pci0000:80/0000:80:01.0/x/x0")
    node.add("/dev/x1", "c 240:1", "/devices/virtual/x/x1")
    (node.root / "sys/devices/pci0000:80/0000:80:01.0/numa_node").write_text("1\n")
    inventory = node.vendor(
        rule("known", "/dev/x0", shared=True),
        rule("unknown", "/dev/x1", shared=True),
        rule("fixed", "/dev/x1", shared=True, numa=[3, 0]),
        rule("none", "/dev/x0", shared=True, numa=[]),
    ).scan()
    told = {resource.name: resource.devices[0].numa for resource in inventory.resources}
    assert told == {
        "devherd.io/known": (1,),
        "devherd.io/unknown": (),
        "devherd.io/fixed": (0, 3),
        "devherd.io/none": (),
    }


def test_placeholders_reach_env_annotations_and_cdi(node: Node) -> None:
    node.add("/dev/x0")
    node.add("/dev/x1")
    inventory = node.vendor(
        rule(
            "x",
            {"path": "/dev/x*", "mountPath": "/dev/inside/"},
            count=2,
            env={"X_PATH": "{path}", "X_COPY": "{copy}", "PLAIN": "{{}}"},
            annotations={"example.org/x": "{name} {index} {host_path}"},
            cdi=["example.org/x={name}"],
        )
    ).scan()
    found = list(devices(inventory, "devherd.io/x").values())
    assert [device.parts.env["X_COPY"] for device in found] == ["0", "1", "0", "1"]
    assert found[2].parts.env == {"X_PATH": "/dev/inside/x1", "X_COPY": "0", "PLAIN": "{}"}
    assert found[2].parts.annotations == {"example.org/x": "x1 1 /dev/x1"}
    assert found[2].parts.cdi == ("example.org/x=x1",)
    answer = compose([found[0].parts, found[2].parts])
    assert answer.env["X_PATH"] == "/dev/inside/x0,/dev/inside/x1"


def test_a_folder_of_device_nodes_is_one_unit(node: Node) -> None:
    for name in ("controlC1", "pcmC1D0c"):
        node.add(f"/dev/snd/{name}")
    node.link("/dev/snd/by-path/card", "../controlC1")
    inventory = node.vendor(rule("sound", {"path": "/dev/snd", "mountPath": "/dev/audio"})).scan()
    assert [(n.host_path, n.container_path) for n in only(inventory, "devherd.io/sound").parts.nodes] == [
        ("/dev/snd/controlC1", "/dev/audio/controlC1"),
        ("/dev/snd/pcmC1D0c", "/dev/audio/pcmC1D0c"),
    ]


def test_extra_mounts_come_with_each_unit_and_are_required(node: Node) -> None:
    node.add("/dev/x0")
    node.folder("/opt/lib")
    mounts = [{"hostPath": "/opt/lib", "containerPath": "/lib/x"}, {"hostPath": "/opt/none", "optional": True}]
    inventory = node.vendor(rule("x", "/dev/x0", mounts=mounts)).scan()
    assert only(inventory, "devherd.io/x").parts.mounts == (Mount("/lib/x", "/opt/lib", True),)
    without = node.vendor(rule("x", "/dev/x0", mounts=[{"hostPath": "/opt/none"}])).scan()
    assert devices(without, "devherd.io/x") == {}
    assert "/opt/none is not there" in reasons(without)


def test_claims_are_exclusive_unless_count_limit_or_the_rule_shares(node: Node) -> None:
    for name in ("a", "b0", "b1", "c", "d"):
        node.add(f"/dev/{name}")
    inventory = node.vendor(
        rule("pair", {"path": "/dev/a", "limit": 2}, "/dev/b*"),
        rule("counted", "/dev/c", count=2),
        rule("shared", "/dev/d", shared=True),
    ).scan()
    modes = {
        node_.host_path: claim.mode
        for resource in inventory.resources
        for device in resource.devices
        for node_, claim in zip(device.parts.nodes, device.claims, strict=True)
    }
    assert modes == {
        "/dev/a": "shared",
        "/dev/b0": "exclusive",
        "/dev/b1": "exclusive",
        "/dev/c": "shared",
        "/dev/d": "shared",
    }


def test_the_same_device_in_two_rules_is_a_conflict_that_names_both(node: Node) -> None:
    node.add("/dev/ttyUSB0")
    node.link("/dev/alias", "ttyUSB0")
    inventory = node.vendor(rule("one", "/dev/ttyUSB0"), rule("two", "/dev/alias")).scan()
    assert len(devices(inventory, "devherd.io/one")) == 1
    assert devices(inventory, "devherd.io/two") == {}
    (skipped,) = inventory.skipped
    assert skipped.rule == "devices[1] two"
    assert "devherd.io/one" in skipped.reason
    assert "devices[0] one" in skipped.reason
    shared = node.vendor(rule("one", "/dev/ttyUSB0", shared=True), rule("two", "/dev/alias", shared=True)).scan()
    assert len(devices(shared, "devherd.io/one")) == len(devices(shared, "devherd.io/two")) == 1


def test_two_groups_with_the_same_path_do_not_collapse_silently(node: Node) -> None:
    node.add("/dev/x0")
    twice = {"name": "x", "groups": [{"paths": [{"path": "/dev/x0"}]}, {"count": 2, "paths": [{"path": "/dev/x0"}]}]}
    inventory = node.vendor(twice).scan()
    assert len(devices(inventory, "devherd.io/x")) == 1
    assert "use its count" in reasons(inventory)


def test_two_paths_with_one_place_in_the_container_are_refused(node: Node) -> None:
    node.add("/dev/a")
    node.add("/dev/b")
    both = [{"path": f"/dev/{name}", "mountPath": "/dev/x"} for name in "ab"]
    inventory = node.vendor(rule("x", *both)).scan()
    assert devices(inventory, "devherd.io/x") == {}
    assert "/dev/x" in reasons(inventory)


def test_a_bad_match_costs_no_other(node: Node) -> None:
    node.add("/dev/x0")
    (node.root / "dev/x1").touch()
    node.link("/dev/x2", "nowhere")
    node.folder("/dev/x3")
    node.add("/dev/x4")
    os.mkfifo(node.root / "dev/x5")
    (node.root / os.fsdecode(b"dev/x\xff")).touch()
    (node.root / os.fsdecode(b"dev/x\xfe")).symlink_to("x0")
    node.add("/dev/y")
    inventory = node.vendor(rule("x", "/dev/x*"), rule("y", "/dev/y")).scan()
    assert [d.parts.nodes[0].host_path for d in devices(inventory, "devherd.io/x").values()] == ["/dev/x0", "/dev/x4"]
    assert len(devices(inventory, "devherd.io/y")) == 1
    assert "/dev/x1 is a plain file, no device node" in reasons(inventory)
    assert "/dev/x3 is a folder without device nodes" in reasons(inventory)
    msgspec.msgpack.encode(inventory)


def test_a_rule_that_cannot_work_costs_no_other_even_when_it_got_past_the_check(node: Node) -> None:
    node.add("/dev/y")
    config = msgspec.convert(
        {"devices": [rule("bad", "/dev/[x"), {"groups": [{"match": "("}]}, rule("y", "/dev/y")]}, Config
    )
    inventory = make(config, node.host).scan()
    assert [resource.name for resource in inventory.resources] == ["devherd.io/y"]
    assert [skipped.what for skipped in inventory.skipped] == [
        "devices[0].groups[0].paths[0].path",
        "devices[1].groups[0].match",
    ]


def test_dangerous_things_behind_harmless_names_are_refused(node: Node) -> None:
    node.add("/dev/sda", "b 8:0")
    node.add("/dev/mem", "c 1:1")
    node.add("/dev/x0", "b 259:0")
    node.add("/dev/loop0", "b 7:0")
    node.link("/dev/data", "sda")
    node.link("/dev/more", "mem")
    node.folder("/etc/kubernetes")
    node.link("/srv/config", "/etc/kubernetes")
    node.folder("/var/lib/kubelet/pods")
    node.link("/srv/pods", "../var/lib/kubelet/pods")
    rules = [
        rule("disk", "/dev/data"),
        rule("memory", "/dev/more"),
        rule("nvme", "/dev/x0"),
        rule("loop", "/dev/loop0"),
        rule("config", {"path": "/srv/config", "type": "Mount", "readOnly": True}),
        rule("pods", "/dev/loop0", shared=True, mounts=[{"hostPath": "/srv/pods"}]),
    ]
    inventory = node.vendor(*rules).scan()
    assert [resource.name for resource in inventory.resources if resource.devices] == ["devherd.io/loop"]
    for text in ("/dev/sda is a raw disk", "/dev/mem is the host's memory", "/dev/x0 is a raw disk", "/etc/kubernetes"):
        assert text in reasons(inventory)
    assert "/var/lib/kubelet" in reasons(inventory)
    allowed = node.vendor(*({**each, "dangerous": True, "shared": True} for each in rules)).scan()
    assert sum(len(resource.devices) for resource in allowed.resources) == len(rules)


def test_the_kubelets_folder_is_private_wherever_a_distribution_puts_it(node: Node) -> None:
    paths = msgspec.structs.replace(node.host.paths, device_plugins=f"{node.root}/srv/k/device-plugins")
    node.host = Host(paths)
    node.folder("/srv/k/device-plugins/devherd")
    inventory = node.vendor(rule("x", {"path": "/srv/k", "type": "Mount"})).scan()
    assert devices(inventory, "devherd.io/x") == {}
    assert "/srv/k/device-plugins" in reasons(inventory)


def test_match_names_that_clash_or_cannot_be_are_skipped_with_a_reason(node: Node) -> None:
    for path in ("/dev/net_tun", "/dev/net/tun", "/dev/-x", "/dev/" + "n" * 64):
        node.add(path)
    inventory = node.vendor({"groups": [{"match": "net.tun"}, {"match": "-x"}, {"match": "n{64}"}]}).scan()
    assert [resource.name for resource in inventory.resources] == ["devherd.io/net_tun"]
    assert "already a resource of rule devices[0]" in reasons(inventory)
    assert "no resource name" in reasons(inventory)
    assert "at most 63" in reasons(inventory)


def test_a_named_match_rule_pools_what_it_finds(node: Node) -> None:
    node.add("/dev/video0")
    node.add("/dev/video1")
    inventory = node.vendor({"name": "example.org/camera", "groups": [{"match": "video[0-9]+"}]}).scan()
    assert list(devices(inventory, "example.org/camera")) == [
        hashlib.sha1(f"0/dev/video{i}".encode()).hexdigest() for i in range(2)
    ]


def test_no_rules_is_absent_and_rules_without_hardware_are_not(node: Node) -> None:
    assert "no rules" in node.vendor().scan().absent
    assert node.vendor().sources() == ()
    assert node.vendor(rule("x", "/dev/none")).scan().absent == ""


def test_many_skipped_matches_are_counted_not_listed(node: Node) -> None:
    for number in range(300):
        (node.root / f"dev/x{number}").touch()
    inventory = node.vendor(rule("x", "/dev/x*")).scan()
    assert len(inventory.skipped) == 201
    assert inventory.skipped[-1].what == "100 more"


def test_ids_do_not_depend_on_neighbours_or_the_order_of_the_folder(node: Node) -> None:
    vendor = node.vendor(rule("x", "/dev/x*"))
    node.add("/dev/x5")
    first = only(vendor.scan(), "devherd.io/x")
    for number in (9, 1, 3):
        node.add(f"/dev/x{number}")
    for _ in range(20):
        assert devices(vendor.scan(), "devherd.io/x")[first.id].parts == first.parts


def test_ten_thousand_devices_within_a_second(node: Node) -> None:
    lines = []
    for number in range(10_000):
        (node.root / f"dev/x{number}").touch()
        (node.root / f"sys/dev/char/240:{number}").symlink_to(f"../../devices/virtual/x/x{number}")
        lines.append(f"/dev/x{number} c 240 {number}\n")
    (node.root / "rdev.table").write_text("".join(lines))
    vendor = node.vendor(rule("x", "/dev/x*"))
    seconds = []
    for _ in range(3):  # the processor time of the best of three, so that busy neighbours do not count
        started = time.process_time()
        inventory = vendor.scan()
        seconds.append(time.process_time() - started)
    assert len(devices(inventory, "devherd.io/x")) == 10_000
    assert min(seconds) < 1.0


def test_the_real_dev_is_read_as_it_is() -> None:
    host = Host(Paths())
    rules = [
        rule("null", "/dev/null"),
        rule("fuse", {"path": "/dev/fuse", "optional": True}, count=4),
        rule("tun", {"path": "/dev/net/tun", "optional": True}, count=4),
        rule("loop", {"path": "/dev/loop[0-9]*", "optional": True, "permissions": "r"}),
    ]
    config = msgspec.convert({"devices": rules}, Config)
    assert validate(config) == []
    inventory = make(config, host).scan()
    null = only(inventory, "devherd.io/null").parts.nodes[0]
    assert (null.host_path, null.kind, null.major, null.minor) == ("/dev/null", "c", 1, 3)
    for name, path, number in (("fuse", "/dev/fuse", (10, 229)), ("tun", "/dev/net/tun", (10, 200))):
        if os.path.exists(path):
            found = devices(inventory, f"devherd.io/{name}")
            assert len(found) == 4
            first = next(iter(found.values())).parts.nodes[0]
            assert (first.major, first.minor) == number
    loops = [name for name in os.listdir("/dev") if name.startswith("loop") and name[4:].isdecimal()]
    assert len(devices(inventory, "devherd.io/loop")) == len(loops)


def test_manifest_is_light_and_leads_to_the_vendor() -> None:
    from devherd.vendor import load_object

    assert MANIFEST.validate is not None
    vendor = load_object(MANIFEST.vendor)(Config(), Host(Paths()))
    assert isinstance(vendor, Watches)
    assert not isinstance(vendor, Checks)
