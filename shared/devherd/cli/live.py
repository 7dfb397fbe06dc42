"""The live view of `devherd run`: resources as the kubelet sees them, pods, problems, and what just happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from devherd.cli.feed import Feed, Moment, Picture
from devherd.cli.grid import cut, grid
from devherd.cli.output import BAD, GOOD, QUIET, WARN, Out
from devherd.cli.simview import NODE_FIGURES, NODE_HEADS, event_line, node_rows, pod_lines
from devherd.cli.status import (
    PLUGIN_FIGURES,
    PLUGIN_HEADS,
    RESOURCE_FIGURES,
    RESOURCE_HEADS,
    kubelet_lines,
    plugin_rows,
    resource_rows,
)
from devherd.cli.words import clock, program

PERIOD = 0.5
"""Seconds between two pictures; longer where one takes long to gather (a node with thousands of devices)."""
MOST_PROBLEMS = 6
MOST_PODS = 8
HINTS = """\
Try in a second terminal:
  {program} status
  {program} simulate pod add train --request {resource}=1
  {program} simulate kubelet restart
  {program} simulate reboot
  {program} simulate break {device}
"""


class LiveView:
    """Shows a feed until interrupted. `alive` ends it by raising."""

    def __init__(self, out: Out, feed: Feed, title: str, alive: Callable[[], None], device: str = "") -> None:
        self._out = out
        self._feed = feed
        self._title = title
        self._alive = alive
        self._device = device

    def run(self) -> None:
        """Blocks until KeyboardInterrupt, or what `alive` raises."""
        if self._out.as_json:
            self._follow(self._json_line)
        elif self._out.console.is_terminal:
            self._screen()
        else:
            self._out.say(f"{self._title}; Ctrl-C (SIGINT) ends it")
            self._follow(self._text_line)

    def _screen(self) -> None:
        console = self._out.console
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                began = time.monotonic()
                self._alive()
                picture = self._feed.poll()
                size = console.size
                live.update(self.render(picture, self._feed.events, size.height, size.width), refresh=True)
                self._pause(began)

    def _follow(self, show: Callable[[Moment], None]) -> None:
        while True:
            began = time.monotonic()
            self._alive()
            for moment in self._feed.poll().fresh:
                show(moment)
            self._pause(began)

    def _pause(self, began: float) -> None:
        took = time.monotonic() - began
        time.sleep(max(PERIOD - took, took * 4))

    def _json_line(self, moment: Moment) -> None:
        self._out.document({"event": moment.event["what"], "at": moment.wall, **moment.event}, indent=None)

    def _text_line(self, moment: Moment) -> None:
        line = event_line(moment.event)
        if line is not None:
            self._out.console.print(Text(f"{clock(moment.wall)}  ").append_text(line), soft_wrap=True)

    def render(self, picture: Picture, events: Iterable[Moment], height: int, width: int = 0) -> RenderableType:
        """The whole view, each line a row of the screen.

        Where there is little room, resources and pods are shown first, then problems, plugins, and the latest events.
        """
        width = width or self._out.console.width
        room = height - 2
        kubelet, resources = self._resources(picture, width)
        resources = cut(resources, max(4, room - len(kubelet) - 3), "more resources")
        room -= len(kubelet) + len(resources)
        pods = cut(self._pods(picture, width), room - 1, "more pods")
        room -= len(pods) + bool(pods)
        problems = cut(self._problems(picture), min(MOST_PROBLEMS, room - 1))
        room -= len(problems) + bool(problems)
        plugins = cut(self._plugins(picture, width), room - 2) if room >= 4 else []
        room -= len(plugins) + bool(plugins)
        parts: list[Text] = [Text(f"devherd  {self._title}   Ctrl-C ends it", style="bold"), *kubelet, *plugins]
        for block in (resources, pods, problems, self._latest(picture, events, room - 1)):
            if block:
                parts += [*([Text()] if block is not resources or plugins else []), *block]
        for line in parts:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*parts[: height - 1])

    def _latest(self, picture: Picture, events: Iterable[Moment], room: int) -> list[Text]:
        """The last events that fit, and the hints where these leave enough room."""
        hints = self._hints(picture)
        shown = [line for moment in events if (line := self._moment(moment)) is not None]
        if len(hints) + 5 < room:
            return [*shown[-(room - len(hints) - 1) :], Text(), *hints]
        return shown[-room:] if room > 0 else []

    def _moment(self, moment: Moment) -> Text | None:
        line = event_line(moment.event)
        return None if line is None else Text.assemble((f"{clock(moment.wall)}  ", QUIET), line)

    def _plugins(self, picture: Picture, width: int) -> list[Text]:
        rows = plugin_rows(picture.answers)
        return (
            grid(PLUGIN_HEADS, rows, width, PLUGIN_FIGURES, ("WHAT", "TOOK", "LAST SCAN", "UP", "PID")) if rows else []
        )

    def _resources(self, picture: Picture, width: int) -> tuple[list[Text], list[Text]]:
        """What is said of the kubelet, and the resources as it sees them."""
        if picture.node is not None:
            head = Text(f"kubelet  up, pid {picture.node['pid']}", style=GOOD)
            drop = ("REGISTRATIONS", "ALLOCATABLE AFTER", "REGISTERED", "CAPACITY")
            return [head], grid(NODE_HEADS, node_rows(picture.node), width, NODE_FIGURES, drop)
        if picture.away:
            return [Text(f"kubelet  {picture.away}", style=BAD)], []
        drop = ("TIMES", "TOOK", "REGISTERED", "HELD")
        rows = resource_rows(picture.answers)
        kubelets = [Text(line) for line in kubelet_lines(picture.answers)]
        return kubelets, grid(RESOURCE_HEADS, rows, width, RESOURCE_FIGURES, drop)

    def _pods(self, picture: Picture, width: int) -> list[Text]:
        if not picture.pods:
            return []
        return grid(("POD", "STATE", "HAS, OR WHY NOT"), pod_lines(picture.pods[-MOST_PODS:]), width)

    def _problems(self, picture: Picture) -> list[Text]:
        return [
            Text.assemble(
                ("problem  ", BAD) if item.problem else ("note     ", WARN), (item.where, "bold"), " ", item.text
            )
            for item in picture.found
        ]

    def _hints(self, picture: Picture) -> list[Text]:
        if picture.node is None or not picture.node["resources"]:
            return []
        resource = next(iter(picture.node["resources"])).rpartition("/")[2]
        text = HINTS.format(program=program(), resource=resource, device=self._device)
        lines = text.rstrip().splitlines()
        return [Text(line, style=QUIET) for line in lines if self._device or "break" not in line]
