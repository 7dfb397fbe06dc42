"""What `devherd top` draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from devherd.cli.devices import gets, why
from devherd.cli.events import line as event_line
from devherd.cli.grid import grid
from devherd.cli.judge import SERVED
from devherd.cli.output import BAD, GOOD, QUIET, WARN, state_text, table
from devherd.cli.status import kubelet_lines
from devherd.cli.words import clock, count, millis, short, since, span

if TYPE_CHECKING:
    from devherd.cli.top import Picture

Json = dict[str, Any]
PLUGIN_HEADS = ("PLUGIN", "STATE", "PID", "UP", "CPU", "MEMORY", "PROBE", "ITS MEMORY", "LAST SCAN", "TOOK")
PLUGIN_FIGURES = ("PID", "CPU", "MEMORY", "ITS MEMORY", "TOOK")
RESOURCE_HEADS = ("RESOURCE", "STATE", "DEVICES", "HEALTHY", "HELD", "REGISTERED", "TOOK", "TIMES", "STREAM")
RESOURCE_FIGURES = ("DEVICES", "HEALTHY", "HELD", "TOOK", "TIMES")
PLUGIN_DROP = ("TOOK", "LAST SCAN", "ITS MEMORY", "PID")
RESOURCE_DROP = ("STREAM", "TIMES", "TOOK", "REGISTERED")
DEVICE_DROP = ("NUMA", "HELD BY")
DEVICE_HEADS = ("RESOURCE", "DEVICE", "HEALTH", "NUMA", "HELD BY", "A CONTAINER GETS, OR WHY NOT")
MOST_PROBLEMS = 6
LEAST_EVENTS = 4
MOST_EVENTS = 20


class TopView:
    """One screen, and what its reader has chosen to see."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._sick_only = False
        self._first = 0
        self._width: int | None = None

    def press(self, key: str) -> bool:
        """Act on a key. False: the reader wants to leave."""
        if key in ("q", "Q", "\x1b", "\x04"):
            return False
        if key == "u":
            self._sick_only, self._first = not self._sick_only, 0
        steps = {"down": 1, "j": 1, "up": -1, "k": -1, "page down": 20, " ": 20, "page up": -20, "home": -self._first}
        self._first = max(0, self._first + steps.get(key, 0))
        return True

    def render(self, picture: Picture, height: int | None, width: int | None = None) -> RenderableType:
        """The whole view. `height` None: as long as it gets, for a pipe or a scrolling terminal.

        With a `width` every row is one line: columns that matter less are left out, and what is still too long is cut.
        """
        self._width = width
        head = Text.assemble((f"devherd top  {self._title}", "bold"), f"  {clock(picture.wall)}", no_wrap=True)
        if height is not None:
            head.append("   q ends it, u: unhealthy only", QUIET)
        parts: list[RenderableType] = [head]
        used = 1
        for block, lines in (self._kubelet(picture), self._plugins(picture), self._resources(picture)):
            parts += [*block, Text()] if lines else []
            used += lines + 1 if lines else 0
        problems = self._problems(picture)
        parts += [*problems, Text()] if problems else []
        used += len(problems) + 1 if problems else 0
        left = None if height is None else max(0, height - used)
        events = self._events(picture, left)
        return Group(*parts, *self._devices(picture, None if left is None else left - len(events)), *events)

    def _kubelet(self, picture: Picture) -> tuple[list[RenderableType], int]:
        lines = kubelet_lines(picture.answers)
        return [Text(text, style=GOOD if "up, pid" in text else BAD, no_wrap=True) for text in lines], len(lines)

    def _plugins(self, picture: Picture) -> tuple[list[RenderableType], int]:
        rows = plugin_rows(picture)
        return self._table(PLUGIN_HEADS, rows, PLUGIN_FIGURES, PLUGIN_DROP), len(rows) and len(rows) + 1

    def _resources(self, picture: Picture) -> tuple[list[RenderableType], int]:
        rows = resource_rows(picture)
        return self._table(RESOURCE_HEADS, rows, RESOURCE_FIGURES, RESOURCE_DROP), len(rows) and len(rows) + 1

    def _table(
        self, heads: Sequence[str], rows: Sequence[list[str | Text]], figures: Sequence[str], drop: Sequence[str]
    ) -> list[RenderableType]:
        if self._width is None:
            return [table(heads, rows, figures)]
        return list(grid(heads, rows, self._width, figures, drop))

    def _problems(self, picture: Picture) -> list[Text]:
        lines = []
        for item in picture.found[:MOST_PROBLEMS]:
            mark = ("problem  ", BAD) if item.problem else ("note     ", WARN)
            lines.append(Text.assemble(mark, (item.where, "bold"), " ", item.text, no_wrap=True, overflow="ellipsis"))
        if not picture.answers.replies:
            lines.append(Text("no plugin answers", style=BAD))
        return lines

    def _devices(self, picture: Picture, left: int | None) -> list[RenderableType]:
        found = [item for item in picture.devices if not (self._sick_only and item.get("healthy"))]
        # Beside the rows: the heads, the sum, an empty line.
        room = len(found) if left is None else max(0, left - 3)
        self._first = min(self._first, max(0, len(found) - room))
        shown = found[self._first : self._first + room]
        sick = sum(not item.get("healthy") for item in picture.devices)
        text = f"{count(len(picture.devices), 'device')}, {sick:,} unhealthy"
        if shown and len(shown) < len(found):
            text += f"; {self._first + 1:,} to {self._first + len(shown):,} are shown"
        summary = Text(text, style=BAD if sick else QUIET)
        rows = self._table(DEVICE_HEADS, device_rows(shown), ("NUMA",), DEVICE_DROP) if shown else []
        return [*rows, summary, Text()]

    @staticmethod
    def _events(picture: Picture, left: int | None) -> list[Text]:
        """The last ones: a third of what is left, but not fewer than LEAST_EVENTS."""
        most = MOST_EVENTS if left is None else max(LEAST_EVENTS, left // 3)
        lines = [event_line(event) for event in picture.events[-most:]]
        for item in lines:
            item.no_wrap, item.overflow = True, "ellipsis"
        return lines


def by_urgency(devices: Sequence[Json]) -> list[Json]:
    """Unhealthy ones first, then those that a pod holds, then the rest."""

    def rank(item: Json) -> tuple[int, str, str]:
        urgent = 0 if not item.get("healthy") else 1 if item.get("held_by") else 2
        return urgent, str(item.get("resource")), str(item.get("id"))

    return sorted(devices, key=rank)


def plugin_rows(picture: Picture) -> list[list[str | Text]]:
    """A row for each plugin; those without an answer last, with the reason."""
    rows: list[list[str | Text]] = []
    for reply in picture.answers.replies:
        probe = reply.get("probe") or {}
        own, its = picture.use.get(int(reply.get("pid") or 0)), picture.use.get(int(probe.get("pid") or 0))
        age, took = probe.get("scan_age_seconds"), probe.get("scan_seconds")
        rows.append(
            [
                str(reply.get("plugin", "")),
                Text("absent", style=QUIET) if reply.get("absent") else Text("up", style=GOOD),
                str(reply.get("pid", "")),
                since(reply.get("started"), picture.wall),
                "" if own is None or own.cpu is None else f"{own.cpu:.1%}",
                "" if own is None else _mib(own.memory),
                state_text(str(probe.get("state", "")), ("idle", "busy"), ("starting", "waiting")),
                "" if its is None else _mib(its.memory),
                "" if age is None else f"{span(age)} ago",
                "" if took is None else millis(took * 1000),
            ]
        )
    empty = [""] * (len(PLUGIN_HEADS) - 3)
    return rows + [[item.plugin, Text("down", style=BAD), *empty, item.why] for item in picture.answers.down]


def _mib(size: int) -> str:
    return f"{size / 1048576:.0f} MiB"


def resource_rows(picture: Picture) -> list[list[str | Text]]:
    """A row for each resource: state, devices, and for how long it has been registered."""
    rows: list[list[str | Text]] = []
    for reply in picture.answers.replies:
        for item in sorted(reply.get("resources", ()), key=lambda item: str(item["name"])):
            state = "draining" if item.get("draining") else str(item.get("state", "?"))
            devices, healthy = int(item.get("devices") or 0), int(item.get("healthy") or 0)
            age = since(item.get("registered_at"), picture.wall)
            rows.append(
                [
                    str(item["name"]),
                    state_text(state, ("registered",), (*SERVED, "draining", "registering", "waiting")),
                    f"{devices:,}",
                    Text(f"{healthy:,}", style="" if healthy == devices else BAD),
                    f"{int(item.get('held') or 0):,}",
                    f"{age} ago" if age else "",
                    millis(item.get("registered_ms")),
                    str(item.get("registrations") or ""),
                    span(item.get("stream_seconds")),
                ]
            )
    return rows


def device_rows(devices: Sequence[Json]) -> list[list[str | Text]]:
    """A row for each device; what is wrong with it stands where its content would."""
    return [
        [
            str(item.get("resource", "")),
            short(str(item.get("id", ""))),
            Text("healthy", style=GOOD) if item.get("healthy") else Text("unhealthy", style=BAD),
            ",".join(str(node) for node in item.get("numa", ())),
            str(item.get("held_by") or ""),
            gets(item) if item.get("healthy") else Text(why(item), style=BAD),
        ]
        for item in devices
    ]
