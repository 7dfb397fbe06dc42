"""The simulated kubelet as one side."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from devherd.sim.kubelet_process import SimKubelet
from devherd.sim.options import Options

from e2e.compare.side import Ctr, PodSpec, View

# Milliseconds in which a plugin registers on any machine.
_ROOM = 5000.0


class Simulated:
    """One kubelet a scenario, in a short folder of its own."""

    kind = "simulated"

    def __init__(self, line: tuple[int, int]) -> None:
        self.line = line
        self.folder = ""
        self.device_plugins = self.registry = self.pod_resources = ""

    def begin(self, options: Mapping[str, Any]) -> None:
        self.folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
        of_line = {"retry_ms": 100, "fixed_disconnect": self.line >= (1, 37)}
        self._kubelet = SimKubelet.in_folder(self.folder, options={**of_line, **options})
        self._client = self._kubelet.client
        self.device_plugins = self._kubelet.places.device_plugins
        self.registry = os.path.join(self.folder, "plugins_registry")
        self.pod_resources = self._kubelet.places.pod_resources
        self.start()

    def end(self) -> None:
        self._kubelet.close()
        shutil.rmtree(self.folder)

    def alive(self) -> bool:
        return self._kubelet.alive

    def stop(self, *, kill: bool = True) -> None:
        if kill:
            self._kubelet.kill()
        else:
            self._kubelet.stop()

    def start(self, *, wait: bool = True) -> None:
        self._kubelet.start(wait=False)
        if wait:
            self._kubelet.wait_listening()
            self._client.wait(event="sources-ready")

    def start_with_pods_late(self, before_pods: Callable[[], None]) -> None:
        usual = Options().admit_gap_ms
        self._kubelet.start(admit_gap_ms=_ROOM)
        before_pods()
        self._client.set(admit_gap_ms=usual)

    def lose_containers(self) -> None:
        self._kubelet.lose_containers()

    def freeze(self) -> None:
        self._kubelet.freeze()

    def thaw(self) -> None:
        self._kubelet.unfreeze()

    def add(self, pod: PodSpec) -> None:
        more: dict[str, Any] = {"late_reject": "NodeAffinity"} if pod.misplaced else {}
        more["init"] = [_container(one) for one in pod.init]
        more["containers"] = [_container(one) for one in pod.containers]
        if self._kubelet.alive:
            self._client.pod_add(pod.name, source="file", **more)
        else:
            self._kubelet.pod_add_offline(pod.name, source="file", **more)

    def remove(self, name: str) -> None:
        if self._kubelet.alive:
            self._client.pod_rm(name)
        else:
            self._kubelet.pod_rm_offline(name)

    def view(self, name: str) -> View | None:
        for found in self._client.pods(name):
            return View(
                uid=found["uid"],
                phase=found["phase"],
                reason=found["reason"],
                message=found["message"],
                containers={one["name"]: _state(one) for one in found["containers"]},
            )
        return None

    def kill_container(self, pod: str, container: str) -> None:
        if self._kubelet.alive:
            self._client.ask("container-restart", name=pod, container=container)
        else:
            self._kubelet.end_container_offline(pod, container)

    def got(self, pod: str, container: str) -> dict[str, Any]:
        for found in self._client.pods(pod):
            for one in found["containers"]:
                if one["name"] == container and one["record"]:
                    record = one["record"]
                    return {
                        "env": dict(record["env"]),
                        "nodes": {node["container_path"]: _number(node["number"]) for node in record["nodes"]},
                        "mounts": {m["container_path"]: "ro" if m["read_only"] else "rw" for m in record["mounts"]},
                        "annotations": dict(record["annotations"]),
                    }
        raise AssertionError(f"{pod}/{container} was never created")

    def counts(self) -> dict[str, tuple[int, int]]:
        resources = self._client.node()["resources"]
        return {name: (found["capacity"], found["allocatable"]) for name, found in resources.items()}


def _number(text: str) -> str:
    return text.split()[-1]


def _container(one: Ctr) -> dict[str, Any]:
    return {"name": one.name, "requests": dict(one.requests), **({"sidecar": True} if one.sidecar else {})}


def _state(one: Mapping[str, Any]) -> dict[str, Any]:
    waiting = one["waiting"] or {}
    record = one["record"] or {}
    return {
        "state": "waiting" if waiting else one["state"],
        "reason": waiting.get("reason", ""),
        "message": waiting.get("message", ""),
        "restarts": record.get("restarts", 0),
        "health": one["allocated_resources_status"],
    }
