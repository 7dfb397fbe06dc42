"""Nodes to measure on: production settings, real processes, and the moments that a kubelet noted."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from devherd.inotify import INotify, flags
from devherd.process import Handle
from devherd.sim.kubelet_process import SimKubelet
from support.frontnode import RESOURCE, XDEV, FrontNode, xdevs

DEFAULTS: dict[str, dict[str, Any]] = {
    "health": {"recover": 10.0, "debounce": 10.0},
    "probe": {"deadline": 10.0, "scan_interval": 30.0, "restart_max": 60.0},
    "snapshots": {"grace": 300.0},
}
"""The defaults, where the test node has quicker ones."""

N = TypeVar("N", bound="BenchNode")
CACHE = os.path.join(tempfile.gettempdir(), f"devherd-test-cache-{os.getuid()}")


class BenchNode(FrontNode):
    """A simulated node with the settings that a real one has. The front starts through the launcher."""

    def __init__(
        self,
        spec: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] = XDEV,
        settings: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        merged: dict[str, Any] = {section: dict(values) for section, values in DEFAULTS.items()}
        for section, values in (settings or {}).items():
            merged[section] = {**merged.get(section, {}), **values} if isinstance(values, Mapping) else values
        super().__init__(spec or xdevs(8), config, merged, **more)

    def __enter__(self: N) -> N:
        return self

    def start_front(self) -> int:
        """Start as supervisord does: launcher, lock, a pipe as stdin; the pid stays the same over the exec."""
        python = [sys.executable, *([] if self.pythonpath else ["-I"]), "-X", f"pycache_prefix={CACHE}"]
        launcher = [*python, "-m", "devherd.launcher", "--name", self.plugin, "--lock", f"{self.folder}/run/lock"]
        front = [*python, "-m", "devherd.front", "--plugin", self.plugin, "--manifest", self.manifest]
        environment = {**os.environ, "SUPERVISOR_ENABLED": "1", "PYTHONPATH": self.pythonpath}
        with open(self.log, "ab") as log:
            self.front = subprocess.Popen(
                [*launcher, "--nofile", "4096", "--", *front, "--config", self.config_path],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
            )
        return self.front.pid

    def end_front(self, number: int = signal.SIGTERM, timeout: float = 15.0) -> int | None:
        """Signal the front, wait for its end, and close the pipe that supervisord would hold."""
        front, self.front = self.front, None
        if front is None:
            return None
        # subprocess looks only every 50 ms when it waits with a limit.
        handle = Handle(front.pid)
        handle.send(number)
        handle.wait(timeout)
        handle.close()
        if front.stdin is not None:
            front.stdin.close()
        return front.wait(0.1)

    @property
    def probe_pid(self) -> int:
        """The probe's process id."""
        return int(self.status()["probe"]["pid"])

    def settled(self, resource: str = RESOURCE) -> None:
        """Wait until the kubelet's PodResources confirmed the list: from here on nothing is under way."""
        self.until(lambda: self.resource(resource)["state"] == "registered", timeout=20, what="registered")


def last_event(kubelet: SimKubelet) -> int:
    """The number of the newest event of this kubelet's life."""
    return max((event["seq"] for event in kubelet.client.events()), default=0)


def listed_at(kubelet: SimKubelet, since: int, resource: str = RESOURCE, timeout: float = 30.0, **wanted: int) -> float:
    """When (monotonic) the kubelet took in the first list after event `since` with these counts."""
    event = kubelet.client.wait(timeout, event="list", since=since, resource=resource, **wanted)
    return float(event["t"])


class SocketSeen:
    """Notes when kubelet.sock appears in a folder, as anybody on the machine could see it."""

    def __init__(self, folder: str) -> None:
        self._inotify = INotify()
        self._inotify.add_watch(folder, flags.CREATE | flags.MOVED_TO)
        self._stop, self._wake = os.pipe()
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._inotify.fileno(), self._stop], [], [])
            now = time.monotonic()
            if self._stop in ready:
                return
            if any(event.name == "kubelet.sock" for event in self._inotify.read(timeout=0)):
                self.times.append(now)

    def close(self) -> None:
        """End the thread."""
        os.write(self._wake, b"x")
        self._thread.join()
        self._inotify.close()
        os.close(self._stop)
        os.close(self._wake)


@contextlib.contextmanager
def seeing_sockets(folder: str) -> Iterator[SocketSeen]:
    """A `SocketSeen` for a while."""
    seen = SocketSeen(folder)
    try:
        yield seen
    finally:
        seen.close()
