"""Asks every program of the node at once. Whoever does not answer counts as down and delays nobody else."""

from __future__ import annotations

import http.client
import os
import socket
import time
import xmlrpc.client
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from devherd.control import ControlError, ask
from devherd.expected import Expectation

T = TypeVar("T")
Json = dict[str, Any]
SUFFIX = ".control.sock"
NOT_FRONTS = frozenset({"run", "watcher", "sim", "kubelet", "exporter"})
"""Control sockets beside those of fronts."""
WORKERS = 16
ABSENT_EXIT = 69
"""Exit code of a plugin whose hardware is absent."""


@dataclass(frozen=True)
class Gathered:
    """What the programs said. A front that gave no answer is None; `programs` None: supervisord gave none.

    `expected` is what the node should have, by the files.
    """

    fronts: Mapping[str, Json | None] = field(default_factory=dict)
    devices: Mapping[str, Json | None] = field(default_factory=dict)
    watcher: Json | None = None
    programs: tuple[Json, ...] | None = None
    seconds: float = 0.0
    expected: tuple[Expectation, ...] = ()


class Gatherer:
    """Knows the sockets below `run`. `timeout` in seconds is for each question; `devices` asks for holders too."""

    def __init__(self, run: str, timeout: float, devices: bool = False) -> None:
        self._run = run
        self._timeout = timeout
        self._devices = devices
        self._known: set[str] = set()

    def gather(self) -> Gathered:
        """Ask. Blocks up to a few timeouts; never raises for what a program does."""
        began = time.monotonic()
        names = self._fronts()
        with ThreadPoolExecutor(min(WORKERS, 2 * len(names) + 2), thread_name_prefix="ask") as pool:
            programs = pool.submit(_quiet, lambda: supervisor_programs(f"{self._run}/supervisor.sock", self._timeout))
            watcher = pool.submit(_quiet, lambda: self._ask("watcher", "status"))
            fronts = {name: pool.submit(_quiet, self._question(name, "status")) for name in names}
            devices = {name: pool.submit(_quiet, self._question(name, "devices")) for name in names if self._devices}
            found = Gathered(
                {name: answer.result() for name, answer in fronts.items()},
                {name: answer.result() for name, answer in devices.items()},
                watcher.result(),
                programs.result(),
            )
        fronts_now = self._without_resting(found.fronts, found.programs or ())
        return Gathered(fronts_now, found.devices, found.watcher, found.programs, time.monotonic() - began)

    def _fronts(self) -> list[str]:
        """Fronts with a socket now, and those that had one: a front that died must show as down, not vanish."""
        try:
            names = {name[: -len(SUFFIX)] for name in os.listdir(self._run) if name.endswith(SUFFIX)}
        except OSError:
            names = set()
        self._known |= names - NOT_FRONTS
        return sorted(self._known)

    def _without_resting(self, fronts: Mapping[str, Json | None], programs: tuple[Json, ...]) -> dict[str, Json | None]:
        """Fronts that somebody stopped, or whose hardware is absent, are not down: they are not there."""
        resting = {str(one.get("name")) for one in programs if _rests(one)}
        resting = {name for name in resting if fronts.get(name) is None}
        self._known -= resting
        return {name: answer for name, answer in fronts.items() if name not in resting}

    def _question(self, name: str, op: str) -> Callable[[], Json]:
        return lambda: self._ask(name, op)

    def _ask(self, name: str, op: str) -> Json:
        return ask(f"{self._run}/{name}{SUFFIX}", {"op": op}, timeout=self._timeout)


def _rests(program: Json) -> bool:
    state = program.get("statename")
    return state == "STOPPED" or (state == "EXITED" and program.get("exitstatus") == ABSENT_EXIT)


def _quiet(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except (ControlError, OSError, ValueError, xmlrpc.client.Error, http.client.HTTPException):
        return None


def supervisor_programs(path: str, timeout: float) -> tuple[Json, ...]:
    """supervisord's process list. Raises OSError, xmlrpc.client.Error or HTTPException.

    Not by supervisor's own client: that waits for ever for a supervisord that hangs.
    """
    connection = _Connection(path, timeout)
    try:
        body = xmlrpc.client.dumps((), "supervisor.getAllProcessInfo")
        connection.request("POST", "/RPC2", body, {"Content-Type": "text/xml"})
        answer, _ = xmlrpc.client.loads(connection.getresponse().read(4 * 1024 * 1024))
    finally:
        connection.close()
    rows = answer[0] if answer and isinstance(answer[0], list) else []
    return tuple(row for row in rows if isinstance(row, dict))


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
