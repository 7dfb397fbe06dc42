"""CPU time of processes that have nothing to do."""

from __future__ import annotations

import time

from support.frontnode import RESOURCE

from bench import processes
from bench.figure import Figure
from bench.memory import suite
from bench.quiet import Quiet
from bench.register import supervised

SETTLE = 40.0
"""Seconds after which everything that follows a start and an allocation is over."""
SECONDS = 60.0
"""Long enough for two of everything that happens twice a minute."""
ROUNDS = 2


def measure(quiet: Quiet) -> list[Figure]:
    """A registered node with a running pod, left alone."""
    with supervised() as instance:
        instance.kubelet.client.pod_add("p", {RESOURCE: 2}, wait=10)
        time.sleep(SETTLE)
        pids = suite(instance)
        used = quiet.rounds(ROUNDS, lambda: [processes.steadily(pids.values(), SECONDS)])
    figures = []
    for role, pid in pids.items():
        percent = round(sum(one[pid] for one in used) / len(used) * 100, 3)
        figures.append(
            Figure(
                f"idle.{role}",
                f"idle CPU, {role}",
                f"{percent:.3f} % of a core",
                {"percent": percent},
                f"run time of its threads, {ROUNDS} × {SECONDS:g} s, registered, a pod running, default intervals",
                "≤ 0.1 %",
                percent <= 0.1,
            )
        )
    return figures
