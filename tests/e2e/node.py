"""A real node: containerd and a kubelet on this machine, in the sandbox, with static pods or an API server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e import pods as pod_shapes
from e2e import sandbox
from e2e.controlplane import ControlPlane
from e2e.kubelog import KubeletLog
from e2e.pods import PodView
from e2e.programs import Program, wait
from e2e.runtime import Containerd

T = TypeVar("T")
NAME = "n1"
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
SOCKET = DEVICE_PLUGINS / "kubelet.sock"
_READ_ONLY = "http://127.0.0.1:10255"
_HEALTH = "http://127.0.0.1:10248/healthz"


@dataclass(frozen=True)
class Seen:
    """What a container has: its environment, its device nodes as path -> (major, minor), its mounts' places."""

    env: Mapping[str, str]
    nodes: Mapping[str, tuple[int, int]]
    mounts: tuple[str, ...]


class RealNode:
    """The node. Its folders are below `base`; the kubelet's are the sandbox's /var/lib/kubelet.

    `kubelet` is a binary; `containerd` the folder of a containerd 2, or None for the distribution's; `cluster` the
    programs of a control plane, or None for a kubelet that stands alone. `topology` is the topology manager's policy,
    `configuration` is laid over the kubelet's.
    """

    def __init__(
        self,
        base: Path,
        kubelet: Path,
        *,
        containerd: Path | None = None,
        cluster: Mapping[str, Path] | None = None,
        topology: str = "none",
        verbosity: int = 3,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        if not sandbox.inside():
            raise sandbox.Unusable("a real node is started in the sandbox only")
        self.base = base
        base.mkdir(parents=True, exist_ok=True)
        self.containerd = Containerd(base, containerd)
        self.cluster = ControlPlane(base, cluster) if cluster else None
        self.kubelet = Program("kubelet", base)
        self.manifests = base / "manifests"
        self.manifests.mkdir(exist_ok=True)
        self.shared = base / "shared"
        self.shared.mkdir(exist_ok=True)
        self.earlier = base / "kubelet.earlier.log"
        self.wrapper: Sequence[str] = ()
        """A command that the kubelet is started through, and that becomes it by exec."""
        self._binary = kubelet
        self._topology = topology
        self._verbosity = verbosity
        self._configuration = dict(configuration or {})

    # Life

    def up(self) -> None:
        """Start everything; the kubelet is healthy when this returns."""
        self.containerd.start()
        if self.cluster:
            self.cluster.start()
        self.kubelet_start()
        self.wait_healthy()

    def down(self) -> None:
        """Stop everything, containers included."""
        self.kubelet.stop()
        if self.containerd.program.running:
            self.containerd.containers_gone()
        if self.cluster:
            self.cluster.stop()
        self.containerd.stop()

    def fresh(self) -> None:
        """A node that never had a pod or a plugin, with a healthy kubelet; containerd and the control plane stay."""
        self.kubelet_stop(signal.SIGKILL)
        if not self.containerd.program.running:
            self.containerd.start()
        self.containerd.containers_gone()
        for path in self.manifests.glob("*.json"):
            path.unlink()
        _empty(Path(sandbox.KUBELET))
        self.earlier.unlink(missing_ok=True)
        self.wrapper = ()
        self.kubelet.log.unlink(missing_ok=True)
        if self.cluster:
            if not self.cluster.running:
                self.cluster.start()
            self.cluster.kubectl("delete", "pods,nodes", "--all", "--force", "--grace-period=0", check=False)
        self.kubelet_start()
        self.wait_healthy()
        if self.cluster:
            self.cluster.wait_ready(NAME)

    def kubelet_start(self) -> None:
        """Start the kubelet and return at once. The log of the life before goes to the end of `earlier`."""
        if self.kubelet.log.exists():
            with open(self.earlier, "ab") as earlier:
                earlier.write(self.kubelet.log.read_bytes())
        config = self.base / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_configuration()))
        command = [
            *(str(self._binary), "--config", str(config), "--root-dir", "/var/lib/kubelet"),
            *("--hostname-override", NAME, "--node-ip", sandbox.NODE_ADDRESS, "-v", str(self._verbosity)),
        ]
        if self.cluster:
            command += ["--kubeconfig", str(self.cluster.kubeconfig)]
        self.kubelet.start([*self.wrapper, *command])

    def kubelet_stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the kubelet; containers go on."""
        self.kubelet.stop(number)

    def kubelet_restart(self, number: int = signal.SIGKILL) -> None:
        """Stop and start the kubelet; it is healthy again when this returns."""
        self.kubelet_stop(number)
        self.kubelet_start()
        self.wait_healthy()

    def kubelet_freeze(self) -> None:
        """Stop it from running, its sockets open."""
        self.kubelet.send(signal.SIGSTOP)

    def kubelet_thaw(self) -> None:
        """Let it run again."""
        self.kubelet.send(signal.SIGCONT)

    def reboot(self, before_kubelet: Callable[[], None] | None = None) -> None:
        """A simulated reboot: kubelet and containers gone, containerd anew, `before_kubelet`, then the kubelet starts.

        The caller restarts what else a reboot restarts. Returns when the kubelet was started, not when it is healthy.
        """
        self.kubelet_stop(signal.SIGKILL)
        self.containerd.containers_gone()
        self.containerd.stop(signal.SIGKILL)
        self.containerd.start()
        if before_kubelet is not None:
            before_kubelet()
        self.kubelet_start()

    def panics(self) -> list[str]:
        """Lines of a crash in the logs since `fresh`."""
        return [line for path in (self.earlier, self.kubelet.log) for line in KubeletLog(path).panics()]

    def wait_healthy(self, timeout: float = 120.0) -> None:
        """Wait until the kubelet's health page says ok and its device socket is there."""
        wait(lambda: SOCKET.exists() and _get(_HEALTH) == "ok", timeout, f"a healthy kubelet\n{self.kubelet.tail(15)}")

    # Pods

    def static(self, name: str, requests: Mapping[str, int] | None = None, **more: Any) -> str:
        """A static pod with one container `c`, or with `containers=`, `init=`; returns its name for `pods()`."""
        containers = more.pop("containers", None) or [
            pod_shapes.container("c", requests, **{key: more.pop(key) for key in ("command", "image") if key in more})
        ]
        self.static_document(pod_shapes.manifest(name, containers, **more))
        return f"{name}-{NAME}"

    def static_document(self, document: Mapping[str, Any]) -> None:
        """A static pod by its whole document; the kubelet sees the file whole."""
        name = document["metadata"]["name"]
        hidden = self.base / f".{name}.new"
        hidden.write_text(json.dumps(document))
        os.replace(hidden, self.manifests / f"{name}.json")

    def unstatic(self, name: str, timeout: float = 60.0) -> None:
        """Take a static pod away and wait until the kubelet forgot it."""
        with contextlib.suppress(FileNotFoundError):
            (self.manifests / f"{name}.json").unlink()
        if self.kubelet.running:
            wait(lambda: f"{name}-{NAME}" not in self.pods(), timeout, f"pod {name} is gone")

    def clear(self) -> None:
        """Take every pod away."""
        for path in list(self.manifests.glob("*.json")):
            path.unlink()
        if self.cluster:
            self.cluster.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=1")
        if self.kubelet.running:
            wait(lambda: not self.pods(), 90, "no pod is left")

    def pods(self) -> dict[str, PodView]:
        """What the kubelet says of its pods; empty while it does not answer."""
        text = _get(f"{_READ_ONLY}/pods")
        items = (json.loads(text).get("items") or []) if text else []
        return {pod.name: pod for pod in map(pod_shapes.view, items)}

    def pod(self, name: str) -> PodView | None:
        """One pod."""
        return self.pods().get(name)

    def wait_pod(self, name: str, state: str = "Running", timeout: float = 90.0) -> PodView:
        """Wait until a pod is in a phase; `Running` means that all its containers run."""

        def look() -> PodView | None:
            pod = self.pod(name)
            if pod is None:
                return None
            there = pod.running if state == "Running" else pod.phase == state
            return pod if there else None

        try:
            found = wait(look, timeout, f"pod {name} is {state}", every=0.1)
        except AssertionError as problem:
            raise AssertionError(f"{problem}; it is {self.pod(name)}\n{self.kubelet.tail(40)}") from None
        assert found is not None
        return found

    def look(self, pod: str, container: str = "c") -> Seen:
        """Read from inside a running container what it got."""
        view = self.wait_pod(pod).containers[container]
        script = (
            "cat /proc/1/environ; echo; echo @nodes; "
            "find /dev -type c -exec stat -c '%n %t %T' {} + ; echo @mounts; cat /proc/1/mounts"
        )
        text = self.containerd.execute(view.id, "/bin/sh", "-c", script)
        env, _, rest = text.partition("@nodes")
        nodes, _, mounts = rest.partition("@mounts")
        rows = (line.split() for line in nodes.splitlines())
        return Seen(
            env=dict(word.split("=", 1) for word in env.strip().split("\0") if "=" in word),
            nodes={row[0]: (int(row[1], 16), int(row[2], 16)) for row in rows if len(row) == 3},
            mounts=tuple(line.split()[1] for line in mounts.strip().splitlines()),
        )

    # What the kubelet knows

    def log(self) -> KubeletLog:
        """The log of the kubelet's present life."""
        return KubeletLog(self.kubelet.log)

    def resources(self) -> dict[str, tuple[int, int]]:
        """Resource -> (capacity, allocatable): from the node object, else from the last list taken in.

        A kubelet that stands alone shows its counts nowhere but in its log, where a lost stream has no line: use
        `allocatable` for what it would give away.
        """
        if self.cluster:
            return self.cluster.resources(NAME)
        return {update.resource: (update.total, update.healthy) for update in self.log().updates()}

    def checkpoint(self) -> dict[str, Any]:
        """The device manager's checkpoint."""
        path = DEVICE_PLUGINS / "kubelet_internal_checkpoint"
        try:
            return dict(json.loads(path.read_text())["Data"])
        except (OSError, ValueError, KeyError):
            return {}

    def wait(self, look: Callable[[], T], timeout: float, what: str) -> T:
        """Wait for anything."""
        return wait(look, timeout, what)

    def metrics(self) -> str:
        """The kubelet's own metrics."""
        return _get(f"{_READ_ONLY}/metrics")

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": "127.0.0.1",
            "readOnlyPort": 10255,
            "healthzPort": 10248,
            "staticPodPath": str(self.manifests),
            "containerRuntimeEndpoint": f"unix://{self.containerd.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "fileCheckFrequency": "2s",
            "nodeStatusUpdateFrequency": "2s",
            "shutdownGracePeriod": "0s",
            "topologyManagerPolicy": self._topology,
            "maxPods": 250,
            **self._configuration,
        }


def _empty(folder: Path) -> None:
    """Remove all in it, pods' volumes unmounted first."""
    with open("/proc/self/mounts") as mounts:
        places = [line.split()[1] for line in mounts]
    for place in reversed([place for place in places if place.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def pods_after(node: RealNode, names: Sequence[str], timeout: float = 90.0) -> dict[str, PodView]:
    """Wait until each of the pods runs or is lost, and return them."""
    found: dict[str, PodView] = {}

    def settled() -> bool:
        found.clear()
        found.update({name: pod for name, pod in node.pods().items() if name in names})
        return len(found) == len(names) and all(pod.running or pod.failed for pod in found.values())

    end = time.monotonic() + timeout
    while not settled():
        if time.monotonic() > end:
            raise AssertionError(f"after {timeout:g} s: {found}\n{node.kubelet.tail(40)}")
        time.sleep(0.1)
    return found
