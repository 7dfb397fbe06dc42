"""What the processes cost in memory, beside their siblings, after they have worked a little."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from typing import Any

from devherd.process import children_of
from devherd.run.instance import Instance
from support.frontnode import RESOURCE, xdevs

from bench import processes
from bench.figure import Figure, megabytes
from bench.nodes import BenchNode
from bench.quiet import Quiet
from bench.register import supervised

FRONTS = 4


class Sibling(BenchNode):
    """A front of its own on the kubelet of an instance: it stands for another vendor's plugin."""

    def __init__(self, instance: Instance, number: int) -> None:
        domain = f"s{number}.example.com"
        rule = {"name": "xdev", "groups": [{"paths": [{"path": "/dev/x*"}]}]}
        super().__init__(xdevs(8), {"domain": domain, "devices": [rule]})
        self.name = f"{domain}/xdev"
        with open(self.config_path, encoding="utf-8") as file:
            settings: dict[str, Any] = json.load(file)
        layout = instance.layout
        settings["paths"] |= {"device_plugins": layout.device_plugins, "pod_resources": layout.pod_resources}
        with open(self.config_path, "w", encoding="utf-8") as file:
            json.dump(settings, file)


def suite(instance: Instance) -> dict[str, int]:
    """Pids of one plugin's arrangement by role."""
    supervisor = instance.supervisor.pid
    assert supervisor is not None
    named = {}
    for pid in children_of(supervisor):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            named["watcher" if b"devherd_watcher" in file.read() else "front"] = pid
    (probe,) = children_of(named["front"])
    return {"supervisord": supervisor, **named, "probe": probe}


def measure(quiet: Quiet) -> list[Figure]:
    """Four plugins on one kubelet; one of them under supervisord with its watcher."""
    # Code that is compiled at a start stays in that process; an installed node has it compiled.
    with supervised() as instance, Sibling(instance, FRONTS) as sibling:
        sibling.start_front()
        instance.kubelet.client.wait_resource(sibling.name, timeout=30, allocatable=8)
    with ExitStack() as stack:
        instance = stack.enter_context(supervised())
        siblings = [stack.enter_context(Sibling(instance, number)) for number in range(1, FRONTS)]
        client = instance.kubelet.client
        for sibling in siblings:
            sibling.start_front()
            client.wait_resource(sibling.name, timeout=30, allocatable=8)
        _work(instance, [RESOURCE, *(sibling.name for sibling in siblings)])
        own = suite(instance)
        plugins = [(own["front"], own["probe"])]
        plugins += [(sibling.front.pid, sibling.probe_pid) for sibling in siblings if sibling.front is not None]
        # The kubelet maps the same files, and a real one does not share them.
        instance.kubelet.close()
        time.sleep(1.0)
        fronts = [processes.private(front) for front, _ in plugins]
        probes = [processes.private(probe) for _, probe in plugins]
        shares = {role: processes.pss(pid) for role, pid in own.items()}
        others = sum(processes.pss(pid) for pair in plugins[1:] for pid in pair)
    return [*_private(fronts, probes), *_suite(shares, others)]


def _work(instance: Instance, resources: list[str]) -> None:
    """A kubelet restart and some pods on each resource: what is loaded at first use has been loaded."""
    client = instance.kubelet.client
    instance.kubelet.restart(hard=True)
    for name in resources:
        client.wait_resource(name, timeout=20, allocatable=8)
    for number in range(3 * len(resources)):
        client.pod_add(f"p{number}", {resources[number % len(resources)]: 4}, wait=10)
        client.pod_rm(f"p{number}")
    time.sleep(3.0)


def _private(fronts: list[int], probes: list[int]) -> list[Figure]:
    found = []
    for role, sizes, limit in (("front", fronts, 24), ("probe", probes, 12)):
        worst = megabytes(max(sizes))
        found.append(
            Figure(
                f"memory.{role}",
                f"private memory of a {role} beside its siblings",
                f"{worst} MB",
                {"max_mb": worst, "min_mb": megabytes(min(sizes))},
                f"Private_* of smaps_rollup, largest of {len(sizes)}, after a kubelet restart and some pods",
                f"≤ {limit} MB",
                worst <= limit,
            )
        )
    return found


def _suite(shares: dict[str, int], others: int) -> list[Figure]:
    one, four = megabytes(sum(shares.values())), megabytes(sum(shares.values()) + others)
    parts = ", ".join(f"{role} {megabytes(size)}" for role, size in shares.items())
    return [
        Figure(
            "memory.one",
            "one plugin with all it needs (PSS)",
            f"{one} MB ({parts})",
            {"pss_mb": one, **{f"{role}_mb": megabytes(size) for role, size in shares.items()}},
            f"Pss of supervisord, watcher, front and probe beside {FRONTS - 1} more plugins, kubelet stopped",
        ),
        Figure(
            "memory.four",
            "four plugins with all they need (PSS)",
            f"{four} MB",
            {"pss_mb": four},
            "the same and the three other fronts and probes; generic plugins stand for the vendors, whose probes "
            f"also load driver libraries. This bench (pid {os.getpid()}) shares the interpreter's pages",
            "≤ 165 MB",
            four <= 165,
        ),
    ]
