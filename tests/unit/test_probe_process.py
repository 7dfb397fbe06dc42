"""The probe as a process: what it keeps of its front, and when it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from devherd.probe import wire
from devherd.process import read_signals, read_stat
from devherd.settings import Settings

VENDOR = """
import os, subprocess, sys, time
import msgspec
from devherd.values import Inventory
from devherd.vendor import Manifest

class Config(msgspec.Struct, forbid_unknown_fields=True):
    do: str = "modules"

def validate(config):
    return []

class Vendor:
    def __init__(self, config, host):
        if config.do == "no card":
            raise OSError(5, "no card")
        self.do = config.do

    def scan(self):
        print("a stray print")
        if self.do == "hang":
            time.sleep(600)
        if self.do == "child":
            return Inventory(absent=str(subprocess.Popen(["sleep", "600"]).pid))
        return Inventory(absent=" ".join(sorted(m for m in sys.modules if "." not in m)))

MANIFEST = Manifest(name="stub", title="Stub", config=Config, vendor="stub_vendor:Vendor")
BROKEN = Manifest(name="stub", title="Stub", config=Config, vendor="no_such_module:Vendor")
"""

START = """
import sys
sys.path.insert(0, {folder!r})
from devherd.probe.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

MIDDLE = """
import socket, subprocess, sys
ours = socket.socket(fileno=int(sys.argv[1]))
process = subprocess.Popen(sys.argv[2:], close_fds=False)
print(process.pid, flush=True)
process.wait()
"""


class Front:
    """The front's end: starts probes and speaks to the last one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(f"{folder}/stub_vendor.py", "w") as file:
            file.write(VENDOR)
        self.sock, self._theirs = socket.socketpair()
        self.sock.settimeout(10)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pids: list[int] = []

    def command(self, manifest: str = "MANIFEST") -> list[str]:
        return [
            *(sys.executable, "-I", "-c", START.format(folder=self.folder)),
            *("--plugin", "stub", "--manifest", f"stub_vendor:{manifest}", "--fd", str(self._theirs.fileno())),
        ]

    def start(self, manifest: str = "MANIFEST", **more: Any) -> subprocess.Popen[bytes]:
        self._theirs.set_inheritable(True)
        process = subprocess.Popen(self.command(manifest), close_fds=False, stderr=subprocess.PIPE, **more)
        self._theirs.close()
        self.processes.append(process)
        return process

    def start_below_another(self) -> tuple[subprocess.Popen[bytes], int]:
        """A process of its own as the probe's parent; it holds our end, so the socketpair alone tells nothing."""
        self._theirs.set_inheritable(True)
        mine = self.sock.dup()
        mine.set_inheritable(True)
        parent = subprocess.Popen(
            [sys.executable, "-c", MIDDLE, str(mine.fileno()), *self.command()], close_fds=False, stdout=subprocess.PIPE
        )
        mine.close()
        self._theirs.close()
        self.processes.append(parent)
        assert parent.stdout is not None
        self.pids.append(int(parent.stdout.readline()))
        return parent, self.pids[-1]

    def configure(self, **config: str) -> wire.Reply:
        raw = msgspec.Raw(msgspec.msgpack.encode(config))
        return self.ask(wire.Configure(1, Settings(), raw))

    def ask(self, request: wire.Request) -> wire.Reply:
        self.send(request)
        header = self._read(wire.HEADER.size)
        return wire.reply_decoder().decode(self._read(wire.HEADER.unpack(header)[0]))

    def send(self, request: wire.Request) -> None:
        self.sock.sendall(wire.encode(request))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            assert piece, "the probe closed"
            data += piece
        return data

    def end(self) -> None:
        self.sock.close()
        for process in self.processes:
            process.kill()
            process.communicate()
        for pid in self.pids:
            if read_stat(pid) is not None:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
    yield front
    front.end()
    shutil.rmtree(front.folder)


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.state == "Z"


def test_it_has_neither_grpc_nor_an_event_loop(front: Front) -> None:
    front.start()
    assert isinstance(front.configure(), wire.Ready)
    reply = front.ask(wire.Scan(2))
    assert isinstance(reply, wire.Scanned)
    assert reply.inventory is not None
    loaded = set(reply.inventory.absent.split())
    assert {"msgspec", "devherd", "stub_vendor"} <= loaded
    assert not loaded & {"grpc", "google", "asyncio", "yaml", "click", "rich", "supervisor", "psutil"}


def test_it_keeps_one_descriptor_of_its_front(front: Front) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    process = front.start()
    os.close(writing)
    assert isinstance(front.configure(), wire.Ready)
    assert len(os.listdir(f"/proc/{process.pid}/fd")) == 4
    assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
    assert os.readlink(f"/proc/{process.pid}/fd/1") == os.readlink(f"/proc/{process.pid}/fd/2")
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_a_stray_print_goes_to_the_log(front: Front) -> None:
    process = front.start()
    front.configure()
    assert isinstance(front.ask(wire.Scan(2)), wire.Scanned)
    front.send(wire.Stop())
    assert process.wait(10) == 0
    assert process.stderr is not None
    assert b"a stray print" in process.stderr.read()


def test_it_ends_when_its_front_closes(front: Front) -> None:
    process = front.start()
    front.configure()
    front.sock.close()
    assert process.wait(10) == 0


def test_it_dies_with_its_parent_even_while_it_hangs(front: Front) -> None:
    parent, pid = front.start_below_another()
    assert isinstance(front.configure(do="hang"), wire.Ready)
    front.send(wire.Scan(2))
    parent.kill()
    parent.wait()
    until(lambda: gone(pid), 5)


def test_one_that_was_stopped_dies_with_its_parent_too(front: Front) -> None:
    parent, pid = front.start_below_another()
    assert isinstance(front.configure(), wire.Ready)
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    until(lambda: gone(pid), 5)


def test_signals_for_the_group_do_not_end_it_and_its_children_are_not_deaf(front: Front) -> None:
    process = front.start(preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))
    assert isinstance(front.configure(do="child"), wire.Ready)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
    reply = front.ask(wire.Scan(2))
    assert isinstance(reply, wire.Scanned)
    assert reply.inventory is not None
    child = int(reply.inventory.absent)
    masks = read_signals(child)
    os.kill(child, signal.SIGKILL)
    assert masks is not None
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        assert not masks.harmless(number)


@pytest.mark.parametrize(
    ("manifest", "config", "text"),
    [
        ("BROKEN", {}, "No module named 'no_such_module'"),
        ("MISSING", {}, "MISSING"),
        ("MANIFEST", {"do": "no card"}, "no card"),
        ("MANIFEST", {"colour": "red"}, "colour"),
    ],
)
def test_a_vendor_that_cannot_be_loaded_is_explained(
    front: Front, manifest: str, config: dict[str, str], text: str
) -> None:
    process = front.start(manifest)
    reply = front.configure(**config)
    assert isinstance(reply, wire.Failed)
    assert reply.number == 1
    assert text in reply.error
    assert process.wait(10) == 1


def test_a_request_before_the_configuration_and_rubbish_end_it(front: Front) -> None:
    process = front.start()
    assert isinstance(front.ask(wire.Scan(9)), wire.Failed)
    assert process.wait(10) == 1


def test_rubbish_ends_it_with_a_word_in_the_log(front: Front) -> None:
    process = front.start()
    front.configure()
    front.sock.sendall(wire.HEADER.pack(3) + b"\xc1\xc1\xc1")
    assert process.wait(10) == 1
    assert process.stderr is not None
    assert b"unreadable" in process.stderr.read()


def test_its_private_memory_fits_the_budget(front: Front) -> None:
    process = front.start()
    assert isinstance(front.configure(), wire.Ready)
    front.ask(wire.Scan(2))
    with open(f"/proc/{process.pid}/smaps_rollup") as file:
        rows = dict(line.split(":", 1) for line in file if ":" in line and line.startswith("Private_Dirty"))
    assert int(rows["Private_Dirty"].split()[0]) < 12 * 1024, json.dumps(rows)
