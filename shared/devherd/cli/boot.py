"""`devherd wait --boot`: before the kubelet starts, until the node has what it should have.

Reads files and asks control sockets; it changes nothing, needs no kubelet, and never waits without a reason.
"""

from __future__ import annotations

import os
import time
from typing import Any

from devherd.cli.app import App
from devherd.cli.asking import ask_fronts
from devherd.cli.exits import OK, TIMEOUT, Fault
from devherd.cli.expected import Look, look
from devherd.cli.output import BAD, GOOD
from devherd.cli.place import NODE_CONFIG, Place
from devherd.cli.words import count, listing, span
from devherd.settings import Settings

POLL = 0.1
"""Seconds between two looks."""
STARTED_BY = 5.0
"""Seconds after which supervisord has started whatever it starts by itself."""
PATIENCE = 120.0
"""Seconds to wait if nothing else is said: a GPU node's slow drivers take about a minute."""


def wait_boot(app: App, timeout: float, quiet: bool) -> int:
    """Wait until what is expected is there, at most `timeout` seconds; returns the exit code."""
    place, problem = _place(app)
    began = time.monotonic()
    said = ""
    while True:
        age = time.monotonic() - began
        seen = look(place, ask_fronts(place, {"op": "status"}), age > STARTED_BY)
        names = listing(str(lack) for lack in seen.fitness.awaited)
        if not names or age >= timeout:
            break
        if names != said and not quiet and age > 0.5:
            app.out.note(f"waiting {span(age)} for {names}")
            said = names
        time.sleep(min(POLL, max(0.0, timeout - age)))
    _say(app, seen, [problem] if problem else [], round(time.monotonic() - began, 3))
    return TIMEOUT if seen.fitness.awaited else OK


def _place(app: App) -> tuple[Place, str]:
    """Broken settings delay no boot: the plugins run with the defaults then, and so do we."""
    path = app.config or NODE_CONFIG
    if not app.instance and app.config and not os.path.exists(path):
        return Place(Settings(), path), ""
    try:
        return app.place, ""
    except Fault as fault:
        return Place(Settings(), path), f"configuration broken, the defaults are used: {fault.what}"


def _say(app: App, seen: Look, notes: list[str], seconds: float) -> None:
    out, awaited = app.out, seen.fitness.awaited
    if out.as_json:
        document: dict[str, Any] = {"ready": not awaited, "seconds": seconds, **seen.as_json()}
        document["notes"] = [*notes, *document["notes"]]
        out.document(document)
        return
    for text in (*notes, *seen.notes):
        out.note(text)
    for lack in seen.fitness.missing:
        if lack.spared:
            out.note(f"not waited for: {lack}; {lack.spared}")
    if awaited:
        out.note(f"not ready after {span(seconds)}:", BAD)
        for lack in awaited:
            out.note(f"  {lack}", "")
    elif not seen.fitness.expected:
        out.say("nothing is expected of this node yet", GOOD)
    else:
        there = seen.fitness.expected - len(seen.fitness.missing)
        out.say(f"ready after {span(seconds)}: {count(there, 'resource')}", GOOD)
