"""The three GPU plugins on simulated nodes: start, Allocate, preference, kubelet restart and memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import processes
from bench.allocate import allocation, durations, socket_of
from bench.figure import Figure, latency, megabytes
from bench.nodes import BenchNode, last_event, listed_at
from bench.prefer import asked
from bench.quiet import Quiet
from bench.wire import PluginSocket

STARTS, RESTARTS, ALLOCATES = (2, 5), (3, 8), (3, 200)
"""Rounds, and how many a round has."""


@dataclass(frozen=True)
class Kind:
    """A plugin, its simulated node, and a second one with 64 partitions or shares."""

    vendor: str
    resource: str
    options: Mapping[str, Any]
    count: int
    many: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)


KINDS = (
    Kind("nvidia", "nvidia.com/gpu", {"count": 8}, 8, {"count": 8}, {"sharing": [{"replicas": 8}]}),
    Kind("amd", "amd.com/gpu", {"count": 8}, 8, {"count": 8, "compute": "CPX"}),
    Kind("intel", "gpu.intel.com/i915", {"count": 8}, 8, {"count": 8}, {"shared": 8}),
)


def measure(quiet: Quiet) -> list[Figure]:
    """All figures of each plugin."""
    return [figure for kind in KINDS for figure in [*_whole(quiet, kind), _preferred(quiet, kind)]]


def _node(kind: Kind, options: Mapping[str, Any], config: Mapping[str, Any]) -> BenchNode:
    plugin = f"gpu-{kind.vendor}"
    spec = {"name": "bench", "hardware": [{"plugin": plugin, "options": options}]}
    return BenchNode(spec, config, plugin=plugin, manifest=f"devherd_gpu.{kind.vendor}.manifest:MANIFEST")


def _whole(quiet: Quiet, kind: Kind) -> list[Figure]:
    with _node(kind, kind.options, {}) as node:
        node.up(allocatable=kind.count, resource=kind.resource)
        node.settled(kind.resource)
        starts = quiet.rounds(STARTS[0], lambda: [_start(node, kind) for _ in range(STARTS[1])])
        restarts = quiet.rounds(RESTARTS[0], lambda: [_restart(node, kind) for _ in range(RESTARTS[1])])
        node.settled(kind.resource)
        ids = [row["id"] for row in node.ask("devices", resource=kind.resource)["devices"]]
        with PluginSocket(socket_of(node, kind.resource)) as plugin:
            durations(plugin, "Allocate", [allocation(ids[:1])] * 50)
            calls = quiet.rounds(
                ALLOCATES[0], lambda: durations(plugin, "Allocate", [allocation(ids[:1])] * ALLOCATES[1])
            )
        assert node.front is not None
        sizes = {"front": node.front.pid, "probe": node.probe_pid}
        rss = {role: megabytes(processes.rss(pid)) for role, pid in sizes.items()}
        private = {role: megabytes(processes.private(pid)) for role, pid in sizes.items()}
    name = f"gpu-{kind.vendor}, {kind.count} GPUs"
    key = f"gpu.{kind.vendor}"
    return [
        latency(
            f"{key}.start",
            f"{name}: exec → Register",
            starts,
            "fork of the launcher to the kubelet's receipt of the Register call; files warm",
        ),
        latency(
            f"{key}.restart",
            f"{name}: kubelet up → first list",
            restarts,
            "simulated kubelet killed and started; from its listening to its taking in all devices; same front",
            {"p50": 50.0},
        ),
        latency(
            f"{key}.allocate",
            f"{name}: Allocate, one GPU",
            calls,
            "HTTP/2 frames on the plugin's socket",
            {"p99": 5.0},
        ),
        Figure(
            f"{key}.memory",
            f"{name}: RSS of front and probe",
            f"front {rss['front']} MB, probe {rss['probe']} MB (private {private['front']} and {private['probe']} MB)",
            {
                **{f"{role}_rss_mb": size for role, size in rss.items()},
                **{f"{role}_private_mb": size for role, size in private.items()},
            },
            "smaps_rollup, after the calls above; pages that several processes use are in every RSS",
        ),
    ]


def _start(node: BenchNode, kind: Kind) -> float:
    node.end_front()
    # Outside the 75 ms in which the kubelet sorts out the stream that ended.
    time.sleep(0.3)
    since = last_event(node.kubelet)
    start = time.monotonic()
    node.start_front()
    register = node.kubelet.client.wait(30, event="register", since=since, resource=kind.resource)
    listed_at(node.kubelet, since, kind.resource, healthy=kind.count)
    return float(register["t"]) - start


def _restart(node: BenchNode, kind: Kind) -> float:
    assert node.front is not None
    node.kubelet.restart(hard=True)
    listed = listed_at(node.kubelet, 0, kind.resource, healthy=kind.count)
    listening = float(node.kubelet.client.events(what="listening")[0]["t"])
    assert node.front.poll() is None, "the front ended with the kubelet"
    time.sleep(0.1)
    return listed - listening


def _preferred(quiet: Quiet, kind: Kind) -> Figure:
    with _node(kind, kind.many, kind.config) as node:
        node.up(allocatable=64, resource=kind.resource)
        ids = [row["id"] for row in node.ask("devices", resource=kind.resource)["devices"]]
        with PluginSocket(socket_of(node, kind.resource)) as plugin:
            found = quiet.rounds(2, lambda: list(asked(plugin, ids)))
    wrong = sum(not right for _, right in found)
    figure = latency(
        f"gpu.{kind.vendor}.prefer",
        f"gpu-{kind.vendor}, 64 {'partitions' if kind.vendor == 'amd' else 'shares'}: preferred, any size",
        [seconds for seconds, _ in found],
        f"over the socket: each size, from all, from half, with two required; {wrong} bad answers",
        {"p50": 20.0},
    )
    return figure if not wrong else Figure(**{**figure.__dict__, "met": False})
