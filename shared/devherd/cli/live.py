"""The live view of `devherd run`: resources as the kubelet sees them, pods, problems, and what just happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from devherd.cli.feed import Feed, Moment, Picture
from devherd.cli.output import BAD, GOOD, QUIET, WARN, Out, table
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
                live.update(self.render(picture, self._feed.events, console.size.height), refresh=True)
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

    def render(self, picture: Picture, events: Iterable[Moment], height: int) -> RenderableType:
        """The whole view, events filling what is left of the screen."""
        parts: list[RenderableType] = [Text(f"devherd  {self._title}   Ctrl-C ends it", style="bold"), Text()]
        used = 3
        for block, lines in (self._node(picture), self._pods(picture), self._problems(picture)):
            if lines:
                parts += [*block, Text()]
                used += lines + 1
        hints = self._hints(picture)
        room = max(0, height - used - 1)
        shown = [line for moment in events if (line := self._moment(moment)) is not None]
        if len(hints) + 4 < room:
            room -= len(hints)
        else:
            hints = []
        parts += shown[len(shown) - min(room, len(shown)) :]
        parts += [Text(), *hints] if hints else []
        return Group(*parts)

    def _moment(self, moment: Moment) -> Text | None:
        line = event_line(moment.event)
        if line is None:
            return None
        return Text.assemble((f"{clock(moment.wall)}  ", QUIET), line, no_wrap=True, overflow="ellipsis")

    def _node(self, picture: Picture) -> tuple[list[RenderableType], int]:
        plugins = table(PLUGIN_HEADS, plugin_rows(picture.answers), PLUGIN_FIGURES)
        lines = len(picture.answers.replies) + len(picture.answers.down) + 1
        if picture.node is not None:
            rows = node_rows(picture.node)
            head = Text(f"kubelet  up, pid {picture.node['pid']}", style=GOOD)
            return [head, plugins, Text(), table(NODE_HEADS, rows, NODE_FIGURES)], len(rows) + lines + 3
        if picture.away:
            return [Text(f"kubelet  {picture.away}", style=BAD), plugins], lines + 1
        rows = resource_rows(picture.answers)
        kubelets = [Text(line) for line in kubelet_lines(picture.answers)]
        block: list[RenderableType] = [*kubelets, plugins, Text(), table(RESOURCE_HEADS, rows, RESOURCE_FIGURES)]
        return block, len(rows) + lines + len(kubelets) + 2

    def _pods(self, picture: Picture) -> tuple[list[RenderableType], int]:
        if not picture.pods:
            return [], 0
        rows = pod_lines(picture.pods[-MOST_PODS:])
        return [table(("POD", "STATE", "HAS, OR WHY NOT"), rows, one_line=True)], len(rows) + 1

    def _problems(self, picture: Picture) -> tuple[list[RenderableType], int]:
        lines: list[RenderableType] = []
        for item in picture.found[:MOST_PROBLEMS]:
            mark = ("problem  ", BAD) if item.problem else ("note     ", WARN)
            text = Text.assemble(mark, (item.where, "bold"), " ", item.text, no_wrap=True, overflow="ellipsis")
            lines.append(text)
        return lines, len(lines)

    def _hints(self, picture: Picture) -> list[Text]:
        if picture.node is None or not picture.node["resources"]:
            return []
        resource = next(iter(picture.node["resources"])).rpartition("/")[2]
        text = HINTS.format(program=program(), resource=resource, device=self._device)
        lines = text.rstrip().splitlines()
        return [Text(line, style=QUIET) for line in lines if self._device or "break" not in line]
