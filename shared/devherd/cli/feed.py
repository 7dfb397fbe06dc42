"""What a live view shows, gathered again and again from the control sockets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devherd.cli.asking import Answers, ask_fronts
from devherd.cli.exits import Fault
from devherd.cli.judge import Finding, findings
from devherd.cli.link import Link
from devherd.cli.place import Place

Json = dict[str, Any]
KEPT = 200


@dataclass(frozen=True)
class Moment:
    """One event of the simulated kubelet, with the wall time (Unix seconds) at which it happened."""

    wall: float
    event: Mapping[str, Any]


@dataclass
class Picture:
    """Everything at one time. `node` is None without a simulated kubelet, or while that is down (`away` says why)."""

    answers: Answers = field(default_factory=lambda: Answers((), ()))
    found: list[Finding] = field(default_factory=list)
    node: Json | None = None
    pods: list[Json] = field(default_factory=list)
    away: str = ""
    fresh: list[Moment] = field(default_factory=list)


class Feed:
    """Polls. Events are kept over kubelet restarts, whose numbering starts anew."""

    def __init__(self, place: Place, link: Link | None) -> None:
        self._place = place
        self._link = link
        self._kubelet = 0
        self._seen = 0
        self._last = Picture()
        self.events: deque[Moment] = deque(maxlen=KEPT)

    def poll(self) -> Picture:
        """The present picture; `fresh` are the events since the last one."""
        answers = ask_fronts(self._place, {"op": "status"}, timeout=1.0)
        picture = Picture(answers=answers, found=findings(answers))
        if self._link is not None:
            try:
                picture.node = self._link.node()
                picture.pods = self._link.pods()
                picture.fresh = self._events(self._link, int(picture.node["pid"]))
            except Fault as fault:
                picture.away = fault.what
                picture.node, picture.pods = None, self._last.pods
        self.events.extend(picture.fresh)
        self._last = picture
        return picture

    def _events(self, link: Link, pid: int) -> list[Moment]:
        if pid != self._kubelet:
            self._kubelet, self._seen = pid, 0
        found = link.kubelet("log", since=self._seen)["events"]
        offset = time.time() - time.monotonic()
        if found:
            self._seen = int(found[-1]["seq"])
        return [Moment(event["t"] + offset, event) for event in found]
