"""The watcher's parts, each on the real thing: a folder, processes, sockets."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devherd_watcher.fronts import Fronts
from devherd_watcher.listener import EventStream
from devherd_watcher.notify import Notifier
from devherd_watcher.owner import Owner
from devherd_watcher.socketwatch import SocketWatch
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def folder() -> Iterator[Path]:
    path = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    yield Path(path)
    shutil.rmtree(path)


def wire(name: str, payload: str) -> bytes:
    header = f"ver:3.0 server:devherd serial:1 pool:watcher poolserial:0 eventname:{name} len:{len(payload.encode())}"
    return f"{header}\n{payload}".encode()


@given(
    st.lists(
        st.sampled_from(["processname:generic groupname:generic from_state:STOPPED tries:0", "when:5", "", "ä\nx"])
    ),
    st.integers(1, 200),
)
def test_events_arrive_whole_however_they_are_cut(payloads: list[str], size: int) -> None:
    data = b"".join(wire(f"EVENT_{number}", payload) for number, payload in enumerate(payloads))
    stream = EventStream()
    events = [event for at in range(0, len(data), size) for event in stream.feed(data[at : at + size])]
    assert [event.name for event in events] == [f"EVENT_{number}" for number in range(len(payloads))]
    for event, payload in zip(events, payloads, strict=True):
        assert event.fields.get("processname") == ("generic" if payload.startswith("processname") else None)


@pytest.mark.parametrize(
    "data", [b"hello\n", b"eventname:X len:-1\n", b"len:5\n12345", b"x" * 5000, b"eventname:X len:9999999999\n"]
)
def test_something_else_than_supervisord_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="event header"):
        EventStream().feed(data)


def appears(watch: SocketWatch, timeout: float = 5.0) -> bool:
    """Wait by events until the watch says that the socket came; False after `timeout`."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        select.select([watch.fileno()], [], [], left)
        if watch.read():
            return True
    return False


def listen(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_each_new_socket_is_seen_and_nothing_else(folder: Path) -> None:
    watch = SocketWatch(str(folder), "kubelet.sock")
    assert not watch.exists()
    (folder / "kubelet_internal_checkpoint").write_text("{}")
    assert not appears(watch, 0.05)
    for _ in range(3):
        with listen(folder / "kubelet.sock"):
            assert appears(watch)
        assert not watch.check()
        (folder / "kubelet.sock").unlink()
        assert not appears(watch, 0.05)
    (folder / "other.sock").write_text("")
    (folder / "other.sock").rename(folder / "kubelet.sock")
    assert appears(watch)
    watch.close()


def test_the_folder_may_come_later_and_be_replaced(folder: Path) -> None:
    plugins = folder / "kubelet" / "device-plugins"
    watch = SocketWatch(str(plugins), "kubelet.sock")
    assert watch.watched == str(folder)
    plugins.mkdir(parents=True)
    listen(plugins / "kubelet.sock").close()
    assert appears(watch)
    assert watch.watched == str(plugins)

    plugins.rename(folder / "old")
    assert not appears(watch, 0.05)
    plugins.mkdir()
    assert not appears(watch, 0.05)
    listen(plugins / "kubelet.sock").close()
    assert appears(watch)

    shutil.rmtree(folder / "kubelet")
    assert not appears(watch, 0.05)
    plugins.mkdir(parents=True)
    listen(plugins / "kubelet.sock").close()
    assert appears(watch)
    watch.close()


def test_a_renamed_parent_is_noticed(folder: Path) -> None:
    plugins = folder / "lib" / "kubelet" / "device-plugins"
    plugins.mkdir(parents=True)
    watch = SocketWatch(str(plugins), "kubelet.sock")
    (folder / "lib").rename(folder / "lib.old")
    assert not appears(watch, 0.05)
    plugins.mkdir(parents=True)
    listen(plugins / "kubelet.sock").close()
    assert appears(watch)
    watch.close()


def test_the_slow_look_finds_what_no_event_tells(folder: Path) -> None:
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    (folder / "link").symlink_to("one")
    watch = SocketWatch(str(folder / "link"), "kubelet.sock")
    assert not watch.check()
    listen(folder / "two" / "kubelet.sock").close()
    (folder / "next").symlink_to("two")
    (folder / "next").rename(folder / "link")
    assert watch.check()
    assert not watch.check()
    (folder / "two" / "kubelet.sock").unlink()
    listen(folder / "two" / "kubelet.sock").close()
    assert appears(watch)
    watch.close()


FRONT = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda number, frame: print("signalled", flush=True))
print("up", flush=True)
while True:
    time.sleep(60)
"""
STARTING = """
import time
print("up", flush=True)
time.sleep(60)
"""


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_fronts_are_signalled_others_and_the_unready_are_not() -> None:
    front = child(FRONT, "-m", "devherd.front", "--plugin", "generic")
    starting = child(STARTING, "-m", "devherd.front", "--plugin", "late")
    other = child(STARTING, "-m", "devherd_exporter", "--name", "exporter")
    fronts = Fronts(os.getpid())
    try:
        assert fronts.refresh()
        assert {(p.name, p.front) for p in fronts.programs()} >= {
            ("generic", True),
            ("late", True),
            ("exporter", False),
        }
        sent = fronts.signal(signal.SIGUSR1)
        assert [p.name for p in sent.reached] == ["generic"]
        assert [p.name for p in sent.starting] == ["late"]
        assert heard(front) == "signalled\n"
        assert starting.poll() is None
        assert other.poll() is None

        second = child(FRONT, "-m", "devherd.front", "--plugin", "second")
        sent = fronts.signal(signal.SIGUSR1)
        assert sorted(p.name for p in sent.reached) == ["generic", "second"]
        assert heard(second) == "signalled\n"

        front.kill()
        front.wait()
        assert [p.name for p in fronts.signal(signal.SIGUSR1).reached] == ["second"]
        second.kill()
        second.communicate()
    finally:
        fronts.close()
        for process in (front, starting, other):
            process.kill()
            process.communicate()


def test_only_children_of_supervisord_are_known() -> None:
    stranger = child(FRONT, "-m", "devherd.front", "--plugin", "stranger")
    fronts = Fronts(os.getppid())
    try:
        fronts.refresh()
        assert stranger.pid not in {program.pid for program in fronts.programs()}
    finally:
        fronts.close()
        stranger.kill()
        stranger.communicate()


def test_systemd_hears_ready_stopping_and_that_supervisord_lives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder / "notify"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        notifier = Notifier()
        notifier.ready()
        notifier.tick()
        notifier.stopping()
        assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    (folder / "notify").unlink()
    notifier.ready()
    monkeypatch.delenv("NOTIFY_SOCKET")
    Notifier().ready()


def test_the_owner_is_found_although_the_socket_is_bound_before_it_is_listened_on(folder: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    owner = Owner(str(folder / "kubelet.sock"))
    owner.expect(0.0)
    sock.bind(owner.path)
    assert not owner.look(0.004, 1.0)
    assert not owner.look(0.005, 1.0)
    assert owner.next_look == pytest.approx(0.015)
    sock.listen()
    assert owner.look(0.015, 7.0)
    assert owner.identity is not None
    assert owner.identity.pid == os.getpid()
    assert owner.seen_at == 7.0
    assert owner.next_look is None
    owner.expect(1.0)
    assert not owner.look(1.005, 9.0)
    sock.close()
    owner.expect(2.0)
    now, looks = 2.0, 0
    while owner.next_look is not None:
        now = owner.next_look
        assert not owner.look(now, 9.0)
        looks += 1
    assert owner.identity is None
    assert looks < 12
    assert now < 4.0
