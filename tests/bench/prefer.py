"""Preferred allocation of 64 partitions, over the socket, for every size."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from bench.allocate import plugin_socket
from bench.figure import Figure, latency
from bench.nodes import BenchNode

RESOURCE = "example.com/partition"
COUNT = 64


def measure() -> list[Figure]:
    """All sizes out of all that are free, out of every other one, and with one that must be among them."""
    from devherd.api import deviceplugin_v1beta1_pb2 as pb

    names = {"plugin": "partitions", "manifest": "partitions:MANIFEST"}
    with BenchNode({"name": "none"}, {}, {"vendors": ["partitions"]}, **names) as node:
        code = os.path.join(node.folder, "vendor")
        os.mkdir(code)
        shutil.copy(Path(__file__).with_name("partitions.py"), code)
        node.pythonpath = code
        node.up(allocatable=COUNT, resource=RESOURCE)
        ids = [row["id"] for row in node.ask("devices", resource=RESOURCE)["devices"]]
        found, wrong = [], 0
        with plugin_socket(node, RESOURCE) as call:
            for free, must in ((ids, []), (ids[::2], []), (ids, [ids[3], ids[40]])):
                for size in range(len(must) or 1, len(free) + 1):
                    asked = pb.ContainerPreferredAllocationRequest(
                        available_deviceIDs=free, must_include_deviceIDs=must, allocation_size=size
                    )
                    request = pb.PreferredAllocationRequest(container_requests=[asked]).SerializeToString()
                    start = time.perf_counter()
                    reply = call("GetPreferredAllocation", request)
                    found.append(time.perf_counter() - start)
                    chosen = pb.PreferredAllocationResponse.FromString(reply).container_responses[0].deviceIDs
                    wrong += len(set(chosen)) != size or not set(must) <= set(chosen) <= set(free)
    figure = latency(
        "prefer.64",
        "preferred allocation, 64 partitions, any size",
        found,
        "over the socket: each size, from all, from half, with two required; 8 cards of 8, weights between all; "
        f"{wrong} bad answers",
        {"max": 20.0},
    )
    return [figure if not wrong else Figure(**{**figure.__dict__, "met": False})]
