"""The documents a front gives on its control socket: what it does, has, and why."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from devherd import __version__
from devherd.values import Device, Member

if TYPE_CHECKING:
    from devherd.front.app import Front
    from devherd.front.model import Board


def status(front: Front) -> dict[str, Any]:
    """State of the process, its kubelet, its probe and each resource."""
    probe = front.probe.status()
    configuration = front.configuration
    return {
        "plugin": front.manifest.name,
        "title": front.manifest.title,
        "pid": os.getpid(),
        "started": front.started,
        "now": time.time(),
        "version": __version__,
        "boot_id": front.model.boot_id,
        "kubelet": front.stations.kubelet(),
        "layout": front.stations.layout,
        "detached": None if front.model.detached is None else msgspec.to_builtins(front.model.detached),
        "probe": {
            **msgspec.to_builtins(probe),
            "scan_seconds": front.scan_seconds,
            "scan_age_seconds": None if front.scanned_at is None else time.monotonic() - front.scanned_at,
        },
        "config": {
            "path": configuration.path,
            "loaded": configuration.loaded,
            "problems": msgspec.to_builtins(configuration.problems),
        },
        "resources": [_resource(front, board) for board in front.model.boards.values()],
        "skipped": msgspec.to_builtins(front.model.skipped),
        "node_problems": list(front.model.health.node_problems),
        "absent": front.model.inventory.absent,
        "state_problems": _state_problems(front),
        "counters": front.journal.counters.as_json(),
        "events": {"noted": front.journal.audit.noted, "lost": front.journal.audit.lost},
    }


def devices(front: Front, resource: str = "") -> dict[str, Any]:
    """Every device of one resource, or of all, with verdict, holder and answer."""
    rows = [
        _device(front, board, member)
        for board in front.model.boards.values()
        if resource in ("", board.name)
        for member in board.snapshot.members
    ]
    return {"plugin": front.manifest.name, "devices": rows, "skipped": msgspec.to_builtins(front.model.skipped)}


def explain(front: Front, what: str) -> dict[str, Any]:
    """Why `what` (an id, a path, an address, a resource, a rule) is in a resource, or in none.

    A plugin's name, or what it begins with before a `-` (`gpu`), is about everything that it found.
    """
    plugin = front.manifest.name
    everything = bool(what) and (what == plugin or plugin.startswith(f"{what}-"))
    found = []
    for board in front.model.boards.values():
        for member in board.snapshot.members:
            device = board.known(member.id)
            if everything or _concerns(what, board.name, member.id, device):
                text = _why(front, board, member, device)
                found.append({"plugin": plugin, "resource": board.name, "id": member.id, "text": text})
    found += [
        {"plugin": plugin, "text": f"{skipped.what} is in no resource: {skipped.reason} ({skipped.rule})"}
        for skipped in front.model.skipped
        if everything or (what and (what in skipped.what or what in skipped.rule))
    ]
    return {"what": what, "found": found}


def _resource(front: Front, board: Board) -> dict[str, Any]:
    members = board.snapshot.members
    station, matching = front.stations.get(board.name), front.expecting.matching(board)
    return {
        "name": board.name,
        **(station.status() if station else {"state": "opening"}),
        "snapshot": board.snapshot.number,
        "devices": len(members),
        "healthy": sum(member.healthy for member in members),
        **({} if matching is None else {"matching": matching}),
        "unhealthy": dict(Counter(member.kind for member in members if not member.healthy)),
        "held": len(front.model.tenancy.held(board.name)),
        "left_out": len(board.snapshot.left_out),
        "draining": board.withdrawn,
        "counters": front.journal.counters.of(board.name),
    }


def _device(front: Front, board: Board, member: Member) -> dict[str, Any]:
    device = board.known(member.id)
    row: dict[str, Any] = {
        "resource": board.name,
        "id": member.id,
        "healthy": member.healthy,
        "reason": front.model.reason(board, member, time.monotonic()),
        "kind": member.kind,
        "since": front.model.since(board, member.id),
        "numa": list(member.numa),
        "held_by": front.model.tenancy.owner(board.name, member.id),
        "nodes": [],
        "mounts": [],
        "env": {},
        "cdi": [],
        "attributes": {},
        "things": [],
    }
    if device is not None:
        row |= {
            "nodes": [
                {
                    "host_path": node.host_path,
                    "container_path": node.container_path,
                    "permissions": node.permissions,
                    "number": f"{node.kind} {node.major}:{node.minor}",
                }
                for node in device.parts.nodes
            ],
            "mounts": msgspec.to_builtins(device.parts.mounts),
            "env": device.parts.env,
            "cdi": list(device.parts.cdi),
            "attributes": device.attributes,
            "things": list(device.things),
        }
    return row


def _concerns(what: str, resource: str, id: str, device: Device | None) -> bool:
    if what in (resource, resource.rpartition("/")[2], id) or (len(what) >= 6 and id.startswith(what)):
        return True
    if device is None or not what:
        return False
    paths = [path for node in device.parts.nodes for path in (node.host_path, node.container_path)]
    numbers = [f"{node.kind}:{node.major}:{node.minor}" for node in device.parts.nodes]
    if what.replace(" ", ":") in numbers:
        return True
    texts = [*paths, *device.things, *device.attributes.values()]
    return any(what == text or what in text for text in texts)


def _why(front: Front, board: Board, member: Member, device: Device | None) -> str:
    rule = f" by {device.attributes['rule']}" if device and "rule" in device.attributes else ""
    state = (
        "healthy"
        if member.healthy
        else f"unhealthy ({member.kind}): {front.model.reason(board, member, time.monotonic())}"
    )
    holder = front.model.tenancy.owner(board.name, member.id)
    held = f"; held by {holder}" if holder else ""
    missing = "" if member.id in board.found else "; the last scan did not find it, it is listed because it was there"
    paths = ", ".join(node.host_path for node in device.parts.nodes) if device else ""
    return f"{paths or member.id} is in {board.name}{rule}: {state}{held}{missing}"


def _state_problems(front: Front) -> list[str]:
    problems = [*front.saved.problems, *front.writer.problems.values(), *front.tenants.problems]
    return [*problems, *filter(None, (front.claims.problem, front.journal.audit.problem))]
