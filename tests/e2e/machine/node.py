"""What a test wants to know of the machine as a node: pods with their devices, and devherd with its resources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from e2e.machine.image import RESOURCES
from e2e.machine.vm import Machine

_PLACES = {
    "hwrng": "/dev/hwrng",
    "fuse": "/dev/fuse",
    "serial": "/dev/ttyS[12]",
    "port": "/dev/virtio-ports/org.*card0",
}


class Node:
    """The machine, and questions about it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def settled(self, timeout: float = 120.0) -> dict[str, Any]:
        """Wait until every pod runs or is lost and every resource is registered; return the last report."""
        last: dict[str, Any] = {}

        def look() -> bool:
            last.clear()
            last.update(self.machine.report())
            pods, resources = last["pods"], last["resources"]
            return (
                len(pods) == len(RESOURCES)
                and all(pod["running"] or pod["phase"] == "Failed" for pod in pods.values())
                and all(registered(resources, name) for name in RESOURCES)
            )

        try:
            self.machine.wait(look, timeout, "all pods run and all resources are registered", every=1.0)
        except Exception as problem:
            raise AssertionError(f"{problem}\n{_short(last)}\n{self.words()}") from None
        return last

    def registered(self, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until every resource is registered; return the report."""
        return self.settled(timeout)

    def words(self) -> str:
        """The last that devherd and systemd said of it."""
        script = "journalctl -b -u devherd -n 20 --no-pager; tail -n 20 /var/log/devherd/*.log"
        return self.machine.run("sh", "-c", script).out


def registered(resources: Mapping[str, Any], name: str) -> bool:
    """Whether the kubelet has this resource with all its devices."""
    state = resources.get(f"example.com/{name}", {})
    return bool(state.get("state") == "registered" and state.get("healthy") == RESOURCES[name])


def wrong(report: Mapping[str, Any]) -> list[str]:
    """What is wrong with the pods: lost ones, and devices that are missing, foreign, too many, or cannot be opened."""
    found = []
    for name in RESOURCES:
        pod = report["pods"].get(f"on-{name}-n1")
        if pod is None or pod["phase"] == "Failed" or not pod["running"]:
            found.append(f"{name}: lost: {pod and (pod['phase'], pod['reason'], pod['message'])}")
            continue
        nodes = list(pod["nodes"])
        if len(nodes) != 1 or not re.fullmatch(_PLACES[name], nodes[0]):
            found.append(f"{name}: has {pod['nodes']}")
        elif nodes != pod["opened"]:
            found.append(f"{name}: has {nodes[0]} and cannot open it")
    return found


def _short(report: Mapping[str, Any]) -> str:
    pods = {name: (pod["phase"], pod["reason"], pod["running"]) for name, pod in report.get("pods", {}).items()}
    resources = {name: (one.get("state"), one.get("healthy")) for name, one in report.get("resources", {}).items()}
    return json.dumps({"pods": pods, "resources": resources, "problem": report.get("problem")})
