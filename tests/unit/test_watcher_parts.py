"""The watcher's helpers on the real thing: children, sockets, netlink, processes."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.audit import EventFile
from devherd.control import PollServer
from devherd.process import read_stat
from devherd_watcher.asking import Asker
from devherd_watcher.chores import Chores
from devherd_watcher.hardware import LOST, UDEV, Uevents, parse
from devherd_watcher.holds import Holds
from devherd_watcher.memory import Memory
from devherd_watcher.record import Record
from devherd_watcher.restarter import Restarter


@pytest.fixture
def folder() -> Iterator[Path]:
    path = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def reaped() -> Iterator[None]:
    """No child is left behind, ended or not: others in this process look at its children."""
    before = children()
    yield
    for pid in children() - before:
        os.waitpid(pid, 0)


def drive(one: Any, over: Callable[[], bool], seconds: float = 10.0) -> None:
    """A poll loop for what has fds(), ready() and timers()."""
    deadline = time.monotonic() + seconds
    while not over():
        assert time.monotonic() < deadline
        ready, _, _ = select.select(one.fds(), [], [], 0.02)
        for fd in ready:
            one.ready(fd)
        one.timers(time.monotonic())


def children() -> set[int]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def test_a_chore_is_done_elsewhere_and_its_result_or_error_comes_back() -> None:
    before = children()
    chores = Chores()
    results: list[tuple[Any, str]] = []
    done = lambda result, error: results.append((result, error))  # noqa: E731
    now = time.monotonic()
    assert chores.start("pid", os.getpid, done, 5.0, now)
    assert not chores.start("pid", os.getpid, done, 5.0, now), "one of a name at a time"
    assert chores.start("wrong", lambda: [][1], done, 5.0, now)
    assert chores.start("dies", lambda: os._exit(1), done, 5.0, now)
    assert chores.start("large", lambda: "x" * 1_000_000, done, 5.0, now)
    drive(chores, lambda: len(results) == 4)
    by_error = {error: result for result, error in results}
    assert "wrong: IndexError: list index out of range" in by_error
    assert "dies: it ended without a result" in by_error
    pids = [result for result, error in results if isinstance(result, int)]
    assert pids
    assert pids[0] != os.getpid()
    drive(chores, lambda: children() <= before)


def test_a_chore_that_hangs_costs_its_deadline_and_nothing_else() -> None:
    chores = Chores()
    results: list[tuple[Any, str]] = []
    began = time.monotonic()
    chores.start("hangs", lambda: time.sleep(60), lambda *one: results.append(one), 0.2, began)
    assert time.monotonic() - began < 0.15, "nobody waits for it"
    drive(chores, lambda: bool(results))
    assert results == [(None, "hangs: it took too long")]
    drive(chores, lambda: not chores.busy("hangs"))


def test_questions_are_asked_side_by_side_and_each_gets_one_answer(folder: Path) -> None:
    server = PollServer(str(folder / "good.sock"), lambda request: {"echo": request["op"]})
    mute = socket.socket(socket.AF_UNIX)
    mute.bind(str(folder / "mute.sock"))
    mute.listen(1)
    full = socket.socket(socket.AF_UNIX)
    full.bind(str(folder / "full.sock"))
    full.listen(0)
    queue = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for one in queue:
        one.setblocking(False)
        one.connect_ex(str(folder / "full.sock"))
    asker = Asker()
    got: dict[str, tuple[Any, str]] = {}
    now = time.monotonic()
    for name in ("good", "mute", "gone", "full"):

        def answered(answer: Any, why: str, name: str = name) -> None:
            assert name not in got
            got[name] = answer, why

        asker.ask(str(folder / f"{name}.sock"), {"op": "status"}, answered, 0.3, now)
    assert time.monotonic() - now < 0.1
    assert set(got) == {"gone", "full"}
    for _ in range(4):
        for fd in select.select(server.fds(), [], [], 0.1)[0]:
            server.ready(fd)
    drive(asker, lambda: len(got) == 4)
    assert got["good"] == ({"echo": "status"}, "")
    assert got["mute"] == (None, "no answer in time")
    assert got["gone"][1] == "No such file or directory"
    assert "queue" in got["full"][1]
    for sock in (mute, full, *queue):
        sock.close()
    server.close()


def udev_message(**properties: str) -> bytes:
    body = b"".join(f"{key}={value}".encode() + b"\0" for key, value in properties.items())
    return b"libudev\0" + struct.pack("=IIIIIIII", 0xCAFEEDFE, 40, 40, len(body), 0, 0, 0, 0) + body


def test_uevents_of_the_kernel_and_of_udev_are_read() -> None:
    kernel = b"add@/devices/pci0000:00/0000:00:03.0\0ACTION=add\0SUBSYSTEM=pci\0SEQNUM=1\0"
    assert parse(kernel) == ("add", "pci")
    assert parse(udev_message(ACTION="bind", SUBSYSTEM="pci", X="a=b")) == ("bind", "pci")


@pytest.mark.parametrize("data", [b"", b"\0", b"libudev\0", b"libudev\0" + b"\xff" * 40, b"add@/x\0ACTION=\xff\0"])
def test_no_message_hurts(data: bytes) -> None:
    action, subsystem = parse(data)
    assert isinstance(action, str)
    assert subsystem == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may send such messages")
def test_hardware_that_appears_is_seen_and_what_goes_is_not() -> None:
    try:
        events = Uevents(UDEV)
    except OSError as error:
        pytest.skip(f"no uevents here: {error}")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as sender:
        try:
            sender.sendto(udev_message(ACTION="remove", SUBSYSTEM="devherd-gone"), (0, UDEV))
            sender.sendto(udev_message(ACTION="add", SUBSYSTEM="devherd-new"), (0, UDEV))
        except PermissionError:
            pytest.skip("sending is not allowed here")
        assert select.select([events.fileno()], [], [], 5)[0]
        found = events.drain()
        assert "devherd-new" in found
        assert "devherd-gone" not in found
        # A storm that nobody reads: what was lost may have been anything.
        lost = False
        for _ in range(20_000):
            sender.sendto(udev_message(ACTION="change", SUBSYSTEM="devherd-storm", FILL="x" * 500), (0, UDEV))
        for _ in range(1000):
            lost = lost or LOST in events.drain()
        assert lost
    events.close()


def test_what_happened_and_the_memory_are_written_by_a_child(folder: Path) -> None:
    chores = Chores()
    state = folder / "state" / "watcher.json"
    record = Record(chores, str(folder / "events"), str(state), "boot", time.monotonic)
    record.note("restart", name="one", by="watcher")
    memory = Memory(stopped=("one",))
    began = time.monotonic()
    while not state.exists() or chores.busy("writing"):
        assert time.monotonic() - began < 5
        record.timers(time.monotonic(), memory)
        for fd in select.select(chores.fds(), [], [], 0.01)[0]:
            chores.ready(fd)
        chores.timers(time.monotonic())
    line = (folder / "events" / "watcher.jsonl").read_text()
    assert '"kind":"restart","name":"one","by":"watcher"' in line
    assert record.problem == ""
    assert record.next() is None, "nothing is written again"


def test_a_full_disk_is_told_and_tried_again(folder: Path) -> None:
    chores = Chores()
    blocked = folder / "blocked"
    blocked.write_text("a file where a folder should be")
    record = Record(chores, str(blocked / "events"), str(blocked / "watcher.json"), "boot", time.monotonic)
    record.note("restart", name="one")
    record.timers(time.monotonic() + 1, Memory(stopped=("one",)))
    drive(chores, lambda: not chores.busy("writing"))
    assert "manual stops would be forgotten" in record.problem
    assert record.lost == 1
    assert record.next() is not None
    assert EventFile(str(blocked), "x").write("y") is False


def test_one_is_ended_at_a_time_with_as_much_force_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devherd_watcher.restarter.GRACE", 0.3)
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    stat = read_stat(process.pid)
    assert stat is not None
    restarter = Restarter()
    now = time.monotonic()
    assert not restarter.begin("one", process.pid, stat.start + 1, now), "another process with that number"
    assert restarter.free(now)
    assert restarter.begin("one", process.pid, stat.start, now)
    assert not restarter.free(now)
    while not restarter.free(time.monotonic() + 100):
        assert time.monotonic() - now < 10
        time.sleep(0.02)
        restarter.timers(time.monotonic())
    assert process.wait(5) == -signal.SIGKILL
    assert not restarter.free(time.monotonic()), "the next one only when this one had time to come back"
    assert restarter.problem == ""
    process.stdout.close()


def test_holds_are_files_that_a_launcher_understands(folder: Path) -> None:
    holds = Holds(str(folder), os.getpid())
    lock = folder / "one.lock"
    launcher = [sys.executable, "-I", "-m", "devherd.launcher", "--name", "one", "--lock", str(lock), "--", "true"]

    def took() -> float:
        began = time.monotonic()
        subprocess.run(launcher, check=True, capture_output=True)
        return time.monotonic() - began

    usual = took()
    assert holds.hold("one", time.monotonic() + 1.0, "why not") == ""
    assert took() >= 0.8
    assert holds.hold("group:one", time.monotonic() + 100_000.0, "of another boot") == ""
    assert took() < usual + 0.5
    # Stopped under this very parent: whoever starts it now means it.
    assert holds.stopped("one") == ""
    assert took() < usual + 0.5
    Holds(str(folder), 1).stopped("one")
    waiting = subprocess.Popen(launcher, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None
    assert "held back" in waiting.stderr.readline()
    holds.release("one")
    assert waiting.wait(5) == 0
    waiting.stderr.close()
    (folder / "one.hold").write_bytes(b"\xff until nonsense\n")
    assert took() < usual + 0.5
    assert "cannot be held back" in Holds(str(folder / "nowhere"), 1).stopped("one")
