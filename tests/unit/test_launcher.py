"""The launcher, as real processes: what the command it becomes sees, and who may live beside whom."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from devherd.process import read_signals, read_stat

WAIT = "2"

STUB = """
import json, os, signal, subprocess, sys, time
from devherd.process import adopt_lock
say = lambda **what: print(json.dumps(what), flush=True)
mode = sys.argv[1]
lock = os.environ.get("DEVHERD_LOCK_FD", "")
adopt_lock()
got = []
if mode == "late":
    say(pid=os.getpid(), blocked=sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    sys.stdin.readline()
    for number in (1, 2, 10, 12, 15):
        signal.signal(number, lambda n, f: got.append(n))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    say(got=sorted(got))
    sys.exit(0)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif mode == "look":
    import resource
    say(nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[0], nice=os.getpriority(os.PRIO_PROCESS, 0),
        oom=int(open("/proc/self/oom_score_adj").read()), inheritable=os.get_inheritable(int(lock)),
        environment="DEVHERD_LOCK_FD" in os.environ)
    sys.exit(0)
child = 0
if mode == "parent":
    os.set_inheritable(int(lock), True)
    child = subprocess.Popen(["sleep", "60"], close_fds=False).pid
signal.pthread_sigmask(signal.SIG_SETMASK, ())
say(pid=os.getpid(), child=child)
while True:
    time.sleep(60)
"""

MIDDLE = """
import subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
process.wait()
"""
"""Stands for supervisord: starts what it is told and lives until it is killed."""


class Scene:
    """A folder, and every process started in it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock = f"{folder}/run/a.lock"
        self._processes: list[subprocess.Popen[str]] = []
        self._pids: list[int] = []
        for name, text in (("stub.py", STUB), ("middle.py", MIDDLE)):
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)

    def command(self, mode: str, *options: str) -> list[str]:
        python = [sys.executable, "-I"]
        launcher = [*python, "-m", "devherd.launcher", "--name", "generic", "--lock", self.lock, "--wait", WAIT]
        return [*launcher, *options, "--", *python, f"{self.folder}/stub.py", mode]

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._processes.append(process)
        return process

    def supervised(self, mode: str) -> subprocess.Popen[str]:
        """The stub under a parent of its own; its words come out of the parent's stdout."""
        return self.start(sys.executable, f"{self.folder}/middle.py", *self.command(mode))

    def heard(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        words: dict[str, Any] = json.loads(process.stdout.readline())
        self._pids += [words[key] for key in ("pid", "child") if words.get(key)]
        return words

    def end(self) -> None:
        for pid in self._pids:
            if read_stat(pid) is not None:
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
    yield scene
    scene.end()
    shutil.rmtree(scene.folder)


def until(condition: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.state == "Z"


def test_no_signal_is_lost_between_the_launcher_and_the_handlers(scene: Scene) -> None:
    process = scene.start(*scene.command("late"))

    def blocked() -> bool:
        masks = read_signals(process.pid)
        return masks is not None and bool(masks.blocked >> (signal.SIGUSR1 - 1) & 1)

    until(blocked)
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2):
        process.send_signal(number)
    words = scene.heard(process)
    assert words["pid"] == process.pid
    assert words["blocked"] == [1, 2, 10, 12, 15]
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.stdin is not None
    print(file=process.stdin, flush=True)
    assert scene.heard(process)["got"] == [1, 2, 10, 12, 15]
    assert process.wait() == 0


def test_under_a_launched_supervisor_signals_are_blocked_from_birth(scene: Scene) -> None:
    """The mask that `--supervisor` leaves in supervisord is what its children are born with."""
    process = scene.start(
        *[
            sys.executable,
            "-I",
            "-m",
            "devherd.launcher",
            "--supervisor",
            "--name",
            "s",
            "--lock",
            f"{scene.folder}/s.lock",
        ],
        *["--", sys.executable, f"{scene.folder}/middle.py", *scene.command("late")],
    )
    until(lambda: (masks := read_signals(process.pid)) is not None and masks.blocked == 1 << 0 | 1 << 9 | 1 << 11)
    pid = 0

    def child() -> bool:
        nonlocal pid
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            pids = file.read().split()
        pid = int(pids[0]) if pids else 0
        return pid != 0

    until(child)
    os.kill(pid, signal.SIGUSR1)
    os.kill(pid, signal.SIGHUP)
    assert scene.heard(process)["pid"] == pid


def test_it_asks_the_kernel_to_be_ended_with_its_parent(scene: Scene) -> None:
    parent = scene.supervised("idle")
    pid = scene.heard(parent)["pid"]
    parent.kill()
    until(lambda: gone(pid), 5)


def test_a_program_whose_supervisord_is_gone_before_it_starts_does_not_start(scene: Scene) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    done = subprocess.run(
        scene.command("idle"),
        stdin=reading,
        capture_output=True,
        text=True,
        timeout=10,
        env={**os.environ, "SUPERVISOR_ENABLED": "1"},
    )
    os.close(reading)
    assert done.returncode == 0
    assert "supervisord is gone" in done.stderr
    assert done.stdout == ""


def test_a_second_one_waits_and_then_names_the_first(scene: Scene) -> None:
    first = scene.start(*scene.command("idle"))
    pid = scene.heard(first)["pid"]
    started = time.monotonic()
    second = scene.start(*scene.command("idle"))
    out, err = second.communicate(timeout=20)
    assert second.returncode == 75
    assert time.monotonic() - started >= float(WAIT)
    assert f"generic already runs as pid {pid}, supervised by pid {os.getpid()}" in err
    assert out == ""
    assert first.poll() is None


def test_a_second_one_follows_as_soon_as_the_first_is_gone(scene: Scene) -> None:
    first = scene.start(*scene.command("idle"))
    scene.heard(first)
    second = scene.start(*scene.command("idle"))
    until(lambda: (masks := read_signals(second.pid)) is not None and masks.blocked >> 9 & 1)
    first.terminate()
    first.wait()
    assert scene.heard(second)["pid"] == second.pid


def test_a_stop_while_waiting_for_the_lock_is_obeyed_at_once(scene: Scene) -> None:
    first = scene.start(*scene.command("idle"))
    scene.heard(first)
    second = scene.start(*scene.command("idle"))
    until(lambda: (masks := read_signals(second.pid)) is not None and masks.blocked >> 9 & 1)
    second.terminate()
    started = time.monotonic()
    assert second.wait(10) == 128 + signal.SIGTERM
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("mode", ["idle", "stubborn"])
def test_no_orphan_lives_on_beside_its_successor(scene: Scene, mode: str) -> None:
    parent = scene.supervised(mode)
    orphan = scene.heard(parent)["pid"]
    parent.kill()
    parent.wait()
    successor = scene.start(*scene.command("idle"))
    assert scene.heard(successor)["pid"] == successor.pid
    assert gone(orphan)


def test_an_orphan_that_cannot_even_run_is_killed(scene: Scene) -> None:
    parent = scene.supervised("idle")
    orphan = scene.heard(parent)["pid"]
    os.kill(orphan, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    successor = scene.start(*scene.command("idle"))
    assert scene.heard(successor)["pid"] == successor.pid
    assert gone(orphan)


def test_a_child_never_holds_the_lock_even_with_its_descriptor(scene: Scene) -> None:
    first = scene.start(*scene.command("parent"))
    child = scene.heard(first)["child"]
    first.kill()
    first.wait()
    assert not gone(child)
    second = scene.start(*scene.command("idle"))
    started = time.monotonic()
    assert scene.heard(second)["pid"] == second.pid
    assert time.monotonic() - started < float(WAIT)


def test_a_lock_file_left_by_another_boot_is_no_obstacle(scene: Scene) -> None:
    os.makedirs(os.path.dirname(scene.lock))
    with open(scene.lock, "w") as file:
        file.write(f"{os.getpid()} 5 1 1\nrubbish")
    process = scene.start(*scene.command("idle"))
    assert scene.heard(process)["pid"] == process.pid


def test_limits_reach_the_command_and_the_descriptor_stays_with_it(scene: Scene) -> None:
    process = scene.start(*scene.command("look", "--nice", "5", "--nofile", "512", "--oom", "300"))
    assert scene.heard(process) == {
        "nofile": 512,
        "nice": 5,
        "oom": 300,
        "inheritable": False,
        "environment": False,
    }


def test_what_may_not_be_set_is_said_and_skipped(scene: Scene) -> None:
    process = scene.start(*scene.command("look", "--oom", "100000"))
    assert scene.heard(process)["oom"] != 100000
    assert "cannot set oom_score_adj 100000" in process.communicate()[1]


def function(scene: Scene, vendor: str, of_class: str) -> None:
    folder = f"{scene.folder}/sys/bus/pci/devices/0000:01:00.0"
    os.makedirs(folder, exist_ok=True)
    for name, text in (("vendor", vendor), ("class", of_class)):
        with open(f"{folder}/{name}", "w") as file:
            file.write(text + "\n")


def wanting(scene: Scene, words: str, *more: str) -> list[str]:
    return scene.command("look", "--hardware", words, "--sys", f"{scene.folder}/sys", *more)


@pytest.mark.parametrize("words", ["pci:10de", "pci:10de:03", "pci:1002,pci:10de:03", "path:/dev/null"])
def test_with_its_hardware_a_program_starts(scene: Scene, words: str) -> None:
    function(scene, "0x10de", "0x030200")
    assert "nofile" in scene.heard(scene.start(*wanting(scene, words)))


def test_a_program_that_served_something_before_starts_whatever_is_there_now(scene: Scene) -> None:
    known = f"{scene.folder}/generic.inventory.json"
    with open(known, "w") as file:
        file.write('{"kind":"inventory"}\n{"boot_id":"b","inventory":{"resources":[{"name":"a/b"}]}}\n')
    assert "nofile" in scene.heard(scene.start(*wanting(scene, "pci:10de", "--known", known)))


def test_without_its_hardware_a_program_ends_after_startsecs_with_the_expected_status(scene: Scene) -> None:
    function(scene, "0x10de", "0x068000")
    began = time.monotonic()
    process = scene.start(*wanting(scene, "pci:10de:03,pci:1002,path:/dev/nothing"))
    assert process.wait(30) == 69
    assert time.monotonic() - began > 10
    assert "no hardware for generic" in process.communicate()[1]


def test_a_wait_for_hardware_can_be_stopped(scene: Scene) -> None:
    process = scene.start(*wanting(scene, "pci:10de"))
    until(lambda: os.path.exists(scene.lock) and os.path.getsize(scene.lock))
    process.terminate()
    assert process.wait(5) == 143


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "usage"),
        (["--name", "x", "--lock", "/nonexistent/x"], 2, "usage"),
        (["--name", "x", "--colour", "red", "--", "true"], 2, "--colour"),
        (["--name", "x", "--nice", "very", "--lock", "{folder}/l", "--", "true"], 2, "very"),
        (["--name", "x", "--lock", "{folder}/l", "--", "/nonexistent/program"], 127, "/nonexistent/program"),
        (["--name", "x", "--lock", "/proc/nowhere/l", "--", "true"], 75, "/proc/nowhere"),
    ],
)
def test_mistakes_are_explained(scene: Scene, arguments: list[str], status: int, text: str) -> None:
    process = scene.start(
        sys.executable, "-I", "-m", "devherd.launcher", *(a.format(folder=scene.folder) for a in arguments)
    )
    assert process.wait(10) == status
    assert text in process.communicate()[1]


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = "import sys, devherd.launcher; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = ("msgspec", "grpc", "google", "asyncio", "json", "argparse", "subprocess", "ctypes", "logging")
    out = subprocess.run([sys.executable, "-I", "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
