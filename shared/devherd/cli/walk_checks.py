"""Whether every pod has the very device that its kubelet says it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devherd.cli.steps import StepFailed
from devherd.cli.words import short

if TYPE_CHECKING:
    from devherd.cli.walk import Walk

Json = dict[str, Any]


class Checks:
    """Compares three views: the kubelet's ids, the container's nodes as created, the plugin's devices now."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def pods_right(self) -> None:
        """Raises StepFailed naming the first pod with a wrong or a missing device."""
        devices = {(d["resource"], d["id"]): d for reply in self._walk.ask("devices") for d in reply["devices"]}
        for pod in self._walk.link.pods():
            if pod["phase"] != "Running":
                continue
            for container in pod["containers"]:
                if wrong := wrong_in(container, devices):
                    raise StepFailed(f"pod {pod['name']}: {wrong}")


def wrong_in(container: Json, devices: dict[tuple[str, str], Json]) -> str:
    """What is wrong with a container's devices; empty when each is the right one."""
    record = container["record"]
    wanted = container["requests"]
    if record is None:
        return "has no container" if wanted else ""
    expected: dict[str, tuple[str, str]] = {}
    for resource, number in wanted.items():
        ids = container["devices"].get(resource, [])
        if len(ids) != number:
            return f"asked for {number} {resource} and holds {len(ids)}"
        for identity in ids:
            device = devices.get((resource, identity))
            if device is None:
                return f"holds {resource} {short(identity)}, which the plugin does not list"
            for node in device["nodes"]:
                expected[node["container_path"]] = (node["host_path"], node["number"])
    got = {node["container_path"]: (node["host_path"], node["number"]) for node in record["nodes"]}
    if got == expected:
        return ""
    path = sorted(set(got.items()) ^ set(expected.items()))[0][0]
    return f"{path} is {got.get(path, 'missing')} in the container and should be {expected.get(path, 'none')}"
