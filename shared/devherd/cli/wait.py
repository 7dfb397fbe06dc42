"""`devherd wait`: returns when everything is registered, or says after a time what is missing."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

import click

from devherd.cli.app import App, common
from devherd.cli.asking import Answers, ask_fronts
from devherd.cli.boot import PATIENCE, wait_boot
from devherd.cli.exits import NOT_READY, OK, TIMEOUT, USAGE, Fault
from devherd.cli.judge import SERVED, mute
from devherd.cli.names import full_name, nearest
from devherd.cli.output import BAD, GOOD
from devherd.cli.words import listing, span

POLL = 0.1
"""Seconds between two looks. Control sockets answer from memory; one look costs the node about a millisecond."""
USUAL = 60.0
"""Seconds to wait if nothing else is said."""
SAY_EVERY = 10.0
"""Where stderr is no terminal, what is missing is said when it changes, and this often (seconds)."""


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds")
    return value


@click.command()
@click.argument("resources", nargs=-1, metavar="[RESOURCE[=N]]...")
@click.option("--boot", is_flag=True, help="Wait for what this node should have; needs no kubelet. See docs/boot.md.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    callback=_finite,
    help=f"Seconds to wait; 0: look once. Default: {USUAL:g}, with --boot {PATIENCE:g}.",
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@common
def wait(app: App, resources: tuple[str, ...], boot: bool, timeout: float | None, quiet: bool) -> int:
    """Wait until everything is registered with the kubelet.

    With RESOURCE only that one counts, and at least one healthy device of it; with RESOURCE=N at least N; with
    RESOURCE=0 it only has to be registered. The domain may be left out: fuse=1.

    With --boot, before the kubelet starts: until all is ready to be registered that devherd.yaml expects or that
    the last run had. What only comes after the kubelet, or was missing in two boots in a row, is not waited for.

    Exits 5 when the time is over, and says what was missing.
    """
    if boot:
        if resources:
            raise Fault("--boot waits for what is expected; leave the resources out", code=USAGE)
        return wait_boot(app, PATIENCE if timeout is None else timeout, quiet or app.out.as_json)
    wanted = _wanted(resources)
    timeout = USUAL if timeout is None else timeout
    began = time.monotonic()
    missing = _wait(app, wanted, began, timeout, quiet or app.out.as_json)
    seconds = round(time.monotonic() - began, 3)
    if app.out.as_json:
        app.out.document({"ready": not missing, "seconds": seconds, "missing": missing})
    elif missing:
        app.out.note(f"not ready after {span(seconds)}:", BAD)
        for text in missing:
            app.out.note(f"  {text}", "")
    else:
        app.out.say(f"ready after {span(seconds)}", GOOD)
    return TIMEOUT if missing else OK


def missing_of(answers: Answers, wanted: dict[str, int]) -> list[str]:
    """What these status replies still lack, each in a sentence; empty: ready.

    `wanted` maps resources to the healthy devices they must have; empty: all resources there are count.
    """
    served = {str(r["name"]): r for reply in answers.replies for r in reply.get("resources", ())}
    if wanted:
        texts = []
        for name, least in wanted.items():
            full = full_name(name, served)
            if text := _lacks(full or name, served.get(full), least):
                texts.append(text if full else f"{text}. {nearest(name, served)}".rstrip(" ."))
        return texts
    texts = [f"{item.plugin}: {item.why}" for item in answers.down]
    if not answers:
        texts.append("no plugin runs yet")
    texts += [f"{reply['plugin']}: has not looked for devices yet" for reply in answers.replies if _unknown(reply)]
    texts += [text for name, r in served.items() if not r.get("draining") and (text := _lacks(name, r, 0))]
    return texts


def _lacks(name: str, resource: dict[str, Any] | None, least: int) -> str:
    if resource is None:
        return f"{name}: no plugin offers it"
    state = str(resource.get("state"))
    if state not in SERVED:
        error = resource.get("error")
        return f"{name}: {state}" + (f" ({error})" if error else "")
    healthy = int(resource.get("healthy", 0))
    return f"{name}: {healthy} of {least} healthy" if healthy < least else ""


def _unknown(reply: dict[str, Any]) -> bool:
    """True before the first scan, when nobody can say yet what there is."""
    scanned = (reply.get("probe") or {}).get("scan_age_seconds") is not None
    return not (scanned or reply.get("resources") or reply.get("absent"))


def _wanted(resources: tuple[str, ...]) -> dict[str, int]:
    wanted = {}
    for text in resources:
        name, sign, number = text.partition("=")
        if not name or (sign and not number.isdecimal()):
            raise Fault(f"{text!r} is neither RESOURCE nor RESOURCE=N", code=USAGE)
        wanted[name] = int(number) if sign else 1
    return wanted


def _look(app: App, wanted: dict[str, int]) -> list[str]:
    """What is missing now; an instance that is not there yet may still come."""
    try:
        place = app.place
    except Fault as fault:
        if fault.code != NOT_READY:
            raise
        return [fault.what]
    answers = ask_fronts(place, {"op": "status"})
    if not answers:
        app.look_again()
    return missing_of(answers, wanted) or [f"{path}: the kubelet accepts and answers nothing" for path in mute(answers)]


def _wait(app: App, wanted: dict[str, int], began: float, timeout: float, quiet: bool) -> list[str]:
    said, said_at = "", began
    with ExitStack() as stack:
        spinner = None
        while True:
            missing = _look(app, wanted)
            now = time.monotonic()
            if not missing or now - began >= timeout:
                return missing
            text = f"waiting {span(now - began)} for {listing(missing, 2)}"
            if not quiet and app.out.aside.is_terminal and now - began > 0.5:
                spinner = spinner or stack.enter_context(app.out.aside.status(""))
                spinner.update(text)
            elif not quiet and (listing(missing) != said or now - said_at > SAY_EVERY) and now - began > 0.5:
                said, said_at = listing(missing), now
                app.out.note(text)
            time.sleep(min(POLL, max(0.0, timeout - (now - began))))
