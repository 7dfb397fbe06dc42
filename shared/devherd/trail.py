"""Audit trail, the reading side: every program's events in time order, filtered, and followed as they come.

Reads while others write and rotate: half a line is left for later or skipped, a rotated file is read to its end.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from devherd.audit import MAX_LINE

Event = dict[str, Any]
"""One event: `time` (Unix seconds), `program`, `kind`, and the kind's own fields."""

SUFFIX = ".jsonl"
POLL = 0.2
"""Seconds between looks while following."""


class Wanted(NamedTuple):
    """Which events to give. An empty collection or text, and 0 for `since` (Unix seconds), ask for all."""

    since: float = 0.0
    kinds: Collection[str] = ()
    programs: Collection[str] = ()
    resource: str = ""

    def takes(self, event: Event) -> bool:
        """Whether an event is asked for. A resource may be given without its domain."""
        if event["time"] < self.since or (self.kinds and event["kind"] not in self.kinds):
            return False
        if self.programs and event["program"] not in self.programs:
            return False
        if not self.resource:
            return True
        resource = str(event.get("resource", ""))
        return resource == self.resource or resource.rpartition("/")[2] == self.resource


ALL = Wanted()


def read_events(folder: str, wanted: Wanted = ALL) -> Iterator[Event]:
    """All recorded events in time order. A folder that is missing or unreadable has none."""
    return Trail(folder, wanted).new()


def follow(folder: str, wanted: Wanted = ALL, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """All recorded events, then each new one as it is written, until `stop()` says so (asked a few times a second)."""
    trail = Trail(folder, wanted)
    while True:
        last = stop()
        yield from trail.new()
        if last:
            return
        time.sleep(POLL)


class Trail:
    """A place in the trail of all programs; `new` gives what was written since the last call."""

    def __init__(self, folder: str, wanted: Wanted = ALL) -> None:
        self._folder = folder
        self._wanted = wanted
        self._readers: dict[str, _Reader] = {}

    def new(self) -> Iterator[Event]:
        """Events not yet given, in time order. To be exhausted before the next call."""
        for program in self._programs():
            if program not in self._readers:
                self._readers[program] = _Reader(os.path.join(self._folder, program + SUFFIX))
        streams = [_in_order(reader.events()) for reader in self._readers.values()]
        for _, event in heapq.merge(*streams, key=lambda pair: pair[0]):
            if self._wanted.takes(event):
                yield event

    def _programs(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        programs = {name.partition(SUFFIX)[0] for name in names if SUFFIX in name}
        return sorted(name for name in programs if not self._wanted.programs or name in self._wanted.programs)


def _in_order(events: Iterator[Event]) -> Iterator[tuple[float, Event]]:
    """A program's events keep their order, whatever its clock did meanwhile."""
    latest = 0.0
    for event in events:
        latest = max(latest, event["time"])
        yield latest, event


class _Reader:
    """A place in one program's files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._offset = 0

    def events(self) -> Iterator[Event]:
        """Everything complete that was not given before."""
        files = self._files()
        try:
            for descriptor, identity in files:
                if identity != self._identity or os.fstat(descriptor).st_size < self._offset:
                    # Another file, or one made anew that got the same number.
                    self._identity, self._offset = identity, 0
                for line in self._lines(descriptor):
                    event = decode(line)
                    if event is not None:
                        yield event
        finally:
            for descriptor, _ in files:
                os.close(descriptor)

    def _files(self) -> list[tuple[int, tuple[int, int]]]:
        """What is not read yet, open, oldest first.

        The current file is opened first: if a rotation happens meanwhile, a file is met twice, never missed.
        """
        found: list[tuple[int, tuple[int, int]]] = []
        number = 0
        while True:
            opened = _open(f"{self._path}.{number}" if number else self._path)
            if opened is None:
                # There is no current file between the two steps of a rotation.
                if number:
                    break
            elif any(opened[1] == identity for _, identity in found):
                os.close(opened[0])
            else:
                found.append(opened)
                if opened[1] == self._identity:
                    break
            number += 1
        return found[::-1]

    def _lines(self, descriptor: int) -> Iterator[bytes]:
        rest = b""
        while True:
            try:
                data = os.pread(descriptor, 256 * 1024, self._offset + len(rest))
            except OSError:
                # A bad block: what comes after it cannot be had.
                return
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._offset += len(line) + 1
                yield line
            if len(rest) > 8 * MAX_LINE:
                # Nothing of ours has such lines: somebody else's bytes, or a disk's.
                self._offset += len(rest)
                rest = b""


def _open(path: str) -> tuple[int, tuple[int, int]] | None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return descriptor, (status.st_dev, status.st_ino)
        os.close(descriptor)
    return None


def decode(line: bytes) -> Event | None:
    """One line's event; None if it is none: torn, damaged, or not ours."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    moment = event.get("time")
    if isinstance(moment, bool) or not isinstance(moment, (int, float)) or not isinstance(event.get("program"), str):
        return None
    return event
