"""Never two fronts for one resource, and never a lock in a child's hands, whatever becomes of supervisord."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from devherd.process import children_of, read_command
from devherd.run import leftovers
from devherd.run.supervisor import StartFailed, Supervisor
from support.watchsite import WatchSite

HOLDER = """
import os, subprocess, sys, time
from devherd.process import adopt_lock
adopt_lock()
# One child by fork alone and one by exec, both with every descriptor they can get.
forked = os.fork()
if forked == 0:
    time.sleep(60)
    os._exit(0)
execed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
print(os.getpid(), forked, execed.pid, flush=True)
time.sleep(60)
"""


class Counter:
    """Looks as often as it can how many of a front there are at a time."""

    def __init__(self, site: WatchSite, name: str) -> None:
        self.most = 0
        self._site, self._name = site, name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.most = max(self.most, len(self._site.running(self._name)))
            time.sleep(0.01)

    def __enter__(self) -> Counter:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        self._thread.join()


def test_supervisord_killed_or_out_of_memory_and_started_again() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        with Counter(site, "one") as counter:
            for _ in range(3):
                before = site.pids()["one"]
                os.kill(site.supervisor.pid or 0, signal.SIGKILL)
                site.supervisor.start()
                site.until(lambda: site.pids().get("one", before) != before)  # noqa: B023 (used at once)
        assert counter.most == 1
        assert len(site.running("one")) == len(site.running("two")) == 1


def test_a_second_supervisord_starts_no_second_front() -> None:
    """Started twice by the service, and by hand without the launcher that would refuse it."""
    with WatchSite("one") as site:
        site.start()
        first = site.pids()["one"]
        with Counter(site, "one") as counter:
            second = Supervisor(site.layout)
            with pytest.raises(StartFailed):
                second.start(timeout=3)
            second.stop(timeout=1)
            second.close()
            other = site.layout.at("etc", "other.conf")
            text = Path(site.layout.supervisor_config).read_text()
            text = text.replace("supervisor.sock", "other.sock").replace("supervisord.pid", "other.pid")
            Path(other).write_text(text.replace("supervisord.log", "other.log"))
            env = {**os.environ, leftovers.MARK: site.layout.folder}
            command = [sys.executable, "-I", "-m", "supervisor.supervisord", "-n", "-c", other]
            with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bare:
                site.until(lambda: "already runs as pid" in Path(site.layout.log, "one.log").read_text())
                bare.terminate()
                bare.wait(20)
        assert counter.most == 1
        assert site.running("one") == [first]
        site.until(lambda: site.watcher()["pid"])


def test_supervisord_restarts_itself_in_place_for_an_upgrade() -> None:
    """`supervisorctl reload`: the same pid becomes a new supervisord, which must not lose its own lock either."""
    with WatchSite("one") as site:
        site.start()
        before = site.pids()["one"]
        with Counter(site, "one") as counter:
            site.ctl("reload")
            site.until(lambda: site.pids().get("one", before) != before)
            site.until(lambda: site.watcher()["pid"])
        assert counter.most == 1
        second = Supervisor(site.layout)
        with pytest.raises(StartFailed, match="already runs as pid"):
            second.start(timeout=20)
        second.close()
        assert len(site.running("one")) == 1


def test_an_update_of_the_program_replaces_the_front_without_overlap() -> None:
    with WatchSite("one", "two") as site:
        site.start()
        before = site.pids()
        path = Path(site.layout.at("etc", "supervisord.d", "one.conf"))
        path.write_text(path.read_text() + "priority = 200\n")
        with Counter(site, "one") as counter:
            site.ctl("update")
            site.until(lambda: site.pids().get("one", before["one"]) != before["one"])
        assert counter.most == 1
        assert site.pids()["two"] == before["two"]
        assert "one" not in site.watcher()["supervised"] or not site.supervised("one").get("stopped_by")


def test_no_child_inherits_the_lock(tmp_path: Path) -> None:
    """With the holder killed and both kinds of child alive, the next one starts at once."""
    launcher = [sys.executable, "-I", "-m", "devherd.launcher", "--name", "x", "--lock", str(tmp_path / "x.lock")]
    with subprocess.Popen(
        [*launcher, "--wait", "1", "--", sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pid, *children = map(int, holder.stdout.readline().split())
        try:
            assert set(children) == set(children_of(pid))
            holder.kill()
            holder.wait()
            began = time.monotonic()
            done = subprocess.run([*launcher, "--wait", "1", "--", "true"], check=False)
            assert done.returncode == 0
            assert time.monotonic() - began < 1.0
            assert all(read_command(child) for child in children), "they lived all the time"
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
            holder.kill()


def test_a_lock_file_removed_while_somebody_waits_for_it_admits_only_one(tmp_path: Path) -> None:
    """The one that waited has a lock on a file that nobody else will ever open."""
    path = tmp_path / "x.lock"
    launcher = [sys.executable, "-I", "-m", "devherd.launcher", "--name", "x", "--lock", str(path), "--wait"]
    first = subprocess.Popen([*launcher, "1", "--", "sleep", "60"])
    waiting = None
    try:
        deadline = time.monotonic() + 5
        while read_command(first.pid)[:1] != ["sleep"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        waiting = subprocess.Popen([*launcher, "20", "--", "sleep", "60"])
        while not any(os.path.realpath(f"/proc/{waiting.pid}/fd/{fd}") == str(path) for fd in _fds(waiting.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        path.unlink()
        first.kill()
        first.wait()
        while read_command(waiting.pid)[:1] != ["sleep"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        third = subprocess.run([*launcher, "0", "--", "true"], check=False, capture_output=True, text=True)
        assert third.returncode == 75
        assert f"already runs as pid {waiting.pid}" in third.stderr
    finally:
        for process in (first, waiting):
            if process is not None:
                process.kill()
                process.wait()


def _fds(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
