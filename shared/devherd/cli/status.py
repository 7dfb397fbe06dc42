"""`devherd status`: what runs, what the kubelet has, and what is wrong."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.text import Text

from devherd.cli.app import App, common
from devherd.cli.asking import Answers, ask_fronts, require
from devherd.cli.exits import NOT_READY, OK
from devherd.cli.expected import Look, findings_of, look
from devherd.cli.judge import SERVED, Finding, findings, no_answer
from devherd.cli.output import BAD, GOOD, QUIET, WARN, state_text
from devherd.cli.words import clock, count, millis, since, span

Json = dict[str, Any]
PLUGIN_HEADS = ("PLUGIN", "STATE", "PID", "UP", "PROBE", "LAST SCAN", "TOOK", "WHAT")
PLUGIN_FIGURES = ("PID", "TOOK")
RESOURCE_HEADS = ("RESOURCE", "STATE", "DEVICES", "HEALTHY", "HELD", "REGISTERED", "TOOK", "TIMES")
RESOURCE_FIGURES = ("DEVICES", "HEALTHY", "HELD", "TOOK", "TIMES")


@click.command()
@common
def status(app: App) -> int:
    """What runs, what the kubelet has, and what is wrong.

    Exits 3 when no plugin gives an answer. Use `verify` for a verdict on the node.
    """
    answers = require(ask_fronts(app.place, {"op": "status"}), app.place)
    told = [*no_answer(answers), *findings(answers)]
    seen = look(app.place, answers)
    found = sorted([*told, *findings_of(seen, told)], key=lambda item: not item.problem)
    if app.out.as_json:
        app.out.document({**as_document(app, answers, found), "fitness": seen.as_json()})
    else:
        show(app, answers, found)
        show_fitness(app, seen)
    return OK if answers.replies else NOT_READY


def as_document(app: App, answers: Answers, found: list[Finding]) -> Json:
    """The status as data; `ready` says that there is no problem."""
    return {
        "ready": not any(item.problem for item in found),
        "place": {
            "config": app.place.config,
            "run": str(app.place.run),
            "instance": app.place.instance and str(app.place.instance),
        },
        "plugins": list(answers.replies),
        "down": answers.down_json(),
        "findings": [item.as_json() for item in found],
    }


def show(app: App, answers: Answers, found: list[Finding]) -> None:
    """The status for people."""
    out = app.out
    out.say(app.place.title, QUIET)
    for line in kubelet_lines(answers):
        out.say(line)
    out.say()
    out.table(PLUGIN_HEADS, plugin_rows(answers), right=PLUGIN_FIGURES)
    rows = resource_rows(answers)
    if rows:
        out.say()
        out.table(RESOURCE_HEADS, rows, right=RESOURCE_FIGURES)
    show_findings(app, found)


def show_findings(app: App, found: list[Finding]) -> None:
    """Problems with a mark and a hint each, then what is only worth knowing; a good word when all is well."""
    app.out.say()
    for item in found:
        mark = ("problem  ", BAD) if item.problem else ("note     ", WARN)
        app.out.console.print(Text.assemble(mark, (item.where, "bold"), " ", item.text), soft_wrap=True)
        if item.hint:
            app.out.say(f"         {item.hint}", QUIET)
    problems = sum(item.problem for item in found)
    if problems:
        app.out.say(count(problems, "problem"), BAD)
    else:
        app.out.say("Everything is registered and healthy.", GOOD)


def show_fitness(app: App, seen: Look) -> None:
    """The verdict in a line, where anything is expected."""
    if seen.fitness.expected:
        fit = seen.fitness.fit
        text = "Fit for work: all that is expected is there." if fit else "Not fit for work: less than expected."
        app.out.say(text, GOOD if fit else BAD)


def kubelet_lines(answers: Answers) -> list[str]:
    """One line for each different kubelet the fronts see (there should be one)."""
    lines: dict[str, None] = {}
    for reply in answers.replies:
        kubelet = reply.get("kubelet") or {}
        up = kubelet.get("state") == "up"
        where = f"kubelet  {kubelet.get('socket', '')}"
        lines[f"{where}  up, pid {kubelet.get('pid')}" if up else f"{where}  away"] = None
    return list(lines)


def plugin_rows(answers: Answers) -> list[list[str | Text]]:
    """Rows of the plugin table, those without an answer last."""
    now = time.time()
    rows: list[list[str | Text]] = []
    for reply in answers.replies:
        probe = reply.get("probe") or {}
        rows.append(
            [
                str(reply["plugin"]),
                Text("absent", style=QUIET) if reply.get("absent") else Text("up", style=GOOD),
                str(reply.get("pid", "")),
                since(reply.get("started"), now),
                state_text(str(probe.get("state", "")), ("idle", "busy"), ("starting", "waiting")),
                _ago(probe.get("scan_age_seconds")),
                millis(probe["scan_seconds"] * 1000) if probe.get("scan_seconds") is not None else "",
                str(reply.get("title", "")),
            ]
        )
    rows += [[item.plugin, Text("down", style=BAD), "", "", "", "", "", item.why] for item in answers.down]
    return rows


def resource_rows(answers: Answers) -> list[list[str | Text]]:
    """Rows of the resource table, in the order of plugins and names."""
    rows: list[list[str | Text]] = []
    for reply in answers.replies:
        for item in sorted(reply.get("resources", ()), key=lambda item: str(item["name"])):
            state = "draining" if item.get("draining") else str(item.get("state", "?"))
            devices, healthy = item.get("devices", 0), item.get("healthy", 0)
            rows.append(
                [
                    str(item["name"]),
                    state_text(state, ("registered",), (*SERVED, "draining", "registering", "waiting")),
                    f"{devices:,}",
                    Text(f"{healthy:,}", style="" if healthy == devices else BAD),
                    f"{_number(item.get('held')):,}",
                    clock(item.get("registered_at")),
                    millis(item.get("registered_ms")),
                    str(item.get("registrations") or ""),
                ]
            )
    return rows


def _number(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else int(value or 0)


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{span(seconds)} ago"
