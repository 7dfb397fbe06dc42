"""What a node looked like when something did not hold: whatever would be gone a moment later."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from devherd.control import ControlError
from devherd.process import read_command
from devherd.run import leftovers

from e2e.chaos_site import ChaosSuite, KeptKubelet
from e2e.node import DEVICE_PLUGINS


def scene(suite: ChaosSuite, kubelet: KeptKubelet) -> Iterator[str]:
    """Lines for a person."""
    yield from _sockets()
    for plugin in suite.expected_fronts:
        yield f"front {plugin}: {_front(suite, plugin)}"
    for pid in [kubelet.kubelet.pid, *leftovers.marked(suite.layout.folder)]:
        yield from _process(pid)
    yield "sockets of this network:"
    yield from (line for line in Path("/proc/net/unix").read_text().splitlines() if "/var/lib/kubelet" in line)
    yield f"checkpoint: {json.dumps(kubelet.checkpoint(), indent=1)}"
    for name, pod in kubelet.pods().items():
        yield f"pod {name}: {json.dumps(pod.raw.get('status'), indent=1)}"


def _front(suite: ChaosSuite, plugin: str) -> str:
    try:
        return json.dumps(suite.front(plugin), indent=1)
    except ControlError as error:
        return str(error)


def _sockets() -> Iterator[str]:
    for path in sorted(DEVICE_PLUGINS.rglob("*")):
        status = os.lstat(path)
        answer = _ask(path) if path.is_socket() and path.name != "kubelet.sock" else ""
        yield f"{path} inode {status.st_ino} links {status.st_nlink} {answer}"


def _ask(path: Path) -> str:
    """Whether a plugin answers on its socket."""
    with grpc.insecure_channel(f"unix:{path}", options=(("grpc.default_authority", "localhost"),)) as channel:
        call: Any = channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions")
        try:
            call(b"", timeout=2.0)
        except grpc.RpcError as error:
            return f"does not answer: {error}"
    return "answers"


def _process(pid: int) -> Iterator[str]:
    yield f"process {pid}: {' '.join(read_command(pid))[-150:]}"
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            waits, state = (task / "wchan").read_text(), (task / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        yield f"  {task.name} {(task / 'comm').read_text().strip()} {state} {waits}"
