"""Allocate over the plugin's socket: idle, and while the probe hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from support.frontnode import RESOURCE

from bench.figure import Figure, latency, percentile
from bench.nodes import BenchNode
from bench.quiet import Quiet
from bench.wire import PluginSocket

DEVICES = 8
ROUNDS = 10
CALLS = 200
"""A round's."""
PAUSE = 0.002
"""Seconds between calls: a kubelet asks now and then, and a loop without pause measures its own heat."""
BUDGET = {"p50": 1.0, "p99": 5.0}


def socket_of(node: BenchNode, resource: str) -> str:
    """The path of a resource's own socket."""
    return f"{node.kubelet.places.device_plugins}/{node.resource(resource)['socket']}"


def allocation(ids: Sequence[str]) -> bytes:
    """The kubelet's question for these ids in one container."""
    from devherd.api import deviceplugin_v1beta1_pb2 as pb

    asked = pb.ContainerAllocateRequest(devices_ids=ids)
    return pb.AllocateRequest(container_requests=[asked]).SerializeToString()


def durations(plugin: PluginSocket, method: str, requests: Sequence[bytes]) -> list[float]:
    """Seconds of each call."""
    found = []
    for request in requests:
        start = time.perf_counter()
        plugin.call(method, request)
        found.append(time.perf_counter() - start)
        time.sleep(PAUSE)
    return found


def measure(quiet: Quiet) -> list[Figure]:
    """Eight devices in one call, so many times; the empty call tells what of it is gRPC."""
    # The long deadline keeps the hung probe from being replaced while the second row is measured.
    with BenchNode(settings={"probe": {"deadline": 600.0, "scan_interval": 3600.0}}) as node:
        node.up(allocatable=DEVICES)
        node.settled()
        ids = [row["id"] for row in node.devices().values()]
        assert len(ids) == DEVICES
        request = allocation(ids)
        with PluginSocket(socket_of(node, RESOURCE)) as plugin:
            durations(plugin, "Allocate", [request] * 200)
            empty = quiet.rounds(3, lambda: durations(plugin, "GetDevicePluginOptions", [b""] * CALLS))
            idle = quiet.rounds(ROUNDS, lambda: durations(plugin, "Allocate", [request] * CALLS))
            os.kill(node.probe_pid, signal.SIGSTOP)
            node.ask("rescan")
            node.until(lambda: node.status()["probe"]["state"] == "busy", what="the scan hangs")
            hung = quiet.rounds(ROUNDS, lambda: durations(plugin, "Allocate", [request] * CALLS))
            assert node.status()["probe"]["state"] == "busy"
    floor = percentile(empty, 0.5) * 1000
    method = (
        f"HTTP/2 frames on the plugin's socket, one call every {PAUSE * 1000:g} ms while the ledger is written behind; "
        f"an empty call takes {floor:.2f} ms (p50)"
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
