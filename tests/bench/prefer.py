"""Preferred allocation of 64 partitions, over the socket, for every size."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bench.allocate import socket_of
from bench.figure import Figure, latency
from bench.nodes import BenchNode
from bench.quiet import Quiet
from bench.wire import PluginSocket

RESOURCE = "example.com/partition"
COUNT = 64


def measure(quiet: Quiet) -> list[Figure]:
    """All sizes out of all that are free, out of every other one, and with one that must be among them."""
    names = {"plugin": "partitions", "manifest": "partitions:MANIFEST"}
    with BenchNode({"name": "none"}, {}, {"vendors": ["partitions"]}, **names) as node:
        code = os.path.join(node.folder, "vendor")
        os.mkdir(code)
        shutil.copyfile(Path(__file__).with_name("partitions.py"), f"{code}/partitions.py")
        for path in (code, f"{code}/partitions.py"):
            # What others may write is not loaded.
            os.chmod(path, 0o755)
        node.pythonpath = code
        node.up(allocatable=COUNT, resource=RESOURCE)
        ids = [row["id"] for row in node.ask("devices", resource=RESOURCE)["devices"]]
        with PluginSocket(socket_of(node, RESOURCE)) as plugin:
            found = quiet.rounds(2, lambda: list(asked(plugin, ids)))
    wrong = sum(not right for _, right in found)
    figure = latency(
        "prefer.64",
        "preferred allocation, 64 partitions, any size",
        [seconds for seconds, _ in found],
        "over the socket: each size, from all, from half, with two required; 8 cards of 8, weights between all; "
        f"{wrong} bad answers",
        {"max": 20.0},
    )
    return [figure if not wrong else Figure(**{**figure.__dict__, "met": False})]


def asked(plugin: PluginSocket, ids: list[str]) -> Iterator[tuple[float, bool]]:
    """Seconds of each question, and whether the answer was one."""
    from devherd.api import deviceplugin_v1beta1_pb2 as pb

    for free, must in ((ids, []), (ids[::2], []), (ids, [ids[3], ids[40]])):
        for size in range(len(must) or 1, len(free) + 1):
            asked = pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=free, must_include_deviceIDs=must, allocation_size=size
            )
            request = pb.PreferredAllocationRequest(container_requests=[asked]).SerializeToString()
            start = time.perf_counter()
            reply = plugin.call("GetPreferredAllocation", request)
            seconds = time.perf_counter() - start
            chosen = pb.PreferredAllocationResponse.FromString(reply).container_responses[0].deviceIDs
            yield seconds, len(set(chosen)) == size and set(must) <= set(chosen) <= set(free)
