"""What supervisord says of its programs, over its Unix socket. Best effort: no answer is no programs."""

from __future__ import annotations

import http.client
import socket
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from devherd import launcher
from devherd.cli.place import Place
from devherd.process import read_command

LAUNCHER = "devherd.launcher"
ABSENT_EXIT = 69
"""A plugin whose hardware is absent ends with this code and is started again when hardware appears."""


@dataclass(frozen=True)
class Program:
    """One program: supervisord's state word, pid (0: none), exit code and its own description.

    `started` is when it was last started, Unix seconds; 0: never, because it is off unless somebody wants it.
    `looking`: its launcher found no hardware for it and waits as long as supervisord wants before it says so.
    """

    name: str
    state: str
    pid: int
    exit_code: int
    description: str
    started: int = 0
    looking: bool = False

    def worth_telling(self) -> bool:
        """False for a program an operator would not miss: its hardware is absent."""
        return not self.looking and not (self.state == "EXITED" and self.exit_code == ABSENT_EXIT)

    def words(self) -> str:
        """Its state in a sentence."""
        texts = {
            "STARTING": "is starting",
            "RUNNING": "runs, but has no control socket yet",
            "STOPPING": "is stopping",
            "STOPPED": "was stopped; start it: supervisorctl start " + self.name,
            "BACKOFF": "fails to start, supervisord tries again",
            "FATAL": "failed to start too often, supervisord gave up",
            "EXITED": f"ended with code {self.exit_code}",
        }
        said = texts.get(self.state, f"is in state {self.state}")
        return f"{said} ({self.description})" if self.description and self.state in {"BACKOFF", "FATAL"} else said


def programs(place: Place) -> list[Program]:
    """Every program of this devherd's supervisord, by name; empty when it cannot be asked."""
    path = place.run / "supervisor.sock"
    if not path.exists():
        return []
    try:
        proxy = xmlrpc.client.ServerProxy("http://supervisor", transport=_UnixTransport(path), allow_none=True)
        listed = cast("list[dict[str, Any]]", proxy.supervisor.getAllProcessInfo())
    except (OSError, xmlrpc.client.Error, http.client.HTTPException):
        return []
    return [_program(item, place) for item in sorted(listed, key=lambda item: str(item.get("name")))]


def _program(item: dict[str, Any], place: Place) -> Program:
    name, pid = str(item.get("name", "")), int(item.get("pid") or 0)
    return Program(
        name=name,
        state=str(item.get("statename", "")),
        pid=pid,
        exit_code=int(item.get("exitstatus") or 0),
        description=str(item.get("spawnerr") or ""),
        started=int(item.get("start") or 0),
        looking=bool(pid) and not (place.run / f"{name}.hold").exists() and _looking(pid),
    )


def _looking(pid: int) -> bool:
    """Whether it is a launcher that finds no hardware for its program: by what the launcher itself goes by."""
    command = read_command(pid)
    if LAUNCHER not in command:
        return False
    try:
        return not launcher.has_hardware(launcher.parse(command[command.index(LAUNCHER) + 1 :]))
    except launcher.Stop:
        return False


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=3.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        """One connection for each call: a command makes one."""
        return _UnixConnection(self._path)
