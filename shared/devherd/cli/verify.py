"""`devherd verify`: one verdict: does the kubelet have what this node has, and is all of it healthy."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.text import Text

from devherd.cli.app import App, common
from devherd.cli.asking import Answers, ask_fronts, require
from devherd.cli.exits import NOT_READY, OK
from devherd.cli.expected import findings_of, look
from devherd.cli.judge import Finding, findings, no_answer
from devherd.cli.kubelet_view import KubeletView, compare, healthy_ids, kubelet_view, resource_document
from devherd.cli.output import BAD, GOOD, QUIET, WARN, state_text
from devherd.cli.status import show_findings, show_fitness

SETTLE = 2.0
"""A list that is on its way to the kubelet differs for a moment; a difference has to last this long (seconds)."""


@click.command()
@common
def verify(app: App) -> int:
    """A verdict on the node: is everything expected there, registered, healthy, and known to the kubelet.

    Compares what the plugins serve with what the kubelet offers to pods (PodResources). Exits 3 when
    something is missing, not registered, not healthy, or different there.
    """
    with app.out.progress("asking the plugins and the kubelet"):
        status, devices, view, differences = _look(app)
    found = [*no_answer(status), *findings(status)]
    if view.error:
        # Without the API (an old kubelet) there is nothing to compare; a kubelet that fails to answer is not fine.
        found.append(Finding(view.failed, "kubelet", f"could not be asked what it offers: {view.error}"))
    seen = look(app.place, status)
    found += findings_of(seen, found)
    found = sorted([*found, *differences], key=lambda item: not item.problem)
    good = bool(status.replies) and not any(item.problem for item in found)
    rows = _rows(status, devices, view)
    if app.out.as_json:
        compared = view.error == ""
        document = {"ok": good, "compared": compared, "resources": rows, "findings": [f.as_json() for f in found]}
        document["fitness"] = seen.as_json()
        app.out.document(document)
    else:
        _show(app, rows, found)
        show_fitness(app, seen)
    return OK if good else NOT_READY


def _look(app: App) -> tuple[Answers, Answers, KubeletView, list[Finding]]:
    """Both sides; once more for as long as they differ and a change may be on its way."""
    deadline = time.monotonic() + SETTLE
    while True:
        status = require(ask_fronts(app.place, {"op": "status"}), app.place)
        devices = ask_fronts(app.place, {"op": "devices"}, timeout=10.0)
        view = kubelet_view(app.place)
        differences = [] if view.error else compare(devices, view)
        if not differences or time.monotonic() > deadline:
            return status, devices, view, differences
        time.sleep(0.2)


def _rows(status: Answers, devices: Answers, view: KubeletView) -> list[dict[str, Any]]:
    healthy = healthy_ids(devices)
    resources = [item for reply in status.replies for item in reply.get("resources", ())]
    ordered = sorted(resources, key=lambda item: str(item["name"]))
    return [resource_document(item, healthy.get(str(item["name"]), set()), view) for item in ordered]


def _show(app: App, rows: list[dict[str, Any]], found: list[Finding]) -> None:
    app.out.say(app.place.title, QUIET)
    heads = ("RESOURCE", "STATE", "DEVICES", "HEALTHY", "KUBELET OFFERS", "AGREES")
    table: list[list[str | Text]] = []
    for row in rows:
        agrees = {True: Text("yes", style=GOOD), False: Text("no", style=BAD), None: Text("not asked", style=WARN)}
        table.append(
            [
                str(row["name"]),
                state_text(str(row["state"]), ("registered",), ("unverified",)),
                str(row["devices"]),
                str(row["healthy"]),
                "" if row["kubelet"] is None else str(row["kubelet"]),
                agrees[row["agrees"]],
            ]
        )
    if table:
        app.out.table(heads, table, right=("DEVICES", "HEALTHY", "KUBELET OFFERS"))
    show_findings(app, found)
