"""`devherd explain`: why something is offered to pods, or why not."""

from __future__ import annotations

from typing import Any

import click

from devherd.cli.app import App, common
from devherd.cli.asking import ask_fronts, require
from devherd.cli.devices import why
from devherd.cli.exits import ERROR, OK
from devherd.cli.output import BAD, QUIET
from devherd.cli.patterns import waits, would_match
from devherd.cli.words import count, listing


@click.command()
@click.argument("what")
@common
def explain(app: App, what: str) -> int:
    """Why WHAT is in a resource, or in none.

    WHAT is an id or its beginning, a resource, a path (/dev/fuse), a device number (c:10:229),
    a PCI address, or the name of a rule. A path that is not there is explained by the rule that would take it.
    Exits 1 when no plugin has seen it and no rule is for it.
    """
    answers = require(ask_fronts(app.place, {"op": "explain", "what": what}, timeout=10.0), app.place)
    found = [{"plugin": reply["plugin"], **item} for reply in answers.replies for item in reply.get("found", ())]
    found = found or _gone_or_expected(app, what)
    if app.out.as_json:
        app.out.document({"what": what, "found": found, "down": answers.down_json()})
        return OK if found else ERROR
    for (plugin, resource, text), ids in _alike(found).items():
        app.out.say("  ".join(part for part in (plugin, resource, listing(ids, 3)) if part), "bold")
        for line in text.splitlines():
            app.out.say(f"  {line}")
    for down in answers.down:
        app.out.note(f"{down.plugin} could not be asked: {down.why}", BAD)
    if not found:
        asked = listing([str(reply["plugin"]) for reply in answers.replies], 9) or "none"
        app.out.say(f"No plugin has seen {what}.")
        app.out.say(
            f"Asked {count(len(answers.replies), 'plugin')}: {asked}. `devherd devices` lists what there is;", QUIET
        )
        app.out.say("`devherd config check` says whether a rule for it is written correctly.", QUIET)
    return OK if found else ERROR


def _gone_or_expected(app: App, what: str) -> list[dict[str, Any]]:
    """Devices whose reason names it (of what is gone, only the verdict still knows the path), and rules that wait."""
    answers = ask_fronts(app.place, {"op": "devices"}, timeout=10.0)
    gone = [
        {
            "plugin": reply["plugin"],
            "resource": item["resource"],
            "id": item["id"],
            "text": f"is listed because it was there before, unhealthy ({item.get('kind')}): {why(item)}"
            + (f"; held by {item['held_by']}" if item.get("held_by") else ""),
        }
        for reply in answers.replies
        for item in reply.get("devices", ())
        if not item.get("healthy") and what in str(item.get("reason"))
    ]
    expected = [
        {
            "plugin": reply["plugin"],
            "text": f"{what} is not there now; rule {item.get('rule')} would take it, by {item.get('what')}",
        }
        for reply in answers.replies
        for item in reply.get("skipped", ())
        if waits(item) and would_match(str(item.get("what")), what)
    ]
    return gone + expected


def _alike(found: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[str]]:
    """Ids by plugin, resource and text: ten shares of one device are explained once."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for item in found:
        key = (str(item["plugin"]), str(item.get("resource") or ""), str(item.get("text", "")))
        ids = alike.setdefault(key, [])
        if item.get("id"):
            ids.append(str(item["id"]))
    return alike
