"""What a capture takes of a node, how it is kept on file, and what a hostile file cannot do."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import json
import os
import signal
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from devherd.audit import EventFile
from devherd.capture.archive import FORMAT, Capture, CaptureError
from devherd.capture.reader import Entry, Order, Reader
from devherd.capture.record import Source, read_entries
from devherd.capture.redact import Redactor
from devherd.settings import Paths, Settings
from devherd.sim.node import Node
from devherd.sim.nodespec import load


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.build(load("workshop"), str(tmp_path / "node"))


def order(node: Node, **more: Any) -> Order:
    return Order(msgspec.convert(node.paths(), Paths), **more)


def read(node: Node, **more: Any) -> dict[str, Entry]:
    return {entry.path: entry for entry in Reader(order(node, **more)).entries() if entry.kind != "reading"}


def put(node: Node, logical: str, text: str) -> Path:
    path = Path(node.root + logical)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_nodes_links_and_hardware_are_taken(node: Node) -> None:
    found = read(node)
    assert found["/dev/accel/accel3"].text == "c 261 3"
    assert found["/dev/serial/by-id/usb-Example_Meter_SN0002-if00"].text == "/dev/ttyACM2"
    folder = "/sys/devices/pci0000:80/0000:83:00.0"
    assert found["/sys/dev/char/261:3"].text == f"{folder}/accel/accel3"
    assert found[f"{folder}/numa_node"].text == "0\n"
    assert found[f"{folder}/driver"].text == "/sys/bus/pci/drivers/example_accel"
    assert found["/sys/bus/pci/devices/0000:83:00.0"].text == folder


def test_only_known_attributes_are_read(node: Node) -> None:
    folder = "/sys/devices/pci0000:80/0000:83:00.0"
    put(node, f"{folder}/secret_fuse_key", "no")
    put(node, f"{folder}/reset", "1").chmod(0o200)
    put(node, f"{folder}/vendor", "0x1234\n")
    found = read(node)
    assert f"{folder}/secret_fuse_key" not in found
    assert f"{folder}/reset" not in found
    assert found[f"{folder}/vendor"].text == "0x1234\n"


def test_a_plugins_own_patterns_are_read_too(node: Node) -> None:
    put(node, "/sys/class/special/thing0/state", "good\n")
    assert "/sys/class/special/thing0/state" not in read(node)
    assert read(node, patterns=("/sys/class/special/*/state",))["/sys/class/special/thing0/state"].text == "good\n"


def test_terminals_and_disks_are_left_out_unless_a_plugin_offers_them(node: Node) -> None:
    for name in ("tty3", "sda1", "pts/0", "ttyUSB0"):
        put(node, f"/dev/{name}", "")
    with open(node.rdev_table, "a") as table:
        table.write("/dev/tty3 c 4 3\n/dev/sda1 b 8 1\n/dev/pts/0 c 136 0\n/dev/ttyUSB0 c 188 0\n")
    assert {path for path in read(node) if path.startswith(("/dev/tty", "/dev/sd", "/dev/pts"))} == {
        "/dev/ttyUSB0",
        *(f"/dev/ttyACM{n}" for n in range(4)),
    }
    found = read(node, wanted=("/dev/sda1", "/dev/pts/0"))
    assert (found["/dev/sda1"].text, found["/dev/pts/0"].text) == ("b 8 1", "c 136 0")
    assert "/dev/tty3" not in found


def test_pods_interfaces_are_left_out_and_those_with_hardware_taken(node: Node) -> None:
    put(node, "/sys/devices/virtual/net/veth1234/address", "aa:bb:cc:00:11:22\n")
    put(node, "/sys/devices/pci0000:80/0000:8f:00.0/net/eth7/address", "aa:bb:cc:00:11:33\n")
    for name, folder in (("veth1234", "virtual/net/veth1234"), ("eth7", "pci0000:80/0000:8f:00.0/net/eth7")):
        Path(node.root, "sys/class/net").mkdir(exist_ok=True)
        os.symlink(f"../../devices/{folder}", f"{node.root}/sys/class/net/{name}")
    os.symlink("../..", f"{node.root}/sys/devices/pci0000:80/0000:8f:00.0/net/eth7/device")
    found = read(node)
    assert "/sys/class/net/veth1234" not in found
    assert "/sys/devices/pci0000:80/0000:8f:00.0/net/eth7/address" in found


def test_the_kernels_command_line_is_taken_by_known_words_only(node: Node) -> None:
    put(node, "/proc/cmdline", "root=UUID=1 intel_iommu=on my.password=x iommu=pt\n")
    assert read(node)["/proc/cmdline"].text == "intel_iommu=on iommu=pt\n"


@contextlib.contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Whoever opens the file waits: its lease is ours, and we do not let go."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    holder = os.open(path, os.O_WRONLY)
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)


def test_an_attribute_that_never_answers_is_named_and_the_rest_is_kept(node: Node) -> None:
    folder = "/sys/devices/pci0000:80/0000:83:00.0"
    problems: list[str] = []
    began = time.monotonic()
    with hanging(Path(node.root + folder + "/vendor")):
        entries = read_entries(order(node), problems.append, patience=1.5)
    assert time.monotonic() - began < 10
    assert len(problems) == 1
    assert f"{folder}: no answer for 1.5 s" in problems[0]
    found = {entry.path for entry in entries}
    assert {"/dev/accel/accel3", "/sys/devices/pci0000:80/0000:82:00.0/vendor"} <= found


def test_the_reader_process_says_what_the_reader_sees(node: Node) -> None:
    problems: list[str] = []
    entries = read_entries(order(node), problems.append)
    assert not problems
    assert {entry.path: entry for entry in entries} == read(node)


def source_of(node: Node, tmp_path: Path) -> Source:
    """A node with secrets in every corner."""
    etc, log = tmp_path / "etc", tmp_path / "log"
    (etc / "plugins.d").mkdir(parents=True)
    log.mkdir()
    config = etc / "devherd.yaml"
    config.write_text("log: {level: debug}\n")
    (etc / "plugins.d" / "generic.yaml").write_text("devices:\n  - name: x\n    env: {VAULT_TOKEN: t0p-s3cr3t}\n")
    (log / "generic.log").write_text("container got t0p-s3cr3t on b8:ce:f6:12:34:56\n")
    EventFile(str(log / "events"), "generic").write("allocated", resource="r/x", pod="team-a/train-7/main")
    paths = msgspec.convert({**node.paths(), "etc": str(etc), "log": str(log), "state": str(tmp_path / "s")}, Paths)
    source = Source(Settings(paths=paths), str(config))
    device = {
        "id": "1",
        "held_by": "team-a/train-7/main",
        "env": {"VAULT_TOKEN": "t0p-s3cr3t"},
        "nodes": [{"host_path": "/dev/serial/by-id/usb-Example_Meter_SN0002-if00"}],
    }
    source.devices = {"generic": {"plugin": "generic", "devices": [device]}}
    source.statuses = {"generic": {"plugin": "generic", "note": "pod train-7 holds it"}}
    return source


def test_nothing_of_what_identifies_or_is_secret_is_in_the_file(node: Node, tmp_path: Path) -> None:
    source = source_of(node, tmp_path)
    source.read_node()
    source.read_logs()
    file = tmp_path / "c.tar.gz"
    source.capture(Redactor()).save(str(file))
    with gzip.open(file) as packed:
        content = packed.read()
    for text in (b"t0p-s3cr3t", b"train-7", b"team-a", b"SN0002", b"b8:ce:f6:12:34:56"):
        assert text not in content
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_raw_capture_has_it_all_and_says_so(node: Node, tmp_path: Path) -> None:
    source = source_of(node, tmp_path)
    source.read_node()
    made = source.capture(Redactor(enabled=False))
    assert made.about["redacted"] is False
    assert "t0p-s3cr3t" in made.texts["etc/plugins.d/generic.yaml"]


def test_what_was_saved_is_loaded_again(node: Node, tmp_path: Path) -> None:
    source = source_of(node, tmp_path)
    source.read_node()
    made = source.capture(Redactor())
    file = str(tmp_path / "c.tar.gz")
    made.save(file)
    again = Capture.load(file)
    assert (again.files, again.links, again.nodes) == (made.files, made.links, made.nodes)
    assert (again.folders, again.texts) == (made.folders, made.texts)
    assert again.about == {**made.about, "format": FORMAT}
    assert list(again.plugin_configs()) == ["generic"]
    events = [json.loads(line) for line in again.texts["events.jsonl"].splitlines()]
    assert [event["kind"] for event in events] == ["allocated"]


def tarred(path: Path, *members: tarfile.TarInfo, about: object = None) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in (("capture.json", json.dumps({"format": 1} if about is None else about)),):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in members:
            tar.addfile(member, io.BytesIO(b"\0" * member.size))
    return str(path)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


@pytest.mark.parametrize(
    "hostile",
    [
        member("node/../../etc/passwd"),
        member("/etc/passwd"),
        member("../x"),
        member("node/dev/x", tarfile.SYMTYPE, "/etc/passwd"),
        member("node/dev/x", tarfile.SYMTYPE, "../../../etc/passwd"),
    ],
)
def test_a_member_that_leads_out_of_the_capture_is_refused(tmp_path: Path, hostile: tarfile.TarInfo) -> None:
    with pytest.raises(CaptureError, match="leads out"):
        Capture.load(tarred(tmp_path / "x.tar.gz", hostile))


def test_nothing_is_written_through_a_link_of_the_capture(tmp_path: Path) -> None:
    through = member("node/dev/a", tarfile.SYMTYPE, "../sys"), member("node/dev/a/b")
    with pytest.raises(CaptureError, match="below a file or link"):
        Capture.load(tarred(tmp_path / "x.tar.gz", *through))


def test_device_nodes_and_hard_links_in_a_file_are_not_taken(tmp_path: Path) -> None:
    file = tarred(
        tmp_path / "x.tar.gz", member("node/dev/x", tarfile.CHRTYPE), member("node/dev/y", tarfile.LNKTYPE, "etc/x")
    )
    made = Capture.load(file)
    assert (made.files, made.links, made.nodes) == ({}, {}, {})


@pytest.mark.parametrize(
    ("about", "says"),
    [({"format": 99}, "use a newer one"), ({}, "no capture"), ([], "no capture"), ({"format": "1"}, "no capture")],
)
def test_another_format_is_refused_in_words(tmp_path: Path, about: object, says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        Capture.load(tarred(tmp_path / "x.tar.gz", about=about))


@pytest.mark.parametrize("content", [b"", b"hello", gzip.compress(b"hello"), gzip.compress(b"x" * 2000)[:-9]])
def test_rubbish_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(CaptureError, match=r"x\.tar\.gz"):
        Capture.load(str(path))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="unpacks to more"):
        Capture.load(tarred(tmp_path / "x.tar.gz", member("status.json", size=65 * 1024 * 1024)))


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be written"):
        Capture().save(str(tmp_path / "missing" / "x.tar.gz"))
    (tmp_path / "folder.tar.gz").mkdir()
    with pytest.raises(CaptureError, match="cannot be written"):
        Capture().save(str(tmp_path / "folder.tar.gz"))
    assert sorted(os.listdir(tmp_path)) == ["folder.tar.gz"]
