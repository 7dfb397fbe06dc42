"""A real kubelet as one side: one node for all scenarios, restarted where a scenario asks for another policy."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from e2e import pods as shapes
from e2e import sandbox
from e2e.compare.side import Ctr, PodSpec, View
from e2e.node import DEVICE_PLUGINS, NAME, POD_RESOURCES, RealNode
from e2e.pods import ContainerView

_CAPACITY = re.compile(r'"Updated capacity for device plugin" plugin="([^"]+)" capacity=(\d+)')
_ALLOCATABLE = re.compile(r'"Updated allocatable" device="([^"]+)" allocatable=(\d+)')
_POKE = "poke"
_GIVEN = {"PATH", "HOME", "HOSTNAME", "TERM"}


class _Node(RealNode):
    """A node whose policy can change between two lives of the kubelet."""

    policy = "none"

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {**super()._kubelet_configuration(), "topologyManagerPolicy": self.policy}


class Real:
    """Static pods only. Resources keep their names apart, so nothing but pods has to go between scenarios."""

    kind = "real"

    def __init__(self, base: Path, kubelet: Path) -> None:
        sandbox.two_numa_nodes(base.parent / f"{base.name}-numa")
        self.line = line_of(kubelet)
        self.device_plugins = str(DEVICE_PLUGINS)
        self.registry = "/var/lib/kubelet/plugins_registry"
        self.pod_resources = POD_RESOURCES
        self.node = _Node(base, kubelet, verbosity=4)
        self._pods: set[str] = set()
        self._pokes = 0

    def close(self) -> None:
        """Stop everything."""
        self.node.down()
        sandbox.own_numa_nodes()

    def begin(self, options: Mapping[str, Any]) -> None:
        policy = str(options.get("topology_policy", "none"))
        if not self.node.containerd.program.running:
            self.node.policy = policy
            self.node.up()
        elif policy != self.node.policy or not self.node.kubelet.running:
            self.stop()
            self.node.policy = policy
            self.start()

    def end(self) -> None:
        if not self.node.kubelet.running:
            self.node.kubelet_start()
            self.node.wait_healthy()
        for name in list(self._pods):
            self._unlink(name)
        with contextlib.suppress(AssertionError):
            self.node.wait(lambda: not set(self._names()) & {f"{n}-{NAME}" for n in self._pods}, 30, "pods are gone")
        self._pods.clear()

    def alive(self) -> bool:
        return self.node.kubelet.running

    def stop(self, *, kill: bool = True) -> None:
        self.node.kubelet_stop(signal.SIGKILL if kill else signal.SIGTERM)

    def start(self, *, wait: bool = True) -> None:
        self.node.kubelet_start()
        if wait:
            self.node.wait_healthy()
            self.counts()

    def start_with_pods_late(self, before_pods: Callable[[], None]) -> None:
        """A pod's UID is a hash over its file's path and content: the pods that come back are the same pods."""
        there = {path: path.read_text() for path in self.node.manifests.glob("*.json") if path.stem != _POKE}
        for path in self.node.manifests.glob("*.json"):
            path.unlink()
        self.node.kubelet_start()
        before_pods()
        for path, text in there.items():
            self.node.static_document(json.loads(text))
            assert path.exists()

    def lose_containers(self) -> None:
        self.node.containerd.containers_gone()

    def freeze(self) -> None:
        self.node.kubelet_freeze()

    def thaw(self) -> None:
        self.node.kubelet_thaw()

    def add(self, pod: PodSpec) -> None:
        self._pods.add(pod.name)
        more: dict[str, Any] = {"nodeSelector": {"other": "node"}} if pod.misplaced else {}
        containers = [_container(one) for one in pod.containers]
        init = [_container(one, init=True) for one in pod.init]
        self.node.static_document(shapes.manifest(pod.name, containers, init, **more))

    def remove(self, name: str) -> None:
        self._pods.discard(name)
        if self.node.kubelet.running:
            self.node.unstatic(name)
        else:
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.node.manifests / f"{name}.json").unlink()

    def _names(self) -> list[str]:
        return list(self.node.pods())

    def view(self, name: str) -> View | None:
        found = self.node.pod(f"{name}-{NAME}")
        if found is None:
            return None
        containers = {key: _state(one) for key, one in found.containers.items()}
        return View(found.uid, found.phase, found.reason, found.message, containers)

    def kill_container(self, pod: str, container: str) -> None:
        ctr = self.node.containerd.ctr
        if self.node.kubelet.running:
            ctr("tasks", "kill", "-s", "SIGKILL", self.node.wait_pod(f"{pod}-{NAME}").containers[container].id)
            return
        labels = {"pod.name": f"{pod}-{NAME}", "container.name": container}
        chosen = ",".join(f'labels."io.kubernetes.{key}"=={value}' for key, value in labels.items())
        for one in ctr("containers", "ls", "-q", chosen).split():
            ctr("tasks", "kill", "-s", "SIGKILL", one, check=False)

    def got(self, pod: str, container: str) -> dict[str, Any]:
        seen = self.node.look(f"{pod}-{NAME}", container)
        view = self.node.wait_pod(f"{pod}-{NAME}").containers[container]
        about = json.loads(self.node.containerd.ctr("containers", "info", view.id))
        packed = about["Extensions"]["io.cri-containerd.container.metadata"]["value"]
        config = json.loads(base64.b64decode(packed))["Metadata"]["Config"]
        mounts = {m["destination"]: "ro" if "ro" in m["options"] else "rw" for m in about["Spec"]["mounts"]}
        given = {m["container_path"] for m in config.get("mounts", [])} - {"/etc/hosts", "/dev/termination-log"}
        return {
            "env": {k: v for k, v in seen.env.items() if k not in _GIVEN},
            "nodes": {path: f"{a}:{b}" for path, (a, b) in seen.nodes.items() if path not in _usual_nodes()},
            "mounts": {path: how for path, how in mounts.items() if path in given},
            "annotations": {k: v for k, v in config["annotations"].items() if not k.startswith("io.kubernetes.")},
        }

    def counts(self) -> dict[str, tuple[int, int]]:
        """A kubelet that stands alone tells its counts when it admits a pod: so it gets one that it cannot take."""
        self._pokes += 1
        offset = self.node.kubelet.log.stat().st_size
        document = shapes.manifest(_POKE, [shapes.container("c")], os={"name": "windows"})
        document["spec"].pop("hostNetwork")
        document["metadata"]["annotations"] = {"poke": str(self._pokes)}
        self.node.static_document(document)
        return self.node.wait(lambda: self._counts_since(offset), 30, f"the kubelet tells its counts\n{self.tail()}")[0]

    def _counts_since(self, offset: int) -> list[dict[str, tuple[int, int]]]:
        pod = self.node.pod(f"{_POKE}-{NAME}")
        if pod is None or not pod.failed or pod.raw["metadata"]["annotations"].get("poke") != str(self._pokes):
            return []
        with open(self.node.kubelet.log, "rb") as file:
            file.seek(offset)
            text = file.read().decode(errors="replace")
        at = text.find(f'"SyncLoop ADD" source="file" pods=["default/{_POKE}-{NAME}"]')
        if at < 0:
            return []
        capacity = {name: int(count) for name, count in _CAPACITY.findall(text[at:])}
        allocatable = {name: int(count) for name, count in _ALLOCATABLE.findall(text[at:])}
        # Allocatable begins as a copy of capacity, and is in the log only where it becomes something else.
        return [{name: (capacity[name], allocatable.get(name, capacity[name])) for name in capacity}]

    def tail(self) -> str:
        """The end of the kubelet's log."""
        return self.node.kubelet.tail(20)


def line_of(kubelet: Path) -> tuple[int, int]:
    """A kubelet's own word: (1, 37)."""
    said = subprocess.run([str(kubelet), "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = said.split()[-1].removeprefix("v").split(".")[:2]
    return int(major), int(minor)


def _container(one: Ctr, *, init: bool = False) -> dict[str, Any]:
    more: dict[str, Any] = {"restartPolicy": "Always"} if one.sidecar else {}
    command = shapes.SLEEP if one.sidecar or not init else "true"
    return shapes.container(one.name, one.requests, command, **more)


def _state(one: ContainerView) -> dict[str, Any]:
    state = "running" if one.running else "exited" if one.exit_code is not None else "waiting"
    return {
        "state": state,
        "reason": one.waiting,
        "message": one.message if one.waiting else "",
        "restarts": one.restarts,
        "health": one.health,
    }


def _usual_nodes() -> set[str]:
    names = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "pts/ptmx", "pts/0")
    return {f"/dev/{name}" for name in names}
