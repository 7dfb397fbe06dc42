"""Allocate over the plugin's socket: idle, and while the probe hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bench.figure import Figure, latency, percentile
from bench.nodes import BenchNode
from bench.quiet import Quiet

DEVICES = 8
ROUNDS = 10
CALLS = 200
"""A round's."""
PAUSE = 0.002
"""Seconds between calls: a kubelet asks now and then, and a loop without pause measures its own heat."""
BUDGET = {"p50": 1.0, "p99": 5.0}

Call = Callable[[str, bytes], bytes]


@contextmanager
def plugin_socket(node: BenchNode, resource: str) -> Iterator[Call]:
    """A plain blocking client of one resource's server."""
    import grpc

    path = f"{node.kubelet.places.device_plugins}/{node.resource(resource)['socket']}"
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        methods: dict[str, Callable[..., bytes]] = {}

        def call(method: str, request: bytes) -> bytes:
            if method not in methods:
                methods[method] = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
            return methods[method](request, timeout=60)

        yield call


def durations(call: Call, method: str, requests: Sequence[bytes]) -> list[float]:
    """Seconds of each call."""
    found = []
    for request in requests:
        start = time.perf_counter()
        call(method, request)
        found.append(time.perf_counter() - start)
        time.sleep(PAUSE)
    return found


def measure(quiet: Quiet) -> list[Figure]:
    """Eight devices in one call, so many times; the empty call tells what of it is gRPC and this client."""
    from devherd.api import deviceplugin_v1beta1_pb2 as pb
    from support.frontnode import RESOURCE

    # The long deadline keeps the hung probe from being replaced while the second row is measured.
    with BenchNode(settings={"probe": {"deadline": 600.0, "scan_interval": 3600.0}}) as node:
        node.up(allocatable=DEVICES)
        node.settled()
        ids = [row["id"] for row in node.devices().values()]
        assert len(ids) == DEVICES
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
        ).SerializeToString()
        with plugin_socket(node, RESOURCE) as call:
            durations(call, "Allocate", [request] * 200)
            empty = quiet.rounds(3, lambda: durations(call, "GetDevicePluginOptions", [b""] * CALLS))
            idle = quiet.rounds(ROUNDS, lambda: durations(call, "Allocate", [request] * CALLS))
            os.kill(node.probe_pid, signal.SIGSTOP)
            node.ask("rescan")
            node.until(lambda: node.status()["probe"]["state"] == "busy", what="the scan hangs")
            hung = quiet.rounds(ROUNDS, lambda: durations(call, "Allocate", [request] * CALLS))
            assert node.status()["probe"]["state"] == "busy"
    floor = percentile(empty, 0.5) * 1000
    method = (
        f"blocking gRPC client in Python on the plugin's socket, one call every {PAUSE * 1000:g} ms; the same client "
        f"needs {floor:.2f} ms (p50) for an empty call"
    )
    return [
        latency("allocate.idle", "Allocate, 8 devices", idle, method, BUDGET),
        latency(
            "allocate.hung",
            "Allocate, 8 devices, probe hung",
            hung,
            "the same while the probe is stopped (SIGSTOP) in the middle of a scan",
            BUDGET,
        ),
    ]
