"""What the situation tests do to a front: count what the kubelet saw, fill disks, take limits away."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb

from support.frontnode import RESOURCE, FrontNode

LOCAL = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def registers(node: FrontNode, name: str = RESOURCE) -> int:
    """Register calls for a resource in this kubelet's life."""
    return sum(event["resource"] == name for event in node.kubelet.client.events(what="register"))


def registered(node: FrontNode, name: str = RESOURCE) -> dict[str, Any]:
    """The resource's row once the front knows that this kubelet shows its list."""

    def now() -> Any:
        status = node.status()
        rows = [row for row in status["resources"] if row["name"] == name and row["state"] == "registered"]
        return rows and status["kubelet"]["pid"] == node.kubelet.pid and rows[0]

    row: dict[str, Any] = node.until(now, what=f"{name} registered")
    return row


def pid_of(node: FrontNode) -> int:
    """The front's pid; it must be running."""
    assert node.front is not None
    assert node.front.poll() is None, node.front.returncode
    return node.front.pid


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def launched(node: FrontNode) -> subprocess.Popen[bytes]:
    """A front through the launcher, its signals blocked from birth as supervisord's children have them."""
    front = ["-m", "devherd.front", "--plugin", node.plugin, "--manifest", node.manifest, "--config", node.config_path]
    lock = f"{node.folder}/run/{node.plugin}.lock"
    launcher = ["-m", "devherd.launcher", "--name", node.plugin, "--lock", lock, "--wait", "1", "--"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        with open(node.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", *launcher, sys.executable, "-I", *front],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def limited(pid: int, kind: int, soft: int) -> Iterator[None]:
    """Lower a running process's soft limit for a while."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (soft, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)


@contextlib.contextmanager
def small_disk(place: str) -> Iterator[None]:
    """A file system of 256 KiB at a folder, with what was in it. Root only: others skip."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    kept = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    subprocess.run(["cp", "-a", f"{place}/.", kept], check=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0755", "none", place], check=False)
    if made.returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        subprocess.run(["cp", "-a", f"{kept}/.", place], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=False)
        subprocess.run(["rm", "-rf", kept], check=False)


@contextlib.contextmanager
def full(place: str) -> Iterator[None]:
    """Fill a small disk to the last byte, and make room again."""
    ballast = f"{place}/ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(ballast)


class Caller:
    """A client of one resource's socket: what the kubelet could call, without being it."""

    def __init__(self, node: FrontNode, *more: tuple[str, int]) -> None:
        path = f"{node.kubelet.places.device_plugins}/{registered(node)['socket']}"
        self.channel = grpc.insecure_channel(f"unix:{path}", options=[*LOCAL, *more])

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def watch(self) -> Any:
        """Open ListAndWatch; iterate for lists, `cancel` to end it."""
        method = "/v1beta1.DevicePlugin/ListAndWatch"
        call: Any = self.channel.unary_stream(method, _bytes, pb.ListAndWatchResponse.FromString)
        return call(pb.Empty())

    def allocate(self, *ids: str, timeout: float = 5.0) -> pb.ContainerAllocateResponse:
        """Allocate for one container. Raises grpc.RpcError."""
        method = "/v1beta1.DevicePlugin/Allocate"
        call: Any = self.channel.unary_unary(method, _bytes, pb.AllocateResponse.FromString)
        asked = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer: pb.ContainerAllocateResponse = call(asked, timeout=timeout).container_responses[0]
        return answer


def healthy(message: pb.ListAndWatchResponse) -> int:
    """How many devices of a list are healthy."""
    return sum(device.health == "Healthy" for device in message.devices)


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())
