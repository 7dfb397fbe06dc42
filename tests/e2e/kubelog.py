"""Moments in a kubelet's log (klog's format, microseconds) that nothing else tells: it listened, knew, admitted."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\s+\d+ [^]]+\] (.*)")
_LISTENS = "Starting Device Plugin manager"
_UPDATES = re.compile(
    r'"Processed device updates for resource" resourceName="([^"]+)" totalCount=(\d+) healthyCount=(\d+)'
)
_ADDS = re.compile(r'"SyncLoop ADD" source="(file|api)" pods=\[(.*?)\]')
_REGISTERS = re.compile(r'"Got registration request from device plugin with resource" resourceName="([^"]+)"')


@dataclass(frozen=True)
class Update:
    """A list that the kubelet took in. `at` is Unix seconds."""

    at: float
    resource: str
    total: int
    healthy: int


class KubeletLog:
    """A log as it is now."""

    def __init__(self, path: Path) -> None:
        self._text = path.read_text(errors="replace") if path.exists() else ""

    @property
    def text(self) -> str:
        """All of it."""
        return self._text

    def lines(self) -> Iterator[tuple[float, str]]:
        """Unix seconds and text of each line. klog writes local time and no year."""
        year = datetime.datetime.now().year
        for line in self._text.splitlines():
            if match := _LINE.match(line):
                month, day, hour, minute, second, micro = (int(part) for part in match.groups()[:6])
                moment = datetime.datetime(year, month, day, hour, minute, second, micro)
                yield moment.timestamp(), match[7]

    def listening(self) -> float | None:
        """When the device manager bound its socket; None: not yet."""
        return next((at for at, text in self.lines() if _LISTENS in text), None)

    def updates(self) -> list[Update]:
        """Every list taken in, in order."""
        found = ((at, _UPDATES.search(text)) for at, text in self.lines())
        return [Update(at, match[1], int(match[2]), int(match[3])) for at, match in found if match]

    def registrations(self) -> list[tuple[float, str]]:
        """Every Register call: when, and for which resource."""
        found = ((at, _REGISTERS.search(text)) for at, text in self.lines())
        return [(at, match[1]) for at, match in found if match]

    def known(self) -> dict[str, float]:
        """Resource -> when its first list with a healthy device was taken in."""
        found: dict[str, float] = {}
        for update in self.updates():
            if update.healthy:
                found.setdefault(update.resource, update.at)
        return found

    def first_pod(self, source: str = "") -> float | None:
        """When the first pod came that any source brought (`file`, `api`, or either)."""
        for at, text in self.lines():
            match = _ADDS.search(text)
            if match and match[2] and source in ("", match[1]):
                return at
        return None

    def panics(self) -> list[str]:
        """Lines of a crash: none may ever be ours to cause."""
        words = ("panic:", "fatal error:", "runtime error:", "Observed a panic")
        return [line for line in self._text.splitlines() if any(word in line for word in words)]
