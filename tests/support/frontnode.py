"""One simulated node with one front and one simulated kubelet, in a short temporary folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import msgspec
from devherd.control import ControlDown, ControlError, ask
from devherd.sim.client import SimError
from devherd.sim.kubelet_process import SimKubelet
from devherd.sim.node import Node
from devherd.sim.nodespec import NodeSpec

GENERIC = "devherd_generic.manifest:MANIFEST"
XDEV = {"domain": "example.com", "devices": [{"name": "xdev", "groups": [{"paths": [{"path": "/dev/x*"}]}]}]}
RESOURCE = "example.com/xdev"
QUICK: dict[str, dict[str, Any]] = {
    "health": {"recover": 0.1, "debounce": 0.2},
    "probe": {"deadline": 0.7, "scan_interval": 2.0, "restart_max": 1.0},
    "snapshots": {"grace": 0.3},
}


def xdevs(count: int) -> dict[str, Any]:
    """A node with so many `/dev/xN`, each with PCI hardware of its own."""
    group = {"path": "/dev/x{n}", "count": count, "parent": "/devices/pci0000:00/0000:{n:02x}:00.0", "numa": [0, 1]}
    return {"name": "test", "devices": [group]}


class FrontNode:
    """Use as a context manager: nothing it started outlives it."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        config: Mapping[str, Any] | str = XDEV,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        plugin: str = "generic",
        manifest: str = GENERIC,
        pythonpath: str = "",
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
        self.plugin, self.manifest, self.pythonpath = plugin, manifest, pythonpath
        self.node = Node.build(msgspec.convert(spec, NodeSpec), f"{self.folder}/node")
        self.kubelet = self.another_kubelet()
        self.front: subprocess.Popen[bytes] | None = None
        self._heard = 0
        self.log = f"{self.folder}/front.log"
        own = {name: f"{self.folder}/{name}" for name in ("etc", "run", "state", "log", "cache")}
        for folder in own.values():
            os.makedirs(folder, exist_ok=True)
        os.makedirs(f"{self.folder}/etc/plugins.d")
        paths = {
            **self.node.paths(),
            **own,
            "proc": f"{self.folder}/node/proc",
            "device_plugins": self.kubelet.places.device_plugins,
            "pod_resources": self.kubelet.places.pod_resources,
        }
        merged: dict[str, Any] = {key: dict(value) for key, value in QUICK.items()}
        for key, value in (settings or {}).items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
        self.config_path = f"{self.folder}/etc/devherd.yaml"
        write(self.config_path, json.dumps({"paths": paths, **merged}))
        self.configure(config)

    def __enter__(self) -> FrontNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and os.path.exists(self.log):
            with open(self.log, encoding="utf-8", errors="replace") as file:
                print(file.read()[-8000:])
        self.end_front(signal.SIGKILL)
        self.kubelet.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def another_kubelet(self) -> SimKubelet:
        """A kubelet of this node; `self.kubelet` is the first."""
        at = self.folder
        return SimKubelet(
            f"{at}/device-plugins", f"{at}/pr/kubelet.sock", f"{at}/kubelet", f"{at}/k.sock", node=self.node.places
        )

    def configure(self, config: Mapping[str, Any] | str) -> None:
        """Write the plugin's configuration."""
        text = config if isinstance(config, str) else json.dumps(config)
        write(f"{self.folder}/etc/plugins.d/{self.plugin}.yaml", text)

    def change_settings(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Lay changes over devherd.yaml; a SIGHUP makes the front read it."""
        with open(self.config_path, encoding="utf-8") as file:
            merged = json.load(file)
        for section, values in changes.items():
            merged[section] = {**merged.get(section, {}), **values}
        write(self.config_path, json.dumps(merged))

    def start_front(self) -> int:
        """Start the front; its pid."""
        flags = [] if self.pythonpath else ["-I"]
        env = {**os.environ, "PYTHONPATH": self.pythonpath} if self.pythonpath else dict(os.environ)
        cache = f"pycache_prefix={os.path.join(tempfile.gettempdir(), f'devherd-test-cache-{os.getuid()}')}"
        command = [sys.executable, *flags, "-X", cache, "-m", "devherd.front", "--plugin", self.plugin]
        with open(self.log, "ab") as log:
            self.front = subprocess.Popen(
                [*command, "--manifest", self.manifest, "--config", self.config_path],
                stdout=log,
                stderr=log,
                env=env,
            )
        return self.front.pid

    def end_front(self, number: int = signal.SIGTERM, timeout: float = 15.0) -> int | None:
        """Signal the front and wait for its end; the exit code."""
        front, self.front = self.front, None
        if front is None:
            return None
        front.send_signal(number)
        code = front.wait(timeout)
        self._wait_noticed()
        return code

    def _wait_noticed(self) -> None:
        """Until the kubelet saw our streams end: what it shows before is of the front that was. Frozen, it does not."""
        end = time.monotonic() + 2.0
        while self.kubelet.alive and time.monotonic() < end:
            try:
                resources = self.kubelet.client.ask("node", within=1.0)["resources"].values()
            except SimError:
                return
            if all(one["stopped"] for one in resources):
                return
            time.sleep(0.005)

    def up(self, allocatable: int | None = None, resource: str = RESOURCE) -> None:
        """Kubelet and front running, and the resource allocatable."""
        self.kubelet.start()
        self.start_front()
        wanted = {} if allocatable is None else {"allocatable": allocatable}
        self.kubelet.client.wait_resource(resource, timeout=20, **wanted)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask the front's control socket. One that was just started is given the time to open it."""
        end = time.monotonic() + 20.0
        while True:
            try:
                reply = ask(f"{self.folder}/run/{self.plugin}.control.sock", {"op": op, **fields}, timeout=5.0)
            except ControlDown:
                starting = self.front is not None and self.front.poll() is None and self.front.pid != self._heard
                if not starting or time.monotonic() > end:
                    raise
                time.sleep(0.01)
                continue
            self._heard = self.front.pid if self.front is not None else 0
            return reply

    def status(self) -> dict[str, Any]:
        """The front's status document."""
        return self.ask("status")

    def resource(self, name: str = RESOURCE) -> dict[str, Any]:
        """One resource of the status document."""
        found: list[dict[str, Any]] = [row for row in self.status()["resources"] if row["name"] == name]
        return found[0] if found else {"state": "missing"}

    def devices(self, name: str = RESOURCE) -> dict[str, dict[str, Any]]:
        """Devices of a resource by their first node's path, or by id where they have none now."""
        rows = self.ask("devices", resource=name)["devices"]
        return {row["nodes"][0]["host_path"] if row["nodes"] else row["id"]: row for row in rows}

    def until(self, condition: Callable[[], Any], timeout: float = 10.0, what: str = "") -> Any:
        """Ask again and again until the answer is true. The control socket has no events, so this polls."""
        end = time.monotonic() + timeout
        while True:
            try:
                result = condition()
            except ControlError:
                result = None
            if result:
                return result
            if time.monotonic() > end:
                raise AssertionError(f"still not so after {timeout:g} s: {what or condition}")
            time.sleep(0.01)

    def run_pod(self, name: str, requests: dict[str, int]) -> dict[str, Any]:
        """A pod that is expected to run."""
        pod = self.kubelet.client.pod_add(name, requests, wait=10)
        assert pod["phase"] == "Running", pod
        return pod

    def ids(self, pod: str, resource: str = RESOURCE) -> list[str]:
        """The ids a pod's container holds."""
        held: list[str] = self.kubelet.client.pods(pod)[0]["containers"][0]["devices"][resource]
        return held


def write(path: str, text: str) -> None:
    """Replace a file in one step."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
