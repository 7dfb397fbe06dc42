"""Many resources in one process, many devices in one resource."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from support.frontnode import RESOURCE

from bench import processes
from bench.allocate import allocation, durations, socket_of
from bench.figure import Figure, latency, megabytes
from bench.nodes import BenchNode, last_event, listed_at
from bench.quiet import Quiet
from bench.wire import PluginSocket

RESOURCES = 60
RESTARTS = (5, 4)
"""Rounds, and how many a round has."""
COUNTS = (1000, 5000, 10_000)
TOO_MANY = 80_000
CHANGES = 5
LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True)
class Sized:
    """One count of devices: seconds of the vendor's scan, of a change until the kubelet was told, of a start; bytes."""

    count: int
    scan: float
    told: float
    start: float
    front: int
    probe: int
    listed: int
    left_out: int


def bare(count: int) -> dict[str, Any]:
    """A node with so many devices."""
    return {"name": "many", "devices": [{"path": "/dev/x{n}", "count": count, "bare": True}]}


def measure_devices(quiet: Quiet) -> list[Figure]:
    """The same node at growing sizes, and one whose list would be too long for the kubelet."""
    sizes = [_sized(quiet, count) for count in COUNTS]
    return [
        *(_figure(size) for size in sizes),
        _growth(_sized(quiet, 8, changes=1), sizes[0], sizes[-1]),
        _too_many(quiet),
        _meanwhile(),
    ]


def _sized(quiet: Quiet, count: int, changes: int = CHANGES) -> Sized:
    with BenchNode(bare(count)) as node:
        node.kubelet.start()
        start = time.monotonic()
        node.start_front()
        began = listed_at(node.kubelet, 0, timeout=60) - start
        node.settled()
        numbers = iter(range(count))
        told = sorted(quiet.rounds(changes, lambda: [_change(node, next(numbers))]))
        status, row = node.status(), node.resource()
        assert node.front is not None
        return Sized(
            count,
            status["probe"]["scan_seconds"],
            told[len(told) // 2],
            began,
            processes.private(node.front.pid),
            processes.private(node.probe_pid),
            row["devices"],
            row["left_out"],
        )


def _change(node: BenchNode, number: int) -> float:
    """One device more goes; seconds until the kubelet has the new list."""
    since, before = last_event(node.kubelet), node.status()["probe"]["scan_seconds"]
    node.node.break_device(f"/dev/x{number}")
    start = time.monotonic()
    told = listed_at(node.kubelet, since, timeout=60) - start
    node.until(lambda: node.status()["probe"]["scan_seconds"] != before, what="status after the scan")
    return told


def _figure(size: Sized) -> Figure:
    values = {
        "scan_ms": round(size.scan * 1000, 1),
        "told_ms": round(size.told * 1000, 1),
        "start_ms": round(size.start * 1000, 1),
        "front_mb": megabytes(size.front),
        "probe_mb": megabytes(size.probe),
    }
    text = (
        "scan {scan_ms:.0f} ms, told after {told_ms:.0f} ms, start {start_ms:.0f} ms, "
        "front {front_mb} MB, probe {probe_mb} MB"
    )
    judged = size.count == COUNTS[-1]
    return Figure(
        f"devices.{size.count}",
        f"{size.count:,} devices in one resource",
        text.format(**values),
        values,
        f"told: a device goes → full scan → snapshot → list at the kubelet, median of {CHANGES}; start: exec → list",
        "scan to snapshot ≤ 1 s" if judged else "",
        size.told <= 1.0 if judged else None,
    )


def _growth(base: Sized, small: Sized, large: Sized) -> Figure:
    """How much more each device costs at the larger size than at the smaller one. Linear: about 1, or less."""
    factor = large.count / small.count
    times = large.told / small.told / factor
    memory = (large.front - base.front) / (small.front - base.front) / factor
    return Figure(
        "devices.growth",
        f"growth from {small.count:,} to {large.count:,} devices",
        f"cost a device: time × {times:.2f}, front's memory × {memory:.2f}",
        {"time_factor": round(times, 2), "memory_factor": round(memory, 2)},
        "how many times as much one device costs at the larger size (time until told; memory above that of 8 devices)",
        "linear (≤ 1.2)",
        times <= 1.2 and memory <= 1.2,
    )


def _meanwhile() -> Figure:
    """Allocate while the front takes in a list of the largest size."""
    found: list[float] = []
    done = threading.Event()
    with BenchNode(bare(COUNTS[-1])) as node:
        node.up()
        node.settled()
        rows = node.devices()
        kept = [rows[f"/dev/x{COUNTS[-1] - number}"]["id"] for number in range(1, 9)]

        def ask() -> None:
            with PluginSocket(socket_of(node, RESOURCE)) as plugin:
                while not done.is_set():
                    found.extend(durations(plugin, "Allocate", [allocation(kept)]))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for number in range(CHANGES):
                _change(node, number)
        finally:
            done.set()
            asking.join()
    return latency(
        "devices.allocate",
        f"Allocate, 8 devices, while one of {COUNTS[-1]:,} goes",
        found,
        f"asked all the time during {CHANGES} changes; the longest waits while the front makes the new list",
    )


def _too_many(quiet: Quiet) -> Figure:
    size = _sized(quiet, TOO_MANY, changes=1)
    honest = size.left_out > 0 and size.listed + size.left_out == TOO_MANY
    return Figure(
        "devices.too_many",
        f"{TOO_MANY:,} devices: a list over 4 MiB",
        f"{size.listed:,} listed, {size.left_out:,} named as left out; front {megabytes(size.front)} MB",
        {"listed": size.listed, "left_out": size.left_out, "start_ms": round(size.start * 1000, 1)},
        "the kubelet's stream stays open, status counts what was left out",
        "what fits, and it says so",
        honest,
    )


def measure_resources(quiet: Quiet) -> list[Figure]:
    """Sixty resources of two devices each."""
    groups = [{"path": f"/dev/r{r}n{{n}}", "count": 2, "major": 300 + r, "bare": True} for r in range(RESOURCES)]
    rules = [{"name": f"r{r}", "groups": [{"paths": [{"path": f"/dev/r{r}n*"}]}]} for r in range(RESOURCES)]
    names = [f"example.com/r{r}" for r in range(RESOURCES)]
    with BenchNode({"name": "wide", "devices": groups}, {"domain": "example.com", "devices": rules}) as node:
        node.kubelet.start()
        start = time.monotonic()
        pid = node.start_front()
        began = _all_listed(node, names) - start
        node.settled(names[-1])
        rounds, each = RESTARTS
        again = quiet.rounds(rounds, lambda: [_again(node, names) for _ in range(each)])
        time.sleep(2.5)
        costs = processes.private(pid), processes.descriptors(pid), processes.threads(pid)
    text = f"start {began * 1000:.0f} ms, {megabytes(costs[0])} MB private, {costs[1]} descriptors, {costs[2]} threads"
    return [
        Figure(
            "resources.cost",
            f"{RESOURCES} resources in one process",
            text,
            {"start_ms": round(began * 1000, 1), "private_mb": megabytes(costs[0]), "threads": costs[2]},
            "exec → the last of all resources allocatable; the rest after the kubelet restarts of the next row",
        ),
        latency(
            "resources.restart",
            f"{RESOURCES} resources: kubelet listens → last one allocatable",
            again,
            "simulated kubelet killed and started; it dials, asks and reads 60 plugins itself in Python meanwhile",
        ),
    ]


def _again(node: BenchNode, names: list[str]) -> float:
    node.kubelet.restart(hard=True)
    last = _all_listed(node, names)
    listening = float(node.kubelet.client.events(what="listening")[0]["t"])
    time.sleep(0.2)
    return last - listening


def _all_listed(node: BenchNode, names: list[str]) -> float:
    return max(listed_at(node.kubelet, 0, name, timeout=60, healthy=2) for name in names)
