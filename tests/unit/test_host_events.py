"""Folder events: nothing that happens to a watched tree goes unnoticed, whatever becomes of its folders."""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from devherd.host.events import TreeEvents, Watched, udev_events
from devherd.uevents import KERNEL, NETLINK_KOBJECT_UEVENT, UDEV


def wait(source: TreeEvents, seconds: float = 5.0) -> str:
    """Drain until something matters; empty after the time is up."""
    while select.select([source], [], [], seconds)[0]:
        if name := source.drain():
            return name
    return ""


def quiet(source: TreeEvents) -> bool:
    """Whether nothing so far mattered (inotify queues an event before the call that made it ends)."""
    return source.drain() == ""


@pytest.fixture
def opened() -> Iterator[list[TreeEvents]]:
    sources: list[TreeEvents] = []
    yield sources
    for source in sources:
        source.close()


def watch(opened: list[TreeEvents], *wants: Watched) -> TreeEvents:
    opened.append(TreeEvents(lambda: wants, "dev"))
    return opened[-1]


def test_new_moved_and_removed_entries_are_due(tmp_path: Path, opened: list[TreeEvents]) -> None:
    source = watch(opened, Watched(str(tmp_path), re.compile("tty.*")))
    (tmp_path / "ttyUSB0").touch()
    assert wait(source) == "dev"
    (tmp_path / "other").touch()
    (tmp_path / "ttyUSB0").write_text("writes to a node are no news")
    assert quiet(source)
    (tmp_path / "other").rename(tmp_path / "tty1")
    assert wait(source) == "dev"
    (tmp_path / "tty1").unlink()
    assert wait(source) == "dev"


def test_a_missing_folder_is_awaited_at_any_depth(tmp_path: Path, opened: list[TreeEvents]) -> None:
    folder = tmp_path / "serial/by-id"
    source = watch(opened, Watched(str(folder)))
    (tmp_path / "unrelated").mkdir()
    assert quiet(source)
    (tmp_path / "serial").mkdir()
    assert wait(source) == "dev"
    folder.mkdir()
    assert wait(source) == "dev"
    (folder / "x").symlink_to("../../ttyUSB0")
    assert wait(source) == "dev"


def test_a_folder_made_in_one_go_is_watched_to_the_bottom(tmp_path: Path, opened: list[TreeEvents]) -> None:
    folder = tmp_path / "a/b/c"
    source = watch(opened, Watched(str(folder)))
    folder.mkdir(parents=True)
    assert wait(source) == "dev"
    (folder / "x").touch()
    assert wait(source) == "dev"


@pytest.mark.parametrize("way", ["delete", "move", "move parent", "swap"])
def test_a_replaced_folder_is_watched_again(tmp_path: Path, opened: list[TreeEvents], way: str) -> None:
    folder = tmp_path / "parent/dev"
    folder.mkdir(parents=True)
    source = watch(opened, Watched(str(folder)))
    if way == "delete":
        shutil.rmtree(folder)
    elif way == "move":
        folder.rename(tmp_path / "old")
    else:
        (tmp_path / "parent").rename(tmp_path / "old")
    if way != "swap":
        assert wait(source) == "dev"
    folder.mkdir(parents=True)
    assert wait(source) == "dev"
    (folder / "x").touch()
    assert wait(source) == "dev"
    descriptor = source.fileno()
    (folder / "x").unlink()
    assert wait(source) == "dev"
    assert source.fileno() == descriptor


def test_a_linked_folder_that_leads_elsewhere_is_due(tmp_path: Path, opened: list[TreeEvents]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "link").symlink_to("one")
    source = watch(opened, Watched(str(tmp_path / "link")))
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").rename(tmp_path / "link")
    assert wait(source) == "dev"
    (tmp_path / "two/x").touch()
    assert wait(source) == "dev"


def test_writes_count_where_content_matters(tmp_path: Path, opened: list[TreeEvents]) -> None:
    (tmp_path / "rdev").touch()
    source = watch(opened, Watched(str(tmp_path), re.compile("rdev"), content=True), Watched(str(tmp_path / "dev")))
    (tmp_path / "rdev").write_text("/dev/x c 1 2")
    assert wait(source) == "dev"
    (tmp_path / "other").write_text("x")
    assert quiet(source)


def test_folders_are_asked_again_when_a_folder_appears(tmp_path: Path, opened: list[TreeEvents]) -> None:
    def folders() -> list[Watched]:
        return [Watched(str(tmp_path)), *(Watched(str(p)) for p in tmp_path.iterdir() if p.is_dir())]

    source = TreeEvents(folders, "usb")
    opened.append(source)
    (tmp_path / "003").mkdir()
    assert wait(source) == "usb"
    (tmp_path / "003/022").touch()
    assert wait(source) == "usb"


def test_an_overflow_counts_as_an_event(tmp_path: Path, opened: list[TreeEvents]) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip("this kernel queues too many events to overflow in a test")
    source = watch(opened, Watched(str(tmp_path), re.compile("wanted")))
    for number in range(limit // 2 + 10):
        name = str(tmp_path / str(number % 7))
        os.close(os.open(name, os.O_CREAT))
        os.unlink(name)
    (tmp_path / "wanted").touch()
    assert wait(source) == "dev"
    (tmp_path / "wanted").unlink()
    assert wait(source) == "dev"


def test_descriptors_stay_flat_over_many_replacements(tmp_path: Path, opened: list[TreeEvents]) -> None:
    folder = tmp_path / "dev"
    source = watch(opened, Watched(str(folder)))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        folder.mkdir()
        assert wait(source)
        folder.rmdir()
        assert wait(source)
    assert len(os.listdir("/proc/self/fd")) == before
    watches = Path(f"/proc/self/fdinfo/{source.fileno()}").read_text().count("inotify wd:")
    assert watches <= len(folder.parts) + 1


def test_udev_source_opens_and_closes_or_says_why_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        sources = udev_events(("usb", "tty"))
    for source in sources:
        assert source.fileno() >= 0
        source.drain()
        source.close()
    assert sources or "no udev events" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may send such messages")
def test_hardware_events_of_the_wanted_subsystems_count_and_others_do_not() -> None:
    sources = udev_events(("devherd-wanted",))
    if not sources:
        pytest.skip("no uevents here")
    (source,) = sources

    def send(subsystem: str) -> bool:
        try:
            sender.sendto(f"add@/x\0ACTION=add\0SUBSYSTEM={subsystem}\0".encode(), (0, UDEV | KERNEL))
        except PermissionError:
            pytest.skip("sending is not allowed here")
        assert select.select([source.fileno()], [], [], 5)[0]
        return bool(source.drain())

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT) as sender:
        assert not send("devherd-other")
        assert send("devherd-wanted")
    source.close()
