"""Real supervisord, launcher and watcher with stub fronts: who is signalled how fast, and who outlives whom."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.control import ask
from devherd.process import children_of, read_command, read_signals, read_stat
from devherd.run import leftovers
from devherd.run.layout import Layout
from devherd.run.render import render, write_settings
from devherd.run.supervisor import Supervisor

STUB = """
import json, os, signal, sys, time
from devherd.process import adopt_lock
adopt_lock()
name, mode, log = sys.argv[1:4]
file = open(log, "a", buffering=1)
def say(what, at):
    file.write(json.dumps([name, os.getpid(), what, at]) + "\\n")
say("start", time.monotonic_ns())
if mode == "absent":
    time.sleep(1.3)
    sys.exit(69)
if mode == "slow":
    time.sleep(0.5)
def note(number, frame):
    say(signal.Signals(number).name, time.monotonic_ns())
    if number == signal.SIGTERM and mode != "stubborn":
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, note)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
say("ready", time.monotonic_ns())
while True:
    time.sleep(600)
"""

PROGRAM = """
[program:{name}]
command = {python} -I -m devherd.launcher --name {name} --lock {run}/{name}.lock --wait 2
  -- {python} -I {stub} {name} {mode} {log} -m devherd.front --plugin {name}
environment = NOTIFY_SOCKET=""
startsecs = 1
startretries = 1000
autorestart = unexpected
exitcodes = 69
stopsignal = TERM
stopwaitsecs = 2
stopasgroup = true
killasgroup = true
redirect_stderr = true
stdout_logfile = {logs}/{name}.log
"""


class Site:
    """supervisord with the watcher and stub fronts, in a folder."""

    def __init__(self, folder: str, fronts: dict[str, str]) -> None:
        self.layout = Layout(folder)
        self.layout.make()
        self.log = self.layout.at("events.jsonl")
        self.supervisor = Supervisor(self.layout)
        Path(self.layout.device_plugins).mkdir()
        Path(self.log).touch()
        stub = self.layout.at("stub.py")
        Path(stub).write_text(STUB)
        write_settings(self.layout, {"paths": {"run": self.layout.run, "device_plugins": self.layout.device_plugins}})
        render(self.layout, ["watcher"])
        for name, mode in fronts.items():
            text = PROGRAM.format(
                name=name,
                mode=mode,
                python=sys.executable,
                run=self.layout.run,
                stub=stub,
                log=self.log,
                logs=self.layout.log,
            )
            Path(self.layout.at("etc", "supervisord.d", f"{name}.conf")).write_text(text)

    @property
    def kubelet_sock(self) -> str:
        return os.path.join(self.layout.device_plugins, "kubelet.sock")

    def events(self, name: str = "", what: str = "") -> list[tuple[str, int, str, int]]:
        rows = [tuple(json.loads(line)) for line in Path(self.log).read_text().splitlines()]
        return [row for row in rows if (not name or row[0] == name) and (not what or row[2] == what)]

    def until(self, condition: Callable[[], Any], seconds: float = 15) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, self.supervisor.last_words()
            time.sleep(0.002)
        return found

    def ready(self, *names: str) -> dict[str, int]:
        """Wait until the fronts have handlers; their pids."""

        def pids() -> dict[str, int] | None:
            found = {row[0]: row[1] for row in self.events(what="ready")}
            alive = {name: pid for name, pid in found.items() if (stat := read_stat(pid)) and stat.state != "Z"}
            return alive if set(names) <= set(alive) else None

        found: dict[str, int] = self.until(pids)
        return found

    def signalled(self, count: int) -> list[tuple[str, int, str, int]]:
        """Wait until the fronts together have had so many SIGUSR1."""
        self.until(lambda: len(self.events(what="SIGUSR1")) == count)
        return self.events(what="SIGUSR1")

    def signalled_at_least(self, count: int) -> None:
        """As many lines as signals, without reading them all each time."""
        self.until(lambda: Path(self.log).read_bytes().count(b"SIGUSR1") >= count)

    def watcher(self) -> dict[str, Any]:
        return ask(self.layout.at("run", "watcher.control.sock"), {"op": "status"})

    def appear(self) -> int:
        """kubelet.sock comes, as a kubelet makes it. Returns the monotonic nanoseconds before it did."""
        with socket.socket(socket.AF_UNIX) as sock:
            if os.path.exists(self.kubelet_sock):
                os.unlink(self.kubelet_sock)
            before = time.monotonic_ns()
            sock.bind(self.kubelet_sock)
        return before

    def end(self) -> None:
        leftovers.end(self.layout.folder)
        self.supervisor.close()


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(**fronts: str) -> Site:
        sites.append(Site(tempfile.mkdtemp(prefix="dh", dir="/tmp"), fronts))
        return sites[-1]

    yield make
    for one in sites:
        one.end()
        shutil.rmtree(one.layout.folder)


def gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.state == "Z"


def test_every_front_is_signalled_within_milliseconds_each_time(site: Callable[..., Site]) -> None:
    here = site(one="plain", two="plain", three="plain")
    here.supervisor.start()
    here.ready("one", "two", "three")
    took: list[float] = []
    for round_ in range(1, 31):
        before = here.appear()
        rows = here.signalled(3 * round_)
        took += [(row[3] - before) / 1e6 for row in rows[-3:]]
    assert {row[0] for row in rows} == {"one", "two", "three"}
    assert statistics.median(took) < 5, sorted(took)
    status = here.watcher()
    assert status["signals"]["rounds"] == 30
    assert status["signals"]["sent"] == 90
    assert {p["name"]: p["front"] for p in status["programs"]} == {"one": True, "two": True, "three": True}


def test_a_front_that_was_restarted_is_signalled_under_its_new_pid(site: Callable[..., Site]) -> None:
    here = site(one="plain", two="plain")
    here.supervisor.start()
    old = here.ready("one", "two")
    os.kill(old["one"], signal.SIGKILL)
    here.until(lambda: here.ready("one", "two")["one"] != old["one"])
    new = here.ready("one", "two")
    here.appear()
    rows = here.signalled(2)
    assert {row[1] for row in rows} == {new["one"], new["two"]}


def test_a_front_that_still_starts_loses_no_signal_and_is_not_killed(site: Callable[..., Site]) -> None:
    """From its first moment: signalled by us as soon as it exists, whatever it is at that moment."""
    here = site(late="slow")
    for _ in range(5):
        here.supervisor.start()
        supervisor = here.supervisor.pid
        assert supervisor is not None

        def child(parent: int = supervisor) -> int:
            for pid in children_of(parent):
                if (command := read_command(pid)) and "devherd_watcher" not in command:
                    return pid
            return 0

        pid = here.until(child)
        masks = read_signals(pid)
        assert masks is not None
        for number in (signal.SIGUSR1, signal.SIGHUP):
            assert masks.harmless(number)
            os.kill(pid, number)
        here.until(lambda: here.events(what="ready"))
        here.until(lambda: here.events(what="SIGHUP") and here.events(what="SIGUSR1"))
        assert {row[1] for row in here.events()} == {pid}
        here.supervisor.stop()
        Path(here.log).write_text("")


def test_the_folder_is_replaced_and_the_next_kubelet_is_still_seen(site: Callable[..., Site]) -> None:
    here = site(one="plain")
    here.supervisor.start()
    here.ready("one")
    shutil.rmtree(here.layout.device_plugins)
    here.until(lambda: here.watcher()["folder"]["watched"] == here.layout.kubelet)
    os.mkdir(here.layout.device_plugins)
    here.until(lambda: here.watcher()["folder"]["watched"] == here.layout.device_plugins)
    here.appear()
    here.until(lambda: here.events(what="SIGUSR1"))


@pytest.mark.parametrize("mode", ["plain", "stubborn"])
def test_no_orphan_lives_beside_a_new_front_after_supervisord_is_killed(site: Callable[..., Site], mode: str) -> None:
    here = site(one=mode)
    here.supervisor.start()
    old = here.ready("one")["one"]
    supervisor = here.supervisor.pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    here.supervisor.start()

    def successor() -> int:
        return next((row[1] for row in here.events(what="start") if row[1] != old), 0)

    new = here.until(successor)
    # The lock is what forbids two at a time: when the new one ran its first line, the old one was gone.
    assert gone(old)
    here.ready("one")
    assert not gone(new)
    running = [pid for pid in leftovers.marked(here.layout.folder) if "devherd.front" in read_command(pid)]
    assert running == [new]
    here.supervisor.stop()
    assert leftovers.marked(here.layout.folder) == []


def test_the_watcher_that_was_restarted_knows_everybody_and_signals_once(site: Callable[..., Site]) -> None:
    here = site(one="plain", two="plain")
    here.supervisor.start()
    here.ready("one", "two")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(here.kubelet_sock)
    here.signalled(2)
    old = here.watcher()["pid"]
    os.kill(old, signal.SIGKILL)
    # What came while nobody watched is unknown, so the fronts are told to look.
    here.signalled(4)
    assert here.watcher()["pid"] != old


def test_a_supervisord_that_hangs_changes_nothing(site: Callable[..., Site]) -> None:
    here = site(one="plain")
    here.supervisor.start()
    here.ready("one")
    supervisor = here.supervisor.pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGSTOP)
    try:
        # More than a pipe holds: a log that nobody reads must not stop the watcher either.
        for round_ in range(1, 801):
            here.appear()
            here.signalled_at_least(round_)
        assert here.watcher()["signals"]["rounds"] == 800
    finally:
        os.kill(supervisor, signal.SIGCONT)


def test_a_stop_reaches_everybody_and_leaves_nothing(site: Callable[..., Site]) -> None:
    here = site(one="plain", two="stubborn")
    here.supervisor.start()
    here.ready("one", "two")
    began = time.monotonic()
    here.supervisor.stop()
    assert time.monotonic() - began < 10
    assert {row[0] for row in here.events(what="SIGTERM")} == {"one", "two"}
    assert len(leftovers.find(here.layout.folder)) == 0


def test_absent_hardware_is_not_started_again(site: Callable[..., Site]) -> None:
    here = site(one="absent")
    here.supervisor.start()
    pid = here.until(lambda: here.events("one", "start"))[0][1]
    here.until(lambda: gone(pid))
    here.until(lambda: (s := here.supervisor.last_words()) and "exited: one (exit status 69; expected)" in s)
    assert len(here.events("one", "start")) == 1


def test_the_watcher_follows_its_configuration(site: Callable[..., Site]) -> None:
    here = site(one="plain")
    here.supervisor.start()
    here.ready("one")
    other = here.layout.at("kubelet", "moved")
    os.mkdir(other)
    pid = here.watcher()["pid"]
    Path(here.layout.config).write_text("paths: {nonsense: 1}\n")
    os.kill(pid, signal.SIGHUP)
    log = Path(here.layout.log, "watcher.log")
    here.until(lambda: "nonsense" in log.read_text())
    assert here.watcher()["folder"]["path"] == here.layout.device_plugins
    write_settings(here.layout, {"paths": {"run": here.layout.run, "device_plugins": other}})
    os.kill(pid, signal.SIGHUP)
    here.until(lambda: here.watcher()["folder"]["path"] == other)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.join(other, "kubelet.sock"))
        here.until(lambda: here.events(what="SIGUSR1"))


def test_the_watcher_is_light(site: Callable[..., Site]) -> None:
    here = site(one="plain")
    here.supervisor.start()
    here.ready("one")
    here.appear()
    here.until(lambda: here.events(what="SIGUSR1"))
    with open(f"/proc/{here.watcher()['pid']}/smaps_rollup") as file:
        rows = {line.split(":")[0]: line.split() for line in file}
    assert int(rows["Private_Dirty"][1]) < 12 * 1024
