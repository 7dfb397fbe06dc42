"""From an exec, and from a new kubelet's socket, to devices that a pod can get."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from devherd.run.instance import Instance, Wish
from devherd.sim.kubelet_process import SimKubelet
from devherd.sim.nodespec import NodeSpec
from support.frontnode import RESOURCE, xdevs

from bench.figure import Figure, latency
from bench.nodes import BenchNode, last_event, listed_at, seeing_sockets
from bench.quiet import Quiet

DEVICES = 8
STARTS = (10, 3)
RESTARTS = (15, 10)
TOP_RESTARTS = (5, 10)
"""Rounds, and how many a round has."""
CONFIG = """
domain: example.com
devices:
  - name: xdev
    groups:
      - paths:
          - path: /dev/x*
"""


def measure_start(quiet: Quiet) -> list[Figure]:
    """Exec to list at the kubelet, with what the last run left on disk."""
    rounds, each = STARTS
    with BenchNode(xdevs(DEVICES)) as node:
        node.up(allocatable=DEVICES)
        node.settled()
        found = quiet.rounds(rounds, lambda: [_start(node) for _ in range(each)])
    return [
        latency(
            "start.warm",
            "exec → registered, warm files",
            found,
            f"fork of the launcher as supervisord does it, to the kubelet's taking in {DEVICES} healthy devices: two "
            "interpreter starts, probe, scan, gRPC; page cache, compiled code and state files warm",
            {"p50": 400.0},
        )
    ]


def _start(node: BenchNode) -> float:
    node.end_front()
    # Outside the 75 ms in which the kubelet sorts out the stream that ended.
    time.sleep(0.3)
    since = last_event(node.kubelet)
    start = time.monotonic()
    node.start_front()
    return listed_at(node.kubelet, since, healthy=DEVICES) - start


@contextmanager
def supervised(devices: int = DEVICES) -> Iterator[Instance]:
    """supervisord, watcher, front and probe as on a node, with production settings."""
    import msgspec

    node = msgspec.convert(xdevs(devices), NodeSpec)
    wish = Wish(node=node, plugin_configs={"generic": CONFIG}, programs=["generic", "watcher"])
    with Instance(wish, f"bench{os.getpid()}") as instance:
        instance.kubelet.client.wait_resource(RESOURCE, timeout=30, allocatable=devices)
        yield instance


def measure_restart(quiet: Quiet) -> list[Figure]:
    """Kubelet restarts under the whole arrangement, and for a front alone in the other socket layout."""
    with supervised() as instance:
        both = quiet.rounds(RESTARTS[0], lambda: _restarts(instance.kubelet, RESTARTS[1]))
    with BenchNode(xdevs(DEVICES), settings={"kubelet": {"layout": "top"}}) as node:
        node.up(allocatable=DEVICES)
        top = [all for all, _ in quiet.rounds(TOP_RESTARTS[0], lambda: _restarts(node.kubelet, TOP_RESTARTS[1]))]
    budget = {"p50": 10.0, "p99": 25.0}
    return [
        latency(
            "restart.subfolder",
            "kubelet.sock appears → allocatable",
            [all for all, _ in both],
            "simulated kubelet killed and started under supervisord, watcher and front; socket file seen by inotify, "
            f"to its taking in {DEVICES} healthy devices (make e2e measures a real kubelet)",
            budget,
        ),
        latency(
            "restart.register",
            "of it: until the kubelet has our Register call",
            [ours for _, ours in both],
            "what is left after it is the kubelet's: it dials back, asks, reads the list; the simulated one in Python",
        ),
        latency(
            "restart.top",
            "the same, sockets at the top level",
            top,
            "a front alone, without watcher; its sockets are wiped by each kubelet start and published again",
            budget,
        ),
    ]


def _restarts(kubelet: SimKubelet, count: int) -> list[tuple[float, float]]:
    """Seconds from the socket to the list, and to the Register call."""
    found = []
    with seeing_sockets(kubelet.places.device_plugins) as seen:
        for _ in range(count):
            seen.times.clear()
            kubelet.restart(hard=True)
            listed = listed_at(kubelet, 0, healthy=DEVICES)
            listening = float(kubelet.client.events(what="listening")[0]["t"])
            # Whoever saw it first: a late wake-up of this process must not flatter the figure.
            appeared = min([listening, *seen.times])
            registering = float(kubelet.client.events(what="register")[0]["t"])
            found.append((listed - appeared, registering - appeared))
            # A kubelet lives for a while; registration has settled when the next one comes.
            time.sleep(0.1)
    return found
