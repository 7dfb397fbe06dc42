"""The simulated node, its pods and its events, as tables and lines; used by `simulate` and by the live view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from devherd.cli.output import BAD, GOOD, QUIET, WARN
from devherd.cli.words import listing, millis, short

Json = dict[str, Any]
NODE_HEADS = ("RESOURCE", "CAPACITY", "ALLOCATABLE", "IN USE", "REGISTERED", "ALLOCATABLE AFTER", "REGISTRATIONS")
NODE_FIGURES = ("CAPACITY", "ALLOCATABLE", "IN USE", "ALLOCATABLE AFTER", "REGISTRATIONS")
POD_HEADS = ("POD", "STATE", "DEVICES", "A CONTAINER HAS", "WHY")
TERMINAL = ("Failed", "Succeeded")


def node_rows(node: Json) -> list[list[str | Text]]:
    """A row for each resource; `ALLOCATABLE AFTER` counts from the appearance of the kubelet's socket."""
    rows: list[list[str | Text]] = []
    for name, item in node.get("resources", {}).items():
        short_of = item["allocatable"] < item["capacity"]
        known = Text("no: plugin away", style=BAD) if item["stopped"] else Text("yes", style=GOOD)
        rows.append(
            [
                name,
                f"{item['capacity']:,}",
                Text(f"{item['allocatable']:,}", style=BAD if short_of else ""),
                f"{item['allocated']:,}",
                known,
                millis(item["allocatable_ms"]),
                str(item["registrations"] or ""),
            ]
        )
    return rows


def pod_rows(pods: Sequence[Json]) -> list[list[str | Text]]:
    """A row for each pod."""
    return [_pod_row(pod) for pod in pods]


def _pod_row(pod: Json) -> list[str | Text]:
    name = pod["name"] if pod["namespace"] == "default" else f"{pod['namespace']}/{pod['name']}"
    devices = [f"{res}: {listing(map(short, ids), 2)}" for c in pod["containers"] for res, ids in c["devices"].items()]
    records = [container["record"] for container in pod["containers"] if container["record"]]
    nodes = [node["container_path"] for record in records for node in record["nodes"]]
    state = pod["reason"] or pod["phase"]
    style = {"Running": GOOD, "Succeeded": QUIET, "Failed": BAD}.get(pod["phase"], WARN)
    return [name, Text(state, style=style), "\n".join(devices), listing(nodes, 3), why(pod)]


def pod_lines(pods: Sequence[Json]) -> list[list[str | Text]]:
    """A short row for each pod: name, state, and what it has or why it does not run."""
    rows = []
    for pod, row in zip(pods, pod_rows(pods), strict=True):
        counts = [f"{len(ids)} {res}" for c in pod["containers"] for res, ids in c["devices"].items()]
        has = f"{listing(counts, 3)}   {row[3]}" if counts else ""
        rows.append([row[0], row[1], why(pod) or has])
    return rows


def why(pod: Json) -> str:
    """Why a pod does not run: the admission error, or what a container waits for."""
    if pod["message"]:
        return str(pod["message"])
    waiting = [container["waiting"] for container in pod["containers"] if container["waiting"]]
    return "; ".join(f"{item['reason']}: {item['message']}" for item in waiting)


_EVENTS = {
    "listening": "kubelet listens (pid {pid})",
    "registered": "{resource} registered",
    "refused": "{resource} refused: {error}",
    "disconnected": "{resource}: the plugin is away",
    "forgotten": "{resource} forgotten: away for too long",
    "list": "{resource}: {healthy} healthy, {unhealthy} unhealthy",
    "allocate-failed": "pod: allocation of {resource} failed: {error}",
    "pod-added": "pod {pod} added",
    "pod-running": "pod {pod} runs",
    "pod-rejected": "pod {pod} rejected, {reason}: {message}",
    "pod-removed": "pod {pod} removed",
    "container-waiting": "pod {pod}: {reason}: {error}",
    "frozen": "kubelet frozen",
    "unfrozen": "kubelet goes on",
}
"""What a person wants to see of the kubelet's log; the rest is for tests."""
_BAD_EVENTS = frozenset(
    {"refused", "disconnected", "forgotten", "allocate-failed", "pod-rejected", "container-waiting"}
)


def event_line(event: Mapping[str, Any]) -> Text | None:
    """An event in a line, or None for one that only tests care about."""
    template = _EVENTS.get(str(event.get("what")))
    if template is None:
        return None
    try:
        text = template.format_map(event)
    except KeyError:
        text = str(event.get("what"))
    return Text(text, style=BAD if event["what"] in _BAD_EVENTS else "")


def reregistered(node: Json) -> dict[str, float | None]:
    """Resource -> milliseconds from the kubelet's socket until it was allocatable; None: not yet."""
    return {name: item["allocatable_ms"] for name, item in node.get("resources", {}).items()}


def settled(pod: Json) -> bool:
    """Whether this kubelet has made up its mind: the pod is over, or admitted with all its containers running.

    The phase alone is what an earlier kubelet wrote.
    """
    if pod["phase"] in TERMINAL:
        return True
    stay = [container for container in pod["containers"] if container["kind"] != "init"]
    return bool(pod["admitted"]) and all(container["state"] == "running" for container in stay)


def back(node: Json, expected: Sequence[str] | Mapping[str, Any]) -> bool:
    """Whether every expected resource has been registered with this kubelet and sent its list."""
    resources = node.get("resources", {})
    return all(
        name in resources and not resources[name]["stopped"] and resources[name]["allocatable_ms"] is not None
        for name in expected
    )
