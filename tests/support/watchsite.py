"""supervisord, launcher and watcher as they are, with stub fronts that can be told to misbehave, and a stub kubelet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from devherd.control import ControlError, ask
from devherd.process import read_command, read_stat
from devherd.run import leftovers
from devherd.run.layout import Layout
from devherd.run.render import render, write_settings
from devherd.run.supervisor import Supervisor

FRONT = """
import json, os, select, signal, sys, time
from devherd.control import PollServer
from devherd.process import adopt_lock
from devherd_watcher.owner import listener
adopt_lock()
name, log, run, modes, kubelet = sys.argv[1:6]
def say(what):
    with open(log, "a") as file:
        file.write(json.dumps([name, os.getpid(), what, time.monotonic()]) + "\\n")
def mode():
    # "WORD" is for whoever runs, "WORD PID" for that process only: a restart heals it.
    try:
        words = open(f"{modes}/{name}").read().split()
    except OSError:
        return ""
    return words[0] if words and words[1:] in ([], [str(os.getpid())]) else ""
say("start")
began = time.monotonic()
def note(number, frame):
    say(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, note)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
def answer(request):
    if request["op"] == "ping":
        return {"pid": os.getpid()}
    row = {"name": f"example.com/{name}", "state": "registered", "error": ""}
    document = {"plugin": name, "kubelet": {"state": "away", "pid": None, "start_time": None}, "resources": [row]}
    try:
        seen = listener(kubelet)
    except OSError:
        seen = None
    if seen is not None and mode() != "blind":
        document["kubelet"] = {"state": "up", "pid": seen.pid, "start_time": seen.start_time}
    if mode() in ("blind", "late"):
        row.update(state="waiting", error="the kubelet does not answer")
    return document
server = PollServer(f"{run}/{name}.control.sock", answer)
say("ready")
while True:
    now = mode()
    age = time.monotonic() - began
    if now == "crash" and age > 1.3:
        say("crash")
        os._exit(3)
    if now == "fail":
        os._exit(4)
    if now == "absent" and age > 1.3:
        say("absent")
        os._exit(69)
    poller = select.poll()
    for fd in server.fds():
        poller.register(fd, select.POLLIN)
    for fd, _ in poller.poll(50):
        if now != "mute":
            server.ready(fd)
        else:
            time.sleep(0.05)
"""

PROGRAM = """
[program:{name}]
command = {python} -I -m devherd.launcher --name {name} --lock {run}/{name}.lock --wait 2
  -- {python} -I {stub} {name} {log} {run} {modes} {kubelet} -m devherd.front --plugin {name} --manifest {manifest}
environment = NOTIFY_SOCKET=""
startsecs = 1
startretries = {retries}
autorestart = unexpected
exitcodes = 69
stopsignal = TERM
stopwaitsecs = 2
stopasgroup = true
killasgroup = true
redirect_stderr = true
stdout_logfile = {logs}/{name}.log
"""

KUBELET = """
import os, socket, sys
path = sys.argv[1]
sock = socket.socket(socket.AF_UNIX)
if os.path.exists(path):
    os.unlink(path)
sock.bind(path)
sock.listen(int(sys.argv[2]))
print("up", flush=True)
while sys.argv[2] != "0":
    sock.accept()[0].close()
sys.stdin.read()
"""

QUICK = {"confirm": 0.2, "ping": 0.3, "silent": 1.5, "hold_first": 0.5, "hold_max": 4.0, "stable": 60.0}
MANIFEST = "devherd_generic.manifest:MANIFEST"


class WatchSite:
    """Use as a context manager: nothing it started outlives it."""

    def __init__(self, *names: str, retries: int = 1000, manifest: str = MANIFEST, **rules: Any) -> None:
        self.layout = Layout(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
        self.layout.make()
        self.log = self.layout.at("fronts.jsonl")
        self.modes = self.layout.at("modes")
        self.supervisor = Supervisor(self.layout)
        self.names = names
        self._kubelet: subprocess.Popen[str] | None = None
        os.mkdir(self.layout.device_plugins)
        os.mkdir(self.modes)
        Path(self.log).touch()
        stub = self.layout.at("front.py")
        Path(stub).write_text(FRONT)
        self.configure(**rules)
        render(self.layout, ["watcher"])
        for name in names:
            text = PROGRAM.format(
                name=name,
                python=sys.executable,
                run=self.layout.run,
                stub=stub,
                log=self.log,
                modes=self.modes,
                kubelet=self.kubelet_sock,
                manifest=manifest,
                retries=retries,
                logs=self.layout.log,
            )
            Path(self.layout.at("etc", "supervisord.d", f"{name}.conf")).write_text(text)

    def __enter__(self) -> WatchSite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.words()[-6000:])
        self.end_kubelet()
        leftovers.end(self.layout.folder)
        self.supervisor.close()
        subprocess.run(["rm", "-rf", self.layout.folder], check=False)

    def configure(self, **rules: Any) -> None:
        """Write devherd.yaml."""
        names = ("run", "etc", "state", "log", "device_plugins")
        paths = {name: getattr(self.layout, name) for name in names}
        write_settings(self.layout, {"paths": paths, "watcher": {**QUICK, **rules}})

    @property
    def kubelet_sock(self) -> str:
        return os.path.join(self.layout.device_plugins, "kubelet.sock")

    # The cast

    def start(self) -> None:
        """supervisord, the watcher, and all fronts ready."""
        self.supervisor.start()
        self.until(lambda: set(self.pids()) == set(self.names), what="all fronts ready")

    def start_kubelet(self, backlog: int = 16) -> int:
        """Another kubelet. `backlog` 0: one that takes no connection after the first."""
        self.end_kubelet()
        self._kubelet = subprocess.Popen(
            [sys.executable, "-I", "-c", KUBELET, self.kubelet_sock, str(backlog)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._kubelet.stdout is not None
        assert self._kubelet.stdout.readline() == "up\n"
        return self._kubelet.pid

    def freeze_kubelet(self) -> None:
        assert self._kubelet is not None
        self._kubelet.send_signal(signal.SIGSTOP)

    def end_kubelet(self) -> None:
        if self._kubelet is not None:
            self._kubelet.kill()
            self._kubelet.communicate()
            self._kubelet = None

    def mode(self, name: str, word: str) -> None:
        """How a front behaves from now on; `word` may be followed by the pid it is for."""
        path = os.path.join(self.modes, name)
        Path(path + ".new").write_text(word)
        os.replace(path + ".new", path)

    # What is seen

    def events(self, name: str = "", what: str = "") -> list[tuple[str, int, str, float]]:
        """What the stubs wrote down."""
        rows = [tuple(json.loads(line)) for line in Path(self.log).read_text().splitlines()]
        return [row for row in rows if (not name or row[0] == name) and (not what or row[2] == what)]

    def count(self, name: str, what: str = "start") -> int:
        return len(self.events(name, what))

    def pids(self) -> dict[str, int]:
        """Fronts that are ready and alive."""
        found = {row[0]: row[1] for row in self.events(what="ready")}
        return {name: pid for name, pid in found.items() if (stat := read_stat(pid)) and stat.state != "Z"}

    def running(self, name: str) -> list[int]:
        """Pids of all that is this front now, whoever started it."""
        pids = []
        for pid in leftovers.marked(self.layout.folder):
            command = read_command(pid)
            if "devherd.front" in command and "devherd.launcher" not in command and name in command:
                pids.append(pid)
        return pids

    def watcher(self) -> dict[str, Any]:
        return ask(self.layout.at("run", "watcher.control.sock"), {"op": "status"})

    def registration(self) -> dict[str, Any]:
        """What the watcher says of registrations; empty while it knows no kubelet."""
        return self.watcher()["registration"] or {}

    def supervised(self, name: str) -> dict[str, Any]:
        """What the watcher says of a program beyond its pid."""
        found: dict[str, Any] = self.watcher()["supervised"].get(name, {})
        return found

    def trail(self, kind: str = "", **fields: Any) -> list[dict[str, Any]]:
        """The watcher's audit events."""
        path = Path(self.layout.log, "events", "watcher.jsonl")
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        return [row for row in rows if kind in ("", row["kind"]) and all(row.get(key) == fields[key] for key in fields)]

    def ctl(self, *arguments: str) -> str:
        """supervisorctl, as an operator types it."""
        command = [sys.executable, "-I", "-m", "supervisor.supervisorctl", "-c", self.layout.supervisor_config]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False).stdout

    def words(self) -> str:
        """What everybody logged, for a failed test."""
        texts = [self.supervisor.last_words()]
        with contextlib.suppress(OSError):
            texts.append(Path(self.layout.log, "watcher.log").read_text())
        return "\n".join(texts)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
        """Ask again and again until it is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = condition()
            except (ControlError, FileNotFoundError):
                found = None
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"still not so after {seconds:g} s: {what}\n{self.words()[-3000:]}")
            time.sleep(0.02)
