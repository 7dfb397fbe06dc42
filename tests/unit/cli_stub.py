"""A devherd made of control sockets only: what fronts would answer, without fronts."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from devherd.control import ControlServer

Json = dict[str, Any]
Handler = Callable[[Json], Json]


class Stub:
    """Control sockets in a folder of their own, served by one thread."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
        self.run = self.folder / "run"
        self.etc = self.folder / "etc"
        for path in (self.run, self.etc / "plugins.d", self.folder / "kubelet"):
            path.mkdir(parents=True)
        self.config = self.etc / "devherd.yaml"
        self.config.write_text(
            f"paths:\n  run: {self.run}\n  etc: {self.etc}\n  state: {self.folder}/state\n"
            f"  pod_resources: {self.folder}/kubelet/pods.sock\n"
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._servers: dict[str, ControlServer] = {}

    def serve(self, name: str, handler: Handler) -> None:
        async def answer(request: Json) -> Json:
            return handler(request)

        self._servers[name] = ControlServer(str(self.run / f"{name}.control.sock"), answer)
        self._do(self._servers[name].start())

    def close(self) -> None:
        for server in self._servers.values():
            self._do(server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.folder)

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


@contextlib.contextmanager
def stub() -> Iterator[Stub]:
    made = Stub()
    try:
        yield made
    finally:
        made.close()


def front(status: Json, devices: list[Json] | None = None, found: list[Json] | None = None) -> Handler:
    """A front that gives these answers."""
    replies = {
        "ping": {"ok": True},
        "status": status,
        "devices": {"plugin": status["plugin"], "devices": devices or [], "skipped": status.get("skipped", [])},
        "explain": {"found": found or []},
    }
    return lambda request: replies[request["op"]]


def status_of(plugin: str, *resources: Json, **other: Any) -> Json:
    """A status reply in which all is well, but for what is given."""
    reply: Json = {
        "plugin": plugin,
        "title": f"the {plugin} plugin",
        "pid": 4242,
        "started": 1_790_000_000.0,
        "version": "0.1.0",
        "boot_id": "b",
        "kubelet": {"state": "up", "pid": 99, "start_time": 7, "socket": "/kubelet/kubelet.sock"},
        "layout": "subfolder",
        "probe": {
            "state": "idle",
            "pid": 4243,
            "doing": "",
            "doing_seconds": 0.0,
            "scan_seconds": 0.003,
            "scan_age_seconds": 2.0,
            "capabilities": ["watches"],
            "replaced": 0,
            "abandoned": [],
            "error": "",
        },
        "config": {"path": "/etc/x.yaml", "problems": [], "loaded": 1_790_000_000.0},
        "resources": list(resources),
        "skipped": [],
        "node_problems": [],
        "absent": "",
        "state_problems": [],
    }
    return reply | other


def resource_of(name: str, **other: Any) -> Json:
    """A registered resource with two healthy devices, but for what is given."""
    resource: Json = {
        "name": name,
        "socket": f"/kubelet/devherd/{name}.sock",
        "state": "registered",
        "error": "",
        "registered_at": 1_790_000_000.0,
        "registered_ms": 3.25,
        "registrations": 2,
        "stream_seconds": 60.0,
        "snapshot": 5,
        "devices": 2,
        "healthy": 2,
        "held": 1,
        "left_out": 0,
        "draining": False,
    }
    return resource | other


def device_of(resource: str, identity: str, **other: Any) -> Json:
    """A healthy device with one node, but for what is given."""
    device: Json = {
        "resource": resource,
        "id": identity,
        "healthy": True,
        "reason": "",
        "kind": "",
        "since": 0.0,
        "numa": [0],
        "held_by": None,
        "nodes": [{"host_path": "/dev/fuse", "container_path": "/dev/fuse", "permissions": "rw", "number": "c 10:229"}],
        "mounts": [],
        "env": {},
        "cdi": [],
        "attributes": {"rule": "fuse"},
        "things": ["sys:/devices/virtual/misc/fuse"],
    }
    return device | other
