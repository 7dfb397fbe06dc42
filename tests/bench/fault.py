"""From a device that is gone to a kubelet that knows."""

from __future__ import annotations

import time

from support.frontnode import xdevs

from bench.figure import Figure, latency
from bench.nodes import BenchNode, last_event, listed_at
from bench.quiet import Quiet

DEVICES = 8
ROUNDS = 5


def measure(quiet: Quiet) -> list[Figure]:
    """Break and heal one device after another."""
    # Back to healthy after a moment, and no longer pauses for devices that fail again: else this takes hours.
    quick = {"health": {"recover": 0.05, "hold_off_max": 0.05, "flap_window": 0.0}}
    with BenchNode(xdevs(DEVICES), settings=quick) as node:
        node.up(allocatable=DEVICES)
        node.settled()
        found = quiet.rounds(ROUNDS, lambda: [_both(node, f"/dev/x{number}") for number in range(DEVICES)])
    told, back = [one for one, _ in found], [other for _, other in found]
    return [
        latency(
            "fault.hard",
            "hard fault (device gone) → kubelet told",
            told,
            "it vanishes from /dev and /sys; inotify in the probe, 20 ms of gathering, scan, snapshot, list",
            {"max": 1000.0},
        ),
        latency("fault.back", "the device is back → kubelet told", back, "the same, with `health.recover` at 50 ms"),
    ]


def _both(node: BenchNode, path: str) -> tuple[float, float]:
    """Seconds until the kubelet was told that it is gone, and that it is back."""
    since, start = last_event(node.kubelet), time.monotonic()
    node.node.break_device(path)
    told = listed_at(node.kubelet, since, healthy=DEVICES - 1) - start
    since, start = last_event(node.kubelet), time.monotonic()
    node.node.heal_device(path)
    return told, listed_at(node.kubelet, since, healthy=DEVICES) - start
