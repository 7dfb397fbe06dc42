"""What is written to disk, memory and audit trail, by a child that may wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from devherd_watcher import memory
from devherd_watcher.chores import Chores
from devherd_watcher.memory import Memory

CHORE = "writing"
SECONDS = 30.0
PAUSE = 0.2
"""Seconds from a change to writing it: what happens together is written together, and signals go first."""
RETRY = 10.0
MAX_WAITING = 500

Note = tuple[str, float, dict[str, Any]]


class Record:
    """Collects and writes. Times are monotonic seconds."""

    def __init__(self, chores: Chores, events: str, state: str, boot: str, now: Callable[[], float]) -> None:
        self.events, self.state, self.boot = events, state, boot
        self.problem = ""
        self.lost = 0
        self._chores = chores
        self._now = now
        self._notes: list[Note] = []
        self._saved = Memory()
        self._due: float | None = None

    def loaded(self, saved: Memory) -> None:
        """This is what the file holds."""
        self._saved = saved

    def note(self, kind: str, **fields: Any) -> None:
        """Write down what happens now, soon."""
        if len(self._notes) >= MAX_WAITING:
            self.lost += 1
            return
        self._notes.append((kind, time.time(), fields))
        self.soon()

    def soon(self) -> None:
        """The memory may have changed."""
        if self._due is None:
            self._due = self._now() + PAUSE

    def next(self) -> float | None:
        """When `timers` wants to be called."""
        return None if self._chores.busy(CHORE) else self._due

    def timers(self, now: float, current: Memory) -> None:
        """Write if it is time and there is anything to write."""
        if self._due is None or now < self._due or self._chores.busy(CHORE):
            return
        self._due = None
        save = current if current != self._saved else None
        if save is None and not self._notes:
            return
        notes, self._notes, lost, self.lost = self._notes, [], self.lost, 0

        def done(result: Any, error: str) -> None:
            if error:
                self.lost += len(notes) + lost
            else:
                self.lost += result["lost"]
            self.problem = error or result["problem"]
            if save is not None and not error and result["saved"]:
                self._saved = save
            elif save is not None:
                self._due = self._now() + RETRY

        work = (self.events, notes, lost, self.state, self.boot, save)
        self._chores.start(CHORE, lambda: write(*work), done, SECONDS, now)


def write(
    events: str, notes: list[Note], lost: int, state: str, boot: str, save: Memory | None
) -> dict[str, str | int | bool]:
    """What the child does. The trail and the memory fail independently of each other."""
    from devherd.audit import EventFile

    problem, saved = "", False
    if save is not None:
        try:
            memory.save(state, boot, save)
            saved = True
        except OSError as error:
            problem = f"{state}: {error.strerror}; manual stops would be forgotten"
    file = EventFile(events, "watcher")
    file.lost = lost
    for kind, when, fields in notes:
        file.append(kind, when, fields)
    return {"saved": saved, "lost": file.lost, "problem": problem or file.problem}
