"""Who supervises is killed, stopped, crash-loops or is started twice: devices stay with their pods all the while.

Everything is real here but the kubelet and the node: supervisord, launcher, watcher, the generic plugin.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from devherd.control import ControlError, ask
from devherd.process import LOCK_FD, read_command
from devherd.run import leftovers
from devherd.run.instance import Instance, Wish

ACCELERATOR = "example.com/accelerator"


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    # A pause of the slow poll that no test waits for by accident.
    wish = Wish(settings={"kubelet": {"poll": 60}}, kubelet_options={"admit_gap_ms": 60.0})
    with Instance(wish, "v") as running:
        running.kubelet.client.wait_resource(ACCELERATOR, allocatable=8, timeout=20)
        running.kubelet.client.pod_add("held", {ACCELERATOR: 2}, wait=10)
        yield running
    shutil.rmtree(folder, ignore_errors=True)


def pids(instance: Instance, module: str) -> list[int]:
    found = []
    for pid in leftovers.marked(instance.layout.folder):
        command = read_command(pid)
        if module in command and "devherd.launcher" not in command:
            found.append(pid)
    return found


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ControlError):
            if found := condition():
                return found
        assert time.monotonic() < end
        time.sleep(0.01)


def held(instance: Instance) -> Any:
    pod = instance.kubelet.client.pods("held")[0]
    return pod["phase"], pod["containers"][0]["devices"]


def back(instance: Instance, seconds: float) -> None:
    instance.kubelet.client.wait_resource(ACCELERATOR, allocatable=8, capacity=8, timeout=seconds)


def front(instance: Instance) -> int:
    return int(ask(instance.layout.at("run", "generic.control.sock"), {"op": "ping"})["pid"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_kubelet_restarts_without_a_watcher(instance: Instance, number: signal.Signals) -> None:
    """Dead, or alive and deaf: fronts see the kubelet by themselves."""
    before, pid = held(instance), front(instance)
    stopping = threading.Event()

    def loop() -> None:
        while not stopping.wait(0.02):
            for watcher in pids(instance, "devherd_watcher"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(watcher, number)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        time.sleep(0.2)
        for hard in (False, True, True):
            instance.kubelet.restart(hard=hard)
            back(instance, 2)
            assert held(instance) == before
    finally:
        stopping.set()
        thread.join()
        for watcher in pids(instance, "devherd_watcher"):
            os.kill(watcher, signal.SIGCONT)
    assert front(instance) == pid
    until(lambda: ask(instance.layout.at("run", "watcher.control.sock"), {"op": "ping"}), 30)


def test_kubelet_restarts_while_supervisord_hangs(instance: Instance) -> None:
    before, pid = held(instance), front(instance)
    supervisor = instance.supervisor.pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGSTOP)
    try:
        for _ in range(3):
            instance.kubelet.restart(hard=True)
            back(instance, 2)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert held(instance) == before
    assert front(instance) == pid


def test_supervisord_killed_leaves_one_front_and_every_pod(instance: Instance) -> None:
    before = held(instance)
    for pause in (0.0, 0.01, 0.1, 0.5):
        supervisor = instance.supervisor.pid
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        time.sleep(pause)
        instance.supervisor.start()
        until(lambda: instance.kubelet.client.node()["resources"][ACCELERATOR]["allocatable"] == 8)
        until(lambda: pids(instance, "devherd.front") == [front(instance)])
        assert len(until(lambda: pids(instance, "devherd.probe"))) == 1
        assert held(instance) == before
    instance.kubelet.restart()
    back(instance, 3)
    assert held(instance) == before


def test_supervisord_killed_with_a_front_that_is_stopped(instance: Instance) -> None:
    """It cannot follow its parent: its successor has to end it, or two would serve one resource."""
    before, old = held(instance), front(instance)
    os.kill(old, signal.SIGSTOP)
    supervisor = instance.supervisor.pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    instance.supervisor.start()
    until(lambda: front(instance) != old, 40)
    assert pids(instance, "devherd.front") == [front(instance)]
    back(instance, 10)
    assert held(instance) == before


def test_supervisord_started_twice(instance: Instance) -> None:
    """The second one leaves with a text that names the first; nobody else notices."""
    before, pid = held(instance), front(instance)
    launcher = ["-m", "devherd.launcher", "--supervisor", "--name", "supervisord", "--wait", "1"]
    lock = ["--lock", instance.layout.at("run", "supervisord.lock"), "--"]
    supervisord = [sys.executable, "-I", "-m", "supervisor.supervisord", "-n", "-c", instance.layout.supervisor_config]
    environment = {key: value for key, value in os.environ.items() if key != LOCK_FD}
    done = subprocess.run(
        [sys.executable, "-I", *launcher, *lock, *supervisord],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 75
    assert f"already runs as pid {instance.supervisor.pid}" in done.stderr
    instance.kubelet.restart()
    back(instance, 2)
    assert front(instance) == pid
    assert held(instance) == before


def test_a_front_that_the_oom_killer_takes_comes_back_by_itself(instance: Instance) -> None:
    before, old = held(instance), front(instance)
    os.kill(old, signal.SIGKILL)
    until(lambda: front(instance) != old)
    back(instance, 5)
    assert held(instance) == before
    instance.kubelet.restart(hard=True)
    back(instance, 2)
    assert held(instance) == before
