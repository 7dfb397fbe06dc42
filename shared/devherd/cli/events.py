"""`devherd events`: the audit trail, filtered and followed."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.text import Text

from devherd.audit import events_folder
from devherd.cli.app import App, common
from devherd.cli.exits import OK, USAGE, Fault
from devherd.cli.output import BAD, GOOD, QUIET, WARN
from devherd.cli.words import clock, listing, short, span
from devherd.eventkinds import KINDS
from devherd.trail import Event, Trail, Wanted

SHOWN = 100
POLL = 0.2
"""Seconds between looks while following."""

_STYLES = {
    **dict.fromkeys(("registered", "kubelet-up", "heartbeat-back", "taken-back"), GOOD),
    **dict.fromkeys(("stream-lost", "kubelet-down", "restart", "probe-replaced", "released", "withdrawn"), WARN),
    **dict.fromkeys(("refused", "registration-refused", "taken", "heartbeat-stopped", "config-refused"), BAD),
    **dict.fromkeys(("events-lost", "prepare-failed"), BAD),
}
_UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_TIMES = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d")


@click.command()
@click.option("--since", metavar="WHEN", help="Only newer ones: 10min, 2h, 3d, 14:30, or 2026-01-31 14:30.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind (may be repeated).")
@click.option("--resource", default="", metavar="NAME", help="Only this resource; its domain may be left out.")
@click.option("--program", "programs", multiple=True, metavar="NAME", help="Only this program (may be repeated).")
@click.option("--last", type=click.IntRange(0), metavar="N", help=f"At most N (default {SHOWN}; all with --since).")
@click.option("--follow", "-f", is_flag=True, help="Go on with new ones as they come, until Ctrl-C.")
@common
def events(
    app: App,
    since: str | None,
    kinds: tuple[str, ...],
    resource: str,
    programs: tuple[str, ...],
    last: int | None,
    follow: bool,
) -> int:
    """What happened on this node: the audit trail of every program, in time order.

    Kubelets that came and went, registrations, lost streams, verdicts, allocations, restarts. With --follow --json
    each line is one JSON object. docs/events.md explains every kind.
    """
    wanted = Wanted(parse_since(since, time.time()) if since else 0.0, _known(kinds), programs, resource)
    folder = events_folder(app.place.settings.paths.log)
    _readable(folder)
    trail = Trail(folder, wanted)
    most = last if last is not None else (None if since else SHOWN)
    found = deque(trail.new(), maxlen=most)
    if app.out.as_json and not follow:
        app.out.document({"events": list(found)})
        return OK
    _show(app, found)
    if not found and not follow:
        app.out.note(f"no such events in {folder}")
    # Ctrl-C is how following ends.
    with contextlib.suppress(KeyboardInterrupt):
        while follow:
            time.sleep(POLL)
            _show(app, trail.new())
    return OK


def _show(app: App, found: Iterable[Event]) -> None:
    for event in found:
        if app.out.as_json:
            app.out.document(event, indent=None)
        else:
            app.out.console.print(line(event), soft_wrap=True)


def line(event: Event) -> Text:
    """One event for people."""
    kind = event["kind"]
    style = GOOD if event.get("healthy") is True else BAD if event.get("healthy") is False else _STYLES.get(kind, "")
    moment = clock(event["time"]) + f"{event['time'] % 1:.3f}"[1:]
    return Text.assemble((f"{moment}  ", QUIET), f"{event['program']:<9} ", (f"{kind:<18}", style), " ", words(event))


def words(event: Mapping[str, Any]) -> str:
    """What an event says beside its time, program and kind: `example.com/x  ms=9.2  kubelet_pid=71`."""
    order = KINDS[event["kind"]].fields if event["kind"] in KINDS else ()
    names = [name for name in order if name in event]
    names += [name for name in event if name not in order and name not in ("time", "program", "kind")]
    parts = []
    for name in names:
        text = _value(name, event[name])
        if name in ("resource", "id", "reason", "what"):
            parts.append(text)
        elif text:
            parts.append(f"{name}={text}")
    return _printable("  ".join(parts))


def _value(name: str, value: Any) -> str:
    if value is None or value == [] or value == "":
        return ""
    if name == "since" and isinstance(value, int | float):
        return clock(value)
    if name.startswith("seconds") and isinstance(value, int | float):
        return span(value)
    if name == "id":
        return short(str(value))
    if isinstance(value, list):
        return (
            "["
            + listing([short(str(item)) if name in ("ids", "added", "removed") else str(item) for item in value])
            + "]"
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    """Text that stays on its line and sends the terminal no codes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def parse_since(text: str, now: float) -> float:
    """`10min`, `2h`, `14:30` (the last such moment), a date or a date and time, as Unix seconds. Raises Fault."""
    span_ = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
    if span_ and span_[2] in _UNITS:
        return now - float(span_[1]) * _UNITS[span_[2]]
    hour = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", text)
    if hour and int(hour[1]) < 24 and int(hour[2]) < 60 and int(hour[3] or 0) < 60:
        today = time.localtime(now)
        fields = (today[0], today[1], today[2], int(hour[1]), int(hour[2]), int(hour[3] or 0), 0, 0, -1)
        moment = time.mktime(fields)
        return moment if moment <= now else time.mktime((*fields[:2], today[2] - 1, *fields[3:]))
    for form in _TIMES:
        with contextlib.suppress(ValueError, OverflowError):
            return time.mktime(time.strptime(text, form))
    raise Fault(f"--since {text!r} is no time", "Write 10min, 2h, 3d, 14:30, or 2026-01-31 14:30.", code=USAGE)


def _known(kinds: tuple[str, ...]) -> tuple[str, ...]:
    for kind in kinds:
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise Fault(f"there is no kind {kind!r}", f"{hint}Kinds: {', '.join(sorted(KINDS))}", code=USAGE)
    return kinds


def _readable(folder: str) -> None:
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise Fault(f"{folder}: permission denied", "Ask as root, like the processes there run.")
