"""The watcher with real fronts, a simulated kubelet that behaves, and supervisord's own states."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.control import ControlError, ask
from devherd.process import read_command
from devherd.run import leftovers
from devherd.run.instance import Instance, Wish
from devherd_watcher import supervisor
from supervisor.xmlrpc import SupervisorTransport
from support.watchsite import QUICK, WatchSite

ACCELERATOR = "example.com/accelerator"


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with Instance(Wish(settings={"watcher": {**QUICK, "silent": 2.0}}), "w") as running:
        running.kubelet.client.wait_resource(ACCELERATOR, allocatable=8, timeout=20)
        yield running
    shutil.rmtree(folder, ignore_errors=True)


def watcher(instance: Instance) -> dict[str, Any]:
    return ask(instance.layout.at("run", "watcher.control.sock"), {"op": "status"})


def fronts(instance: Instance) -> list[int]:
    pids = leftovers.marked(instance.layout.folder)
    commands = {pid: read_command(pid) for pid in pids}
    return [pid for pid, words in commands.items() if "devherd.front" in words and "devherd.launcher" not in words]


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ControlError):
            if found := condition():
                return found
        assert time.monotonic() < end
        time.sleep(0.02)


def test_each_kubelet_is_confirmed_and_a_frozen_one_costs_nothing(instance: Instance) -> None:
    (front,) = fronts(instance)
    client = instance.kubelet.client
    client.pod_add("held", {ACCELERATOR: 2}, wait=10)
    for _ in range(2):
        instance.kubelet.restart()
        pid = instance.kubelet.pid
        until(lambda: (watcher(instance)["registration"] or {}).get("pid") == pid)  # noqa: B023 (used at once)
        until(lambda: watcher(instance)["registration"]["state"] == "confirmed")
    instance.kubelet.freeze()
    time.sleep(4.0)
    instance.kubelet.unfreeze()
    assert fronts(instance) == [front]
    assert watcher(instance)["problems"] == []
    client.wait_pod("held", timeout=10)


def test_a_front_that_hangs_is_replaced_and_its_pods_keep_their_devices(instance: Instance) -> None:
    client = instance.kubelet.client
    client.pod_add("held", {ACCELERATOR: 2}, wait=10)
    (front,) = fronts(instance)
    os.kill(front, signal.SIGSTOP)
    until(lambda: (now := fronts(instance)) and front not in now, 40)
    client.wait_resource(ACCELERATOR, allocatable=8, timeout=20)
    client.pod_add("next", {ACCELERATOR: 6}, wait=20)
    client.wait_pod("held", timeout=10)
    client.wait_pod("next", timeout=10)
    assert len(fronts(instance)) == 1


def test_the_watcher_stays_light_whatever_it_had_to_do() -> None:
    """What it reads, it reads in short-lived children. How much it needs at all is a figure of the bench."""
    with WatchSite("one", "two", "three", ping=0.1) as site:
        site.start()
        site.start_kubelet()
        site.until(lambda: site.registration().get("state") == "confirmed")
        pid = site.watcher()["pid"]
        site.until(lambda: not children_of_watcher(pid))
        before = own_memory(pid)
        for _ in range(3):
            site.start_kubelet()
            site.until(lambda: site.registration().get("state") == "confirmed")
        os.kill(site.pids()["one"], signal.SIGKILL)
        site.until(lambda: len(site.pids()) == 3)
        os.kill(pid, signal.SIGHUP)
        site.until(lambda: "configuration loaded" in Path(site.layout.log, "watcher.log").read_text())
        site.until(lambda: not children_of_watcher(pid))
        assert site.watcher()["pid"] == pid
        assert own_memory(pid) - before < 1024, (before, own_memory(pid))


def own_memory(pid: int) -> int:
    """Anonymous memory in KiB: what the process wrote, whoever else maps the same files."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(row.split()[1] for row in rows if row.startswith("Anonymous:")))


def children_of_watcher(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()


UNKNOWN = """
from supervisor.states import ProcessStates
class Interface:
    def __init__(self, supervisord):
        self.supervisord = supervisord
    def lose(self, group):
        for process in self.supervisord.process_groups[group].processes.values():
            process.change_state(ProcessStates.UNKNOWN)
        return True
def make(supervisord, **unused):
    return Interface(supervisord)
"""


def test_what_supervisord_lost_track_of_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UNKNOWN is a state that supervisord itself never leaves and refuses to start from."""
    folder = Path(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
    (folder / "unknown_state.py").write_text(UNKNOWN)
    (folder / "s.conf").write_text(
        f"[supervisord]\nlogfile={folder}/log\npidfile={folder}/pid\nnodaemon=true\n"
        f"[unix_http_server]\nfile={folder}/s.sock\n"
        "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n"
        "[rpcinterface:test]\nsupervisor.rpcinterface_factory=unknown_state:make\n"
        f"[program:x]\ncommand={sys.executable} -c 'import time; time.sleep(60)'\nstartsecs=0\nautorestart=false\n"
    )
    command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(folder / "s.conf")]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"unix://{folder}/s.sock"
        monkeypatch.setenv("SUPERVISOR_SERVER_URL", url)
        server = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=SupervisorTransport(None, None, url))
        until(lambda: (folder / "s.sock").exists())

        def info() -> Any:
            return server.supervisor.getProcessInfo("x")

        until(lambda: info()["statename"] == "RUNNING")
        os.kill(info()["pid"], signal.SIGKILL)
        until(lambda: info()["statename"] == "EXITED")
        server.test.lose("x")
        assert info()["statename"] == "UNKNOWN"
        with pytest.raises(xmlrpc.client.Fault):
            server.supervisor.startProcess("x")
        assert supervisor.start("x")
        until(lambda: info()["statename"] == "RUNNING")
        assert supervisor.start("x"), "it runs already"
        assert supervisor.stop("x")
        until(lambda: info()["statename"] == "STOPPED")
        assert supervisor.stop("x"), "it is stopped already"
    finally:
        process.terminate()
        process.wait(15)
        shutil.rmtree(folder)
