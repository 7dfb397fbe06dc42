"""What would hand the node over is refused, under whatever name; what is harmless is not."""

from __future__ import annotations

import posixpath
import re

import pytest
from devherd_generic import dangerous
from devherd_generic.globs import parse
from hypothesis import given
from hypothesis import strategies as st

PRIVATE = [
    "/proc",
    "/etc/shadow",
    "/etc/kubernetes",
    "/run/containerd/containerd.sock",
    "/run/docker.sock",
    "/run/crio/crio.sock",
    "/var/lib/kubelet",
    "/run/dbus/system_bus_socket",
]
WRITABLE = ["/sys", "/etc", "/usr/bin", "/boot", "/lib/modules", "/root"]
NODES = ["/dev/mem", "/dev/sda", "/dev/sda1", "/dev/vda", "/dev/nvme0n1", "/dev/dm-0", "/dev/md0", "/dev/mmcblk0"]


@pytest.mark.parametrize("path", [*PRIVATE, "/", "/etc", "/run", "/var", "/var/lib", "/var/run/docker.sock", "/dev"])
def test_private_places_are_refused_even_read_only(path: str) -> None:
    assert dangerous.mount(path, read_only=True)
    assert dangerous.mount_pattern(parse(path), read_only=True)


@pytest.mark.parametrize("path", WRITABLE)
def test_system_places_are_refused_unless_read_only(path: str) -> None:
    assert "readOnly: true" in dangerous.mount(path, read_only=False) or path in ("/etc", "/root")


@pytest.mark.parametrize("path", ["/sys", "/sys/class", "/etc/localtime", "/usr/lib/firmware", "/boot", "/lib/modules"])
def test_system_places_may_be_read(path: str) -> None:
    assert dangerous.mount(path, read_only=True) == ""


@pytest.mark.parametrize(
    "path", ["/run/pulse", "/opt/x", "/srv", "/tmp", "/dev/shm", "/home/user/data", "/run/dockerx", "/etcx"]
)
def test_other_places_may_be_mounted(path: str) -> None:
    assert dangerous.mount(path, read_only=False) == ""
    assert dangerous.mount_pattern(parse(path), read_only=False) == ""


@given(st.sampled_from(PRIVATE), st.lists(st.sampled_from("abc"), max_size=3), st.booleans())
def test_anything_below_or_above_a_private_place_is_refused(path: str, below: list[str], read_only: bool) -> None:
    deeper = posixpath.join(path, *below)
    assert dangerous.mount(deeper, read_only)
    while path != "/":
        assert dangerous.mount(path, read_only)
        path = posixpath.dirname(path)


@given(st.data())
def test_a_glob_made_from_a_dangerous_mount_is_refused(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([*PRIVATE, *WRITABLE]))
    assert dangerous.mount_pattern(parse(_blurred(data, path)), read_only=False)


@given(st.data())
def test_a_glob_made_from_a_dangerous_node_is_refused(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(NODES))
    assert dangerous.node_pattern(parse(_blurred(data, path)))


def _blurred(data: st.DataObject, path: str) -> str:
    """The path with some characters replaced by wildcards that still match them."""
    blurred = ""
    for char in path:
        ways = [char] if char == "/" else [char, "?", f"[{char}]" if char not in "-^]" else char, "[^~]"]
        blurred += data.draw(st.sampled_from(ways))
    return blurred


@pytest.mark.parametrize(
    "text", ["/dev/*", "/dev/s*", "/dev/disk/by-id/*", "/dev/mapper/*", "/dev/disk", "/dev", "/dev/xv*"]
)
def test_globs_that_could_reach_a_disk_or_memory_are_refused(text: str) -> None:
    assert dangerous.node_pattern(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "/dev/null",
        "/dev/fuse",
        "/dev/net/tun",
        "/dev/loop*",
        "/dev/loop[0-9]*",
        "/dev/ttyUSB*",
        "/dev/tty*",
        "/dev/video*",
        "/dev/dri/renderD*",
        "/dev/dri/*",
        "/dev/snd",
        "/dev/snd/*",
        "/dev/serial/by-id/*",
        "/dev/bus/usb/*/*",
        "/dev/vfio/*",
        "/dev/kvm",
        "/dev/x*",
        "/dev/infiniband/uverbs*",
        "/dev/accel/*",
        "/srv/dev/*",
    ],
)
def test_everyday_devices_are_not_refused(text: str) -> None:
    assert dangerous.node_pattern(parse(text)) == ""


@pytest.mark.parametrize("text", [".*", "sd.*", "nvme.*", "[a-z]+", "mem|video.*", "mapper/.*"])
def test_expressions_that_could_reach_a_disk_or_memory_are_refused(text: str) -> None:
    assert dangerous.node_expression(re.compile(text), anchored=True)


def test_an_expression_is_judged_as_it_is_anchored() -> None:
    assert dangerous.node_expression(re.compile("em"), anchored=True) == ""
    assert dangerous.node_expression(re.compile("em"), anchored=False)


@pytest.mark.parametrize("text", ["video[0-9]+", "net/tun", "tty(S|USB|ACM)[0-9]+", "x.*"])
def test_everyday_expressions_are_not_refused(text: str) -> None:
    assert dangerous.node_expression(re.compile(text), anchored=True) == ""


@pytest.mark.parametrize(
    ("kind", "major", "minor"),
    [("c", 1, 1), ("c", 1, 4), ("b", 8, 0), ("b", 259, 3), ("b", 253, 0), ("c", 21, 0), ("c", 10, 236), ("c", 202, 1)],
)
def test_numbers_are_refused_under_any_name(kind: str, major: int, minor: int) -> None:
    assert dangerous.node("/dev/innocent", kind, major, minor)


@pytest.mark.parametrize(
    ("kind", "major", "minor"), [("c", 1, 3), ("c", 10, 229), ("c", 10, 200), ("b", 7, 0), ("c", 188, 0), ("c", 240, 1)]
)
def test_harmless_numbers_are_not_refused(kind: str, major: int, minor: int) -> None:
    assert dangerous.node("/dev/innocent", kind, major, minor) == ""


def test_nvme_control_nodes_are_refused_by_name() -> None:
    assert dangerous.node("/dev/nvme0", "c", 241, 0)
    assert dangerous.node("/dev/bsg/0:0:0:0", "c", 245, 0)


def test_a_node_s_private_folders_count_too() -> None:
    assert dangerous.mount("/srv/k/device-plugins/x", True, ("/srv/k/device-plugins",))
    assert dangerous.mount("/srv/k", True, ("/srv/k/device-plugins",))
    assert dangerous.mount("/srv/other", True, ("/srv/k/device-plugins",)) == ""


@pytest.mark.parametrize(
    "path", ["/home", "/home/u", "/home/u/.ssh", "/home/u/.ssh/id_rsa", "/run/user", "/run/user/0/bus", "/run/secrets"]
)
def test_people_s_and_services_secrets_may_not_be_mounted(path: str) -> None:
    assert dangerous.mount(path, read_only=True)
    assert dangerous.mount_pattern(parse(path), read_only=True)


@pytest.mark.parametrize("text", ["/home/*", "/h*", "/home/*/.s*", "/home/u/*", "/home/*/*", "/home/?/.ssh/id*"])
def test_globs_that_could_reach_someone_s_keys_are_refused(text: str) -> None:
    assert dangerous.mount_pattern(parse(text), read_only=True)


@pytest.mark.parametrize("text", ["/home/*/data", "/home/u/data/*", "/home/[u/data", "/homes/*"])
def test_what_else_is_in_a_home_may_be_mounted(text: str) -> None:
    if "[u" in text:
        assert dangerous.mount(text, read_only=False) == ""
    else:
        assert dangerous.mount_pattern(parse(text), read_only=False) == ""


@pytest.mark.parametrize("path", ["/var/log", "/var/log/pods", "/run/udev", "/run/udev/data"])
def test_logs_and_udev_s_data_may_be_read_not_written(path: str) -> None:
    assert "readOnly: true" in dangerous.mount(path, read_only=False)
    assert dangerous.mount(path, read_only=True) == ""


RARE = ["kmsg", "console", "drbd0", "bcache0", "dax0.0", "oldmem", "crash", "root", "block/8:0", "userfaultfd"]


@pytest.mark.parametrize("name", [*RARE, "btrfs-control", "char/1:1", "zfs"])
def test_rarer_nodes_that_hand_the_node_over_are_refused_by_name(name: str) -> None:
    assert dangerous.node_pattern(parse(f"/dev/{name}"))
    assert dangerous.node_pattern(parse(f"/dev/{name[:-1]}?"))


@pytest.mark.parametrize("name", ["kmsg", "dax0.0", "drbd0", "bcache0", "btrfs-control", "userfaultfd", "oldmem"])
def test_rarer_nodes_are_refused_by_expression(name: str) -> None:
    assert dangerous.node_expression(re.compile(name[:-1] + "."), anchored=True)


@pytest.mark.parametrize(("path", "number"), [("kmsg", (1, 11)), ("console", (5, 1)), ("x", (1, 12)), ("y", (10, 234))])
def test_rarer_nodes_are_refused_by_number(path: str, number: tuple[int, int]) -> None:
    assert dangerous.node(f"/dev/{path}", "c", *number)


@pytest.mark.parametrize("name", ["dax0.0", "crash", "userfaultfd", "zfs"])
def test_nodes_without_a_fixed_number_are_refused_by_name(name: str) -> None:
    assert dangerous.node(f"/dev/{name}", "c", 250, 3)


@pytest.mark.parametrize("path", ["/proc", "/dev", "/etc/shadow", "/run/user", "/sys", "/home"])
def test_no_reason_says_that_a_thing_is_itself(path: str) -> None:
    for reason in (dangerous.mount(path, False), dangerous.mount_pattern(parse(path), False)):
        assert reason.startswith(path)
        assert reason.count(path) == 1


def test_a_reason_names_the_place_that_another_path_leads_to() -> None:
    assert dangerous.mount("/var/run/dbus", True) == "/var/run/dbus is /run/dbus, the host's message bus"
    assert dangerous.mount("/proc/1", True) == "/proc/1 is in /proc, the host's processes and kernel settings"
    assert dangerous.mount("/run", True).startswith("/run holds /run/")
