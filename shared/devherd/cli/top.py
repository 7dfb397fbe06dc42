"""`devherd top`: plugins, resources, devices and events, live."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import click
from rich.live import Live

from devherd.audit import events_folder
from devherd.cli.app import App, common
from devherd.cli.asking import Answers, ask_fronts
from devherd.cli.exits import NOT_READY, OK, Fault
from devherd.cli.judge import Finding, findings
from devherd.cli.keys import Keys
from devherd.cli.place import Place
from devherd.cli.topview import TopView, by_urgency
from devherd.cli.usage import Usage, Use
from devherd.trail import Event, Trail, Wanted

Json = dict[str, Any]
KEPT = 200
RECENT = 24 * 3600.0
"""Seconds back from now whose events are shown at the start."""
PATIENCE = 2.0
"""Seconds a plugin may take to answer before a picture is made without it."""


@dataclass(frozen=True)
class Picture:
    """Everything at one time."""

    wall: float
    answers: Answers
    devices: list[Json] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    use: dict[int, Use] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


class TopFeed:
    """Gathers pictures. Devices are asked for less often where there are so many that it takes long."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._usage = Usage()
        wanted = Wanted(since=time.time() - RECENT)
        self._trail = Trail(events_folder(place.settings.paths.log), wanted)
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._devices: list[Json] = []
        self._devices_due = 0.0

    def poll(self) -> Picture:
        """The present picture. Raises Fault when the control sockets may not be seen."""
        answers = ask_fronts(self._place, {"op": "status"}, timeout=PATIENCE)
        now = time.monotonic()
        if now >= self._devices_due:
            replies = ask_fronts(self._place, {"op": "devices"}, timeout=10.0).replies
            self._devices = by_urgency([item for reply in replies for item in reply.get("devices", ())])
            took = time.monotonic() - now
            self._devices_due = now + took * 10
        self._events.extend(self._trail.new())
        use = self._usage.look(pid for reply in answers.replies for pid in pids_of(reply))
        return Picture(time.time(), answers, self._devices, findings(answers), use, list(self._events))


def pids_of(reply: Json) -> list[int]:
    """Pids of a plugin's front and probe."""
    return [int(pid) for pid in (reply.get("pid"), (reply.get("probe") or {}).get("pid")) if pid]


@click.command()
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.2), help="Seconds a picture.")
@click.option("--once", is_flag=True, help="One picture, then exit; also what happens where stdout is no terminal.")
@common
def top(app: App, interval: float, once: bool) -> int:
    """Live view: plugins, resources, devices with holders and reasons, the last events.

    Keys: q ends it, u shows unhealthy devices only, up and down move through the devices. With --json every
    picture is one line; --once --json is one document. Exits 3 when nothing answers (with --once).
    """
    place, feed = app.place, TopFeed(app.place)
    if once or not (app.out.as_json or app.out.console.is_terminal):
        return _one(app, feed)
    try:
        if app.out.as_json:
            _lines(app, feed, interval)
        else:
            _screen(app, place, feed, interval)
    except KeyboardInterrupt:
        pass
    return OK


def _one(app: App, feed: TopFeed) -> int:
    picture = feed.poll()
    if app.out.as_json:
        app.out.document(document(picture))
    else:
        view = TopView(app.place.title)
        app.out.console.print(view.render(picture, height=None))
    return OK if picture.answers.replies else NOT_READY


def _lines(app: App, feed: TopFeed, interval: float) -> None:
    told = 0.0
    while True:
        picture = feed.poll()
        whole = document(picture)
        whole["events"] = [event for event in picture.events if event["time"] > told]
        told = max([told, *(float(event["time"]) for event in picture.events)])
        app.out.document(whole, indent=None)
        time.sleep(interval)


def _screen(app: App, place: Place, feed: TopFeed, interval: float) -> None:
    console, view = app.out.console, TopView(place.title)
    with Keys.opened() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            try:
                picture = feed.poll()
            except Fault as fault:
                picture = Picture(time.time(), Answers((), ()), found=[Finding(True, "top", fault.what, fault.hint)])
            due = max(began + interval, time.monotonic() + 0.05)
            while True:
                live.update(view.render(picture, console.size.height, console.size.width), refresh=True)
                key = keys.wait(max(0.0, due - time.monotonic()))
                if not key:
                    break
                if not view.press(key):
                    return


def document(picture: Picture) -> Json:
    """A picture as data."""
    return {
        "time": picture.wall,
        "plugins": list(picture.answers.replies),
        "down": picture.answers.down_json(),
        "devices": picture.devices,
        "findings": [item.as_json() for item in picture.found],
        "use": {str(pid): {"cpu": use.cpu, "memory": use.memory} for pid, use in picture.use.items()},
        "events": picture.events,
    }
