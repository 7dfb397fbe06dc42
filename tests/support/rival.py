"""Another vendor's plugin in a process of its own: `python -m support.rival --folder DIR --resource NAME --ids a,b`.

Prints `registered` after each Register, and `ended` at each end of its stream. With `--insist` it then registers
again, as many plugins do. The process ends with its stdin.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import deviceplugin_v1beta1_pb2_grpc as rpc

TESTS = str(Path(__file__).parents[1])
SOCKET = "rival-xdev.sock"
_LOCAL = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


class Plugin(rpc.DevicePluginServicer):
    """Serves a fixed list, for ever."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = ids
        self.ended = threading.Event()

    def GetDevicePluginOptions(self, request: Any, context: Any) -> pb.DevicePluginOptions:  # noqa: N802
        return pb.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[pb.ListAndWatchResponse]:  # noqa: N802
        over = threading.Event()
        context.add_callback(over.set)
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=id, health="Healthy") for id in self._ids])
        over.wait()
        self.ended.set()

    def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:  # noqa: N802
        return pb.PreferredAllocationResponse()

    def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:  # noqa: N802
        return pb.PreStartContainerResponse()

    def Allocate(self, request: Any, context: Any) -> pb.AllocateResponse:  # noqa: N802
        answers = [pb.ContainerAllocateResponse(envs={"RIVAL": "1"}) for _ in request.container_requests]
        return pb.AllocateResponse(container_responses=answers)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser()
    for name in ("folder", "resource", "ids"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--insist", action="store_true")
    arguments = parser.parse_args()
    plugin = Plugin(arguments.ids.split(","))
    server = grpc.server(ThreadPoolExecutor(16))
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    path = os.path.join(arguments.folder, SOCKET)
    if os.path.exists(path):
        os.unlink(path)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    threading.Thread(target=_leave_with_stdin, daemon=True).start()
    while True:
        plugin.ended.clear()
        with grpc.insecure_channel(f"unix:{arguments.folder}/kubelet.sock", options=_LOCAL) as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=arguments.resource)
            rpc.RegistrationStub(channel).Register(request, timeout=10)
        print("registered", flush=True)
        plugin.ended.wait()
        print("ended", flush=True)
        if not arguments.insist:
            threading.Event().wait()
        time.sleep(0.05)


def _leave_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


class RivalProcess:
    """Starts one and waits for its first registration; ends with the `with` block."""

    def __init__(self, folder: str, resource: str, ids: str = "theirs-0,theirs-1", insist: bool = False) -> None:
        command = [sys.executable, "-m", "support.rival", "--folder", folder, "--resource", resource, "--ids", ids]
        self.socket = os.path.join(folder, SOCKET)
        self.process = subprocess.Popen(
            command + (["--insist"] if insist else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": TESTS},
        )
        self.pid = self.process.pid
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "registered\n"

    def __enter__(self) -> RivalProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """As a crash ends it: the socket file stays."""
        self.process.kill()
        self.process.communicate()


if __name__ == "__main__":
    main()
