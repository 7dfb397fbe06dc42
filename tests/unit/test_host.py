"""The host under another root: nodes, links, things, NUMA, PCI."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import string
import tempfile
from pathlib import Path

import pytest
from devherd.host import Host, View
from devherd.host.chardev import parse_rdev_table
from devherd.host.pci import parse_address, pci_device, pci_devices
from devherd.host.sysfs import Sysfs
from devherd.settings import Paths
from hypothesis import given
from hypothesis import strategies as st


def fake(tmp_path: Path) -> Host:
    for name in ("dev", "sys/dev/char", "sys/dev/block", "proc", "run"):
        (tmp_path / name).mkdir(parents=True)
    root = str(tmp_path)
    return Host(
        Paths(root=root, sys=f"{root}/sys", dev=f"{root}/dev", proc=f"{root}/proc", rdev_table=f"{root}/run/rdev")
    )


def add_node(host: Host, path: str, kind: str, major: int, minor: int, device: str = "") -> None:
    real = Path(host.path(path))
    real.parent.mkdir(parents=True, exist_ok=True)
    real.touch()
    with open(host.paths.rdev_table, "a") as table:
        table.write(f"{path} {kind} {major} {minor}\n")
    if device:
        Path(host.path("/sys" + device)).mkdir(parents=True, exist_ok=True)
        link = Path(host.path(f"/sys/dev/{'char' if kind == 'c' else 'block'}/{major}:{minor}"))
        link.unlink(missing_ok=True)
        link.symlink_to("../.." + device)


def test_logical_paths_map_to_their_own_settings() -> None:
    host = Host(Paths(root="/n", sys="/n/s", dev="/elsewhere/dev", proc="/p"))
    assert host.path("/dev/x") == "/elsewhere/dev/x"
    assert host.path("/dev") == "/elsewhere/dev"
    assert host.path("/devices") == "/n/devices"
    assert host.path("/sys/class") == "/n/s/class"
    assert host.path("/run/x.sock") == "/n/run/x.sock"
    assert host.path("/") == "/n"


@given(st.lists(st.text(string.ascii_lowercase + ".-", min_size=1).filter(lambda p: p not in (".", "..")), max_size=5))
def test_logical_is_the_inverse_of_path(parts: list[str]) -> None:
    host = Host(Paths(root="/n", sys="/n/sys", dev="/elsewhere/dev", proc="/n/proc"))
    logical = "/" + "/".join(parts)
    assert host.logical(host.path(logical)) == logical


def test_real_null_is_a_node_and_a_thing_in_sysfs() -> None:
    host = Host(Paths())
    node = host.node("/dev/null")
    assert node == ("/dev/null", "c", 1, 3)
    assert host.thing_of("c", 1, 3) in ("sys:/devices/virtual/mem/null", "c:1:3")


def test_table_makes_plain_files_nodes_and_is_read_again(tmp_path: Path) -> None:
    host = fake(tmp_path)
    add_node(host, "/dev/x4", "c", 240, 4)
    (tmp_path / "dev/plain").touch()
    assert host.node("/dev/x4") == ("/dev/x4", "c", 240, 4)
    assert host.node("/dev/plain") is None
    assert host.node("/dev/gone") is None
    replacement = tmp_path / "run/new"
    replacement.write_text("/dev/x4 c 240 5\n")
    replacement.rename(host.paths.rdev_table)
    assert host.node("/dev/x4") == ("/dev/x4", "c", 240, 5)
    os.unlink(host.paths.rdev_table)
    assert host.node("/dev/x4") is None


@given(st.text())
def test_any_text_is_a_table(text: str) -> None:
    parse_rdev_table(text)


def test_table_ignores_comments_and_odd_lines() -> None:
    assert parse_rdev_table("# head\n/dev/a c 1 2 # tail\n/dev/b x 1 2\n/dev/c b 1\n\n/dev/d b 7 0") == {
        "/dev/a": ("c", 1, 2),
        "/dev/d": ("b", 7, 0),
    }


def test_thing_has_no_mount_prefix_and_falls_back_to_the_number(tmp_path: Path) -> None:
    host = fake(tmp_path)
    add_node(host, "/dev/x0", "c", 240, 0, "/devices/pci0000:00/0000:00:01.0/x/x0")
    add_node(host, "/dev/l0", "b", 7, 0, "/devices/virtual/block/loop0")
    assert host.thing_of("c", 240, 0) == "sys:/devices/pci0000:00/0000:00:01.0/x/x0"
    assert host.thing_of("b", 7, 0) == "sys:/devices/virtual/block/loop0"
    assert host.thing_of("c", 240, 9) == "c:240:9"


def test_thing_of_an_absolute_link_and_of_one_that_leaves_sysfs(tmp_path: Path) -> None:
    host = fake(tmp_path)
    (tmp_path / "sys/devices/odd").mkdir(parents=True)
    (tmp_path / "sys/dev/char/9:1").symlink_to(tmp_path / "sys/devices/odd")
    (tmp_path / "sys/dev/char/9:2").symlink_to("/etc")
    (tmp_path / "sys/dev/char/9:3").symlink_to("../../devices/odd/../../../../../etc")
    assert host.thing_of("c", 9, 1) == "sys:/devices/odd"
    assert host.thing_of("c", 9, 2) == "c:9:2"
    assert host.thing_of("c", 9, 3) == "c:9:3"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("dev/alias", "x0"),
        ("dev/serial/by-id/usb-x", "../../x0"),
        ("dev/absolute", "/dev/x0"),
        ("dev/round/about", "../serial/../x0"),
        ("dev/chain", "alias2"),
    ],
)
def test_links_are_followed_inside_the_root(tmp_path: Path, link: str, target: str) -> None:
    host = fake(tmp_path)
    add_node(host, "/dev/x0", "c", 240, 0)
    (tmp_path / "dev/serial").mkdir()
    (tmp_path / "dev/alias2").symlink_to("x0")
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(target)
    assert host.node("/" + link) == ("/dev/x0", "c", 240, 0)


def test_a_link_into_the_real_folder_is_logical_too(tmp_path: Path) -> None:
    host = fake(tmp_path)
    add_node(host, "/dev/x0", "c", 240, 0)
    (tmp_path / "dev/alias").symlink_to(tmp_path / "dev/x0")
    assert host.node("/dev/alias") == ("/dev/x0", "c", 240, 0)


def test_parent_of_a_linked_folder_is_the_folder_it_leads_to(tmp_path: Path) -> None:
    host = fake(tmp_path)
    add_node(host, "/dev/real/x0", "c", 240, 0)
    add_node(host, "/dev/real/deep/x1", "c", 240, 1)
    (tmp_path / "dev/short").symlink_to("real/deep")
    (tmp_path / "dev/up").symlink_to("short/../x0")
    assert host.node("/dev/up") == ("/dev/real/x0", "c", 240, 0)
    assert host.node("/dev/short/x1") == ("/dev/real/deep/x1", "c", 240, 1)


targets = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "a/b", "a/c", "b/a", "b/c/a"]), targets, max_size=5))
def test_links_lead_where_the_kernel_says(links: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="dh") as root:
        top = os.path.join(os.path.realpath(root), "top")
        for folder in ("a", "b/c", "c"):
            os.makedirs(f"{top}/{folder}")
        for path, target in links.items():
            with contextlib.suppress(OSError):
                os.symlink(target, f"{top}/{path}")
            with contextlib.suppress(OSError):
                os.rmdir(f"{top}/{path}")
                os.symlink(target, f"{top}/{path}")
        view = Host(Paths(root=top)).view()
        for parts in itertools.product(["a", "b", "c"], repeat=3):
            path = "/".join(parts)
            real = os.path.realpath(f"{top}/{path}")
            if not real.startswith(top + "/"):
                continue  # out of the root, where ours stays at its top as in a chroot
            if os.path.exists(f"{top}/{path}"):
                assert view.entry("/" + path) == (real[len(top) :], "dir", 0, 0), path
            else:
                assert view.entry("/" + path).type == "missing", path


def test_loops_and_dangling_links_are_missing(tmp_path: Path) -> None:
    host = fake(tmp_path)
    (tmp_path / "dev/a").symlink_to("b")
    (tmp_path / "dev/b").symlink_to("a")
    (tmp_path / "dev/self").symlink_to("self/x")
    (tmp_path / "dev/nowhere").symlink_to("nothing")
    view = host.view()
    for path in ("/dev/a", "/dev/self", "/dev/self/y", "/dev/nowhere", "/dev/a/b", "/dev/x\0y", "/dev/" + "n" * 5000):
        assert view.entry(path).type == "missing", path


def test_entry_tells_folders_files_and_sockets_apart(tmp_path: Path) -> None:
    host = fake(tmp_path)
    (tmp_path / "run/file").touch()
    os.mkfifo(tmp_path / "run/fifo")
    view = host.view()
    assert [view.entry(p).type for p in ("/run", "/run/file", "/run/fifo", "/run/none", "/")] == [
        "dir",
        "file",
        "fifo",
        "missing",
        "dir",
    ]


def test_numa_comes_from_the_nearest_parent_that_knows(tmp_path: Path) -> None:
    host = fake(tmp_path)
    pci = tmp_path / "sys/devices/pci0000:80/0000:80:01.0"
    (pci / "x/x0").mkdir(parents=True)
    (pci / "numa_node").write_text("1\n")
    (tmp_path / "sys/devices/pci0000:00/0000:00:01.0/y").mkdir(parents=True)
    (tmp_path / "sys/devices/pci0000:00/0000:00:01.0/numa_node").write_text("-1\n")
    (tmp_path / "sys/devices/odd").mkdir()
    (tmp_path / "sys/devices/odd/numa_node").write_text("4294967295")
    view = host.view()
    assert view.numa("sys:/devices/pci0000:80/0000:80:01.0/x/x0") == 1
    assert view.numa("sys:/devices/pci0000:80/0000:80:01.0/x/x0") == 1
    assert view.numa("sys:/devices/pci0000:00/0000:00:01.0/y") == -1
    assert view.numa("sys:/devices/virtual/misc/fuse") == -1
    assert view.numa("sys:/devices/odd") == -1
    assert view.numa("c:10:229") == -1


def test_sysfs_reads_are_none_where_there_is_nothing(tmp_path: Path) -> None:
    sysfs = Sysfs(fake(tmp_path))
    (tmp_path / "sys/vendor").write_text("0x10de\n")
    (tmp_path / "sys/odd").write_bytes(b"\xff\0\n")
    assert sysfs.hexadecimal("/sys/vendor") == 0x10DE
    assert sysfs.integer("/sys/vendor") is None
    assert sysfs.integer("/sys/none") is None
    assert sysfs.text("/sys/dev") is None
    assert sysfs.text("/sys/odd") == "\ufffd"
    assert sysfs.link("/sys/vendor") is None
    assert sysfs.names("/sys/none") == ()


def add_pci(root: Path, address: str, vendor: str = "0x10de", numa: str = "0") -> Path:
    folder = root / f"sys/bus/pci/devices/{address}"
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", "0x2330"), ("class", "0x030200"), ("numa_node", numa)):
        (folder / name).write_text(value + "\n")
    return folder


def test_every_bus_and_domain_is_found(tmp_path: Path) -> None:
    host = fake(tmp_path)
    wanted = [f"0000:{bus:02x}:00.0" for bus in range(256)] + ["10000:01:00.0", "0001:e1:1f.7"]
    for address in wanted:
        add_pci(tmp_path, address)
    add_pci(tmp_path, "0002:00:00.0", vendor="rubbish")
    assert [device.address for device in pci_devices(host)] == sorted(wanted)


def test_a_virtual_function_names_its_parent_driver_and_group(tmp_path: Path) -> None:
    host = fake(tmp_path)
    folder = add_pci(tmp_path, "0000:e1:00.1", numa="1")
    (folder / "driver").symlink_to("../../../../bus/pci/drivers/mlx5_core")
    (folder / "iommu_group").symlink_to("../../../../kernel/iommu_groups/17")
    (folder / "physfn").symlink_to("../0000:e1:00.0")
    device = pci_device(host, "0000:e1:00.1")
    assert device is not None
    assert (device.driver, device.iommu_group, device.physfn, device.numa) == ("mlx5_core", "17", "0000:e1:00.0", 1)
    assert (device.vendor, device.device, device.class_code) == (0x10DE, 0x2330, 0x030200)
    assert device.thing == "pci:0000:e1:00.1"


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_addresses_are_read_in_any_case_and_written_one_way(domain: int, bus: int, slot: int, function: int) -> None:
    text = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
    assert parse_address(text.upper()) == text
    assert parse_address(f"{bus:02x}:{slot:02x}.{function}") == f"0000:{bus:02x}:{slot:02x}.{function}"


@pytest.mark.parametrize("text", ["", "3:0.0", "0000:03:20.0", "0000:03:00.8", "0000:03:00.0.0", "12:30:45"])
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="no PCI address"):
        parse_address(text)


def test_no_descriptors_left_is_an_error_and_not_an_empty_host(tmp_path: Path) -> None:
    """An empty listing would withdraw every device of a healthy node."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/x0").touch()
    view = View(Host(Paths(root=str(tmp_path), dev=str(tmp_path / "dev"))))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            view.names("/dev")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert view.names("/dev") == ("x0",)
