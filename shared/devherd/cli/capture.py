"""`devherd capture`: a node on file, redacted, for `devherd simulate --from` and for people who help."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import click

from devherd.capture.archive import Capture, CaptureError
from devherd.capture.record import Source
from devherd.capture.redact import Redactor
from devherd.cli.app import App, common
from devherd.cli.asking import ask_fronts
from devherd.cli.exits import ERROR, OK, USAGE, Fault
from devherd.cli.kubelet_view import kubelet_view
from devherd.cli.output import GOOD, QUIET, WARN
from devherd.cli.place import Place
from devherd.cli.plugins import manifests, vendor_manifests
from devherd.cli.words import count, program
from devherd.settings import Settings

Json = dict[str, Any]
WATCH_PERIOD = 1.0
"""Seconds between two looks at the statuses while a capture watches."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--watch", default=0.0, metavar="SECONDS", type=click.FloatRange(min=0), help="Also record for so long.")
@click.option("--raw", is_flag=True, help="Replace nothing: names, addresses, serial numbers, secrets. For your eyes.")
@click.option("--force", is_flag=True, help="Write over FILE if it exists.")
@common
def capture(app: App, file: str, watch: float, raw: bool, force: bool) -> int:
    """Record this node in FILE (.tar.gz): device nodes, sysfs, configuration, devices, statuses, events.

    Works with plugins that are down. Secrets are taken out; serial numbers, addresses, host and pod names become
    pseudonyms. Only known attributes are read, by a process of its own, so that a hung driver cannot hang this
    command. Replay it anywhere, without root: devherd simulate --from FILE
    """
    must_be_new(file, force)
    with app.out.progress("reading the node"):
        source = gather(app.place, watch)
        redactor = Redactor(enabled=not raw)
        made = source.capture(redactor)
        save(made, file)
    document = summary(made, file)
    if app.out.as_json:
        app.out.document(document)
    else:
        show_summary(app, document)
    return OK


def gather(place: Place, watch: float = 0.0) -> Source:
    """Everything a capture holds, raw; what could not be had is in its `problems`."""
    source = Source(place.settings, place.config)
    statuses, devices = ask_fronts(place, {"op": "status"}), ask_fronts(place, {"op": "devices"}, timeout=10.0)
    source.statuses = by_plugin(statuses.replies)
    source.devices = by_plugin(devices.replies)
    source.problems += [f"{item.plugin} gives no answer: {item.why}" for item in statuses.down]
    view = kubelet_view(place)
    source.kubelet = {"allocatable": {name: sorted(ids) for name, ids in view.allocatable.items()}, "error": view.error}
    source.read_node(_patterns(place.settings))
    if watch:
        source.history = _watched(place, watch)
    return source


def _patterns(settings: Settings) -> list[str]:
    try:
        known = [*manifests().values(), *vendor_manifests(settings)[0].values()]
    except Fault:
        return []  # a plugin that cannot be loaded is one of the reasons for a capture
    return [pattern for manifest in known for pattern in manifest.captures]


def _watched(place: Place, seconds: float) -> list[Json]:
    """The statuses whenever they change in more than their clocks, until `seconds` are over."""
    history: list[Json] = []
    last: Any = None
    deadline = time.monotonic() + seconds
    while True:
        answers = ask_fronts(place, {"op": "status"}, timeout=1.0)
        present = [[_steady(reply) for reply in answers.replies], answers.down_json()]
        if present != last:
            history.append({"time": time.time(), "plugins": by_plugin(answers.replies), "down": answers.down_json()})
            last = present
        left = deadline - time.monotonic()
        if left <= 0:
            return history
        time.sleep(min(WATCH_PERIOD, left))


def _steady(value: Any) -> Any:
    """A status without what changes from second to second."""
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if not key.endswith("_seconds")}
    return [_steady(item) for item in value] if isinstance(value, list) else value


def by_plugin(replies: tuple[Json, ...]) -> dict[str, Json]:
    """Replies by the plugin that gave them."""
    return {str(reply.get("plugin", "?")): reply for reply in replies}


def must_be_new(file: str, force: bool) -> None:
    """Raises Fault before the work is done."""
    folder = os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(folder):
        raise Fault(f"{folder}: no such folder", code=USAGE)
    if os.path.lexists(file) and not force:
        raise Fault(f"{file} exists already", "Give another name, or --force.", code=USAGE)


def save(made: Capture, file: str) -> None:
    """Write it. Raises Fault."""
    try:
        made.save(file)
    except CaptureError as error:
        raise Fault(str(error), code=ERROR) from None


def summary(made: Capture, file: str) -> Json:
    """What is in a capture, as data."""
    return {
        "file": file,
        "bytes": os.path.getsize(file),
        "redacted": made.about["redacted"],
        "replaced": made.about["replaced"],
        "device_nodes": len(made.nodes),
        "node_files": len(made.files),
        "plugins": made.about["plugins"],
        "problems": made.about["problems"],
    }


def show_summary(app: App, document: Mapping[str, Any]) -> None:
    """The same for people."""
    out = app.out
    what = f"{count(document['device_nodes'], 'device node')}, {count(document['node_files'], 'file')}"
    out.say(f"{document['file']}: {what}, {document['bytes'] / 1024:,.0f} KiB", GOOD)
    for text in document["problems"]:
        out.say(f"not complete: {text}", WARN)
    if document["redacted"]:
        replaced = ", ".join(f"{number:,} x {kind}" for kind, number in document["replaced"].items() if number)
        out.say(f"replaced: {replaced or 'nothing had to be'}", QUIET)
    else:
        out.say("nothing was replaced: it may hold secrets; keep it to yourself", WARN)
    out.say(f"replay it: {program()} simulate --from {document['file']}", QUIET)
