"""`devherd devices`: every device, healthy or not, why, and who holds it."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.text import Text

from devherd.cli.app import App, common
from devherd.cli.asking import Answers, ask_fronts, require
from devherd.cli.exits import ERROR, NOT_READY, OK, Fault
from devherd.cli.names import choices, full_name
from devherd.cli.output import BAD, GOOD, QUIET
from devherd.cli.words import count, listing, short, since

Json = dict[str, Any]


@click.command()
@click.argument("resource", required=False)
@click.option("--unhealthy", is_flag=True, help="Only those that are not healthy.")
@click.option("--wide", is_flag=True, help="Full ids, numbers, things and attributes.")
@common
def devices(app: App, resource: str | None, unhealthy: bool, wide: bool) -> int:
    """Every device: healthy or not, why, who holds it, and what a container gets.

    RESOURCE limits the list to one resource, like devherd.io/fuse, or fuse.
    """
    resource = _meant(app, resource) if resource else None
    request = {"op": "devices", "resource": resource} if resource else {"op": "devices"}
    answers = require(ask_fronts(app.place, request, timeout=10.0), app.place)
    rows = [item for reply in answers.replies for item in reply.get("devices", ())]
    if resource:
        rows = [item for item in rows if item.get("resource") == resource]
    total = len(rows)
    if unhealthy:
        rows = [item for item in rows if not item.get("healthy")]
    rows.sort(key=lambda item: (str(item.get("resource")), str(item.get("id"))))
    if app.out.as_json:
        skipped = [item for reply in answers.replies for item in reply.get("skipped", ())]
        app.out.document({"devices": rows, "skipped": skipped, "down": answers.down_json()})
    else:
        _show(app, answers, rows, wide, total if unhealthy else 0)
    return OK if answers.replies else NOT_READY


def _meant(app: App, resource: str) -> str:
    """The full name of a resource that may be given without its domain. Raises Fault when there is none."""
    answers = require(ask_fronts(app.place, {"op": "status"}), app.place)
    known = [str(item["name"]) for reply in answers.replies for item in reply.get("resources", ())]
    full = full_name(resource, known)
    if not full:
        raise Fault(f"no resource is named {resource!r}", choices(resource, known), code=ERROR)
    return full


def _show(app: App, answers: Answers, rows: list[Json], wide: bool, total: int) -> None:
    """`total`: of how many devices only the unhealthy ones are shown; 0: all are shown."""
    heads = ["RESOURCE", "DEVICE", "HEALTH", "NUMA", "HELD BY", "A CONTAINER GETS", "WHY"]
    if wide:
        heads += ["THINGS", "ATTRIBUTES"]
    if rows:
        app.out.table(heads, [_row(item, wide) for item in rows], right=("NUMA",))
    sick = sum(not item.get("healthy") for item in rows)
    app.out.say()
    if total and not rows:
        app.out.say(f"all healthy: {count(total, 'device')}", GOOD)
    else:
        of = f" of {total:,}" if total else ""
        text = f"{count(len(rows), 'device')}{of}, {sick:,} unhealthy" if rows else "no devices"
        app.out.say(text, BAD if sick else QUIET)
    skipped = [item for reply in answers.replies for item in reply.get("skipped", ())]
    for item in skipped[:10]:
        app.out.say(f"not offered: {item.get('what')} (rule {item.get('rule')}): {item.get('reason')}", QUIET)
    if len(skipped) > 10:
        app.out.say(f"not offered: {len(skipped) - 10:,} more; --json lists them", QUIET)
    for down in answers.down:
        app.out.note(f"{down.plugin} gives no answer: {down.why}", BAD)


def _row(item: Json, wide: bool) -> list[str | Text]:
    identity = str(item.get("id", ""))
    row: list[str | Text] = [
        str(item.get("resource", "")),
        identity if wide else short(identity),
        Text("healthy", style=GOOD) if item.get("healthy") else Text("unhealthy", style=BAD),
        ",".join(str(node) for node in item.get("numa", ())),
        str(item.get("held_by") or ""),
        gets(item, wide),
        why(item),
    ]
    if wide:
        attributes = item.get("attributes") or {}
        row += [" ".join(item.get("things", ())), " ".join(f"{key}={value}" for key, value in attributes.items())]
    return row


def why(item: Json) -> str:
    """Why a device is unhealthy and since when; empty for a healthy one."""
    if item.get("healthy"):
        return ""
    age = since(item.get("since"), time.time())
    reason = str(item.get("reason") or "no reason given")
    return f"{reason} (for {age})" if age else reason


def gets(item: Json, wide: bool = False) -> str:
    """What a container receives with a device, in short."""
    nodes = [_node(node, wide) for node in item.get("nodes", ())]
    mounts = [str(mount.get("host_path", mount)) + " (mount)" for mount in item.get("mounts", ())]
    cdi = [f"cdi:{name}" for name in item.get("cdi", ())]
    env = [f"${key}" for key in item.get("env", {})]
    return listing([*nodes, *mounts, *cdi, *env], most=99 if wide else 3)


def _node(node: Json, wide: bool) -> str:
    host, inside = str(node.get("host_path", "")), str(node.get("container_path", ""))
    text = host if host == inside else f"{host} as {inside}"
    return f"{text} ({node.get('permissions')}, {node.get('number')})" if wide else text
