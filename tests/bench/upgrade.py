"""What the kubelet notices of new code: a probe that is replaced, a front that is restarted."""

from __future__ import annotations

import os
import signal
import time
import xmlrpc.client
from collections.abc import Callable
from typing import Any

from devherd.sim.kubelet_process import SimKubelet
from supervisor.xmlrpc import SupervisorTransport
from support.frontnode import xdevs

from bench.figure import Figure, latency
from bench.nodes import BenchNode, last_event, listed_at
from bench.quiet import Quiet
from bench.register import supervised

DEVICES = 8
PROBES = 15
FRONTS = (7, 3)
SUPERVISED = (5, 2)
"""Rounds, and how many a round has."""


def measure(quiet: Quiet) -> list[Figure]:
    """Probe first, then front: as supervisord's stop and start, and through `supervisorctl restart`."""
    with BenchNode(xdevs(DEVICES)) as node:
        node.up(allocatable=DEVICES)
        node.settled()
        lost, seconds = _probes(node)
        direct = _gaps(quiet, FRONTS, node.kubelet, lambda: (node.end_front(), node.start_front()))
    with supervised(DEVICES) as instance:
        proxy = _supervisor(instance.layout.supervisor_socket)
        through = _gaps(quiet, SUPERVISED, instance.kubelet, lambda: _restart(proxy))
    return [
        Figure(
            "upgrade.vendor",
            "new vendor code: streams lost, lists sent",
            f"{lost} lost in {PROBES} probes (new one at work after {seconds * 1000:.0f} ms)",
            {"lost": lost, "replaced": PROBES, "replaced_ms": round(seconds * 1000, 1)},
            "probe killed, a fresh exec takes over and scans; counts streams that ended and lists the kubelet was sent",
            "0",
            lost == 0,
        ),
        latency(
            "upgrade.library",
            "new library code: registration gap",
            direct,
            "front ended by SIGTERM and started through the launcher; last moment of the old stream to the new list",
            {"p50": 500.0},
        ),
        latency(
            "upgrade.supervisorctl",
            "the same through supervisord",
            through,
            "stopProcess and startProcess over supervisord's socket, as supervisorctl restart does",
            {"p50": 500.0},
        ),
    ]


def _probes(node: BenchNode) -> tuple[int, float]:
    """Streams that ended and lists sent while probes were replaced; median seconds until the new one has scanned."""
    since, took = last_event(node.kubelet), []
    for _ in range(PROBES):
        old, start = node.probe_pid, time.monotonic()
        os.kill(old, signal.SIGKILL)
        node.ask("rescan")
        node.until(lambda: _works(node, old), timeout=20, what="a new probe at work")  # noqa: B023
        took.append(time.monotonic() - start)
    events = node.kubelet.client.events(since)
    lost = sum(event["what"] in ("stream-end", "disconnected", "list") for event in events)
    return lost, sorted(took)[len(took) // 2]


def _works(node: BenchNode, old: int) -> bool:
    probe = node.status()["probe"]
    return probe["pid"] not in (None, old) and probe["state"] == "idle"


def _gaps(quiet: Quiet, times: tuple[int, int], kubelet: SimKubelet, restart: Callable[[], object]) -> list[float]:
    rounds, each = times
    return quiet.rounds(rounds, lambda: [_gap(kubelet, restart) for _ in range(each)])


def _gap(kubelet: SimKubelet, restart: Callable[[], object]) -> float:
    """Seconds during which the kubelet had none of our devices."""
    since = last_event(kubelet)
    restart()
    back = listed_at(kubelet, since, healthy=DEVICES)
    gone = next(event["t"] for event in kubelet.client.events(since) if event["what"] == "disconnected")
    time.sleep(0.3)
    return back - float(gone)


def _supervisor(path: str) -> Any:
    transport = SupervisorTransport(None, None, f"unix://{path}")
    return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor


def _restart(proxy: Any) -> None:
    proxy.stopProcess("generic", True)
    proxy.startProcess("generic", False)
