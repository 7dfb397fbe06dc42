"""What supervisord's programs are at, and what is due for them. Rules only: acting is left to `Hands`.

Times are monotonic seconds. A program's state is supervisord's word in lower case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from devherd_watcher.backoff import BackOff
from devherd_watcher.hardware import LOST
from devherd_watcher.memory import Memory

FAILED = frozenset({"fatal", "unknown"})
RUNS = frozenset({"starting", "running", "backoff"})
DEBOUNCE = 0.5
"""Seconds from a uevent to the wake-up: hardware comes in more than one event, and udev makes its nodes meanwhile."""
AGAIN = 30.0
"""Seconds after which something that was started is started again if supervisord has said nothing."""


class Hands(Protocol):
    """What the rules can have done."""

    def start(self, name: str, why: str) -> None:
        """Have supervisord start a program."""

    def stop(self, name: str, why: str) -> None:
        """Have supervisord stop a program."""

    def hold(self, name: str, seconds: float, why: str) -> None:
        """Have the program's launcher wait, from now on, before it becomes the program."""

    def hold_stopped(self, name: str) -> None:
        """Have the program's launcher wait for us when another supervisord than this one starts it."""

    def release(self, name: str) -> None:
        """Take back either."""

    def note(self, kind: str, **fields: Any) -> None:
        """Write down what happened."""


class _Program:
    def __init__(self, backoff: BackOff) -> None:
        self.backoff = backoff
        self.state = ""
        self.told = float("-inf")
        self.started = 0.0
        self.running: float | None = None
        self.plugin = ""
        self.wakes_on: frozenset[str] = frozenset()
        self.dormant = False
        self.files: Any = None
        self.held_until = 0.0
        self.due: tuple[float, str] | None = None


class Programs:
    """All programs but the watcher. `etc` is where plugins' configurations are, `config` is devherd.yaml."""

    def __init__(self, hands: Hands, etc: str, config: str, pauses: tuple[float, float, float]) -> None:
        self._hands = hands
        self._etc, self._config = etc, config
        self._pauses = pauses
        self._programs: dict[str, _Program] = {}
        self.stopped: set[str] = set()
        self.to_stop: set[str] = set()
        self.shutting_down = False
        self.expected_ends: set[str] = set()
        """Programs that the watcher is ending itself."""

    # What is known

    def recall(self, memory: Memory, same_supervisor: bool) -> None:
        """Take over what an earlier watcher knew. What was stopped under another supervisord is to be stopped again."""
        self.stopped = set(memory.stopped)
        self.to_stop = set() if same_supervisor else set(memory.stopped)
        for name, saved in memory.failures.items():
            self._get(name).backoff.load(saved)
        for name, files in memory.dormant.items():
            self._get(name).files = files

    def dump(self) -> dict[str, Any]:
        """The part of a Memory that is known here."""
        programs = self._programs.items()
        return {
            "stopped": tuple(sorted(self.stopped)),
            "dormant": {name: one.files for name, one in programs if one.dormant},
            "failures": {name: one.backoff.dump() for name, one in programs if any(one.backoff.dump().values())},
        }

    def state(self, name: str) -> str:
        """A program's state, empty where unknown."""
        return self._programs[name].state if name in self._programs else ""

    def serving(self) -> set[str]:
        """Plugins that should have a front running."""
        off = ("", "stopped", "stopping")
        return {name for name, one in self._programs.items() if one.plugin and one.state not in off and not one.dormant}

    def status(self, now: float) -> dict[str, dict[str, Any]]:
        """For people: what stands out of the ordinary for each program."""
        return {name: self._shown(name, one, now) for name, one in sorted(self._programs.items())}

    def looked(self, rows: Iterable[Mapping[str, Any]], asked: float, now: float) -> None:
        """Take in what supervisord says of all its programs, which it was asked at `asked`: an event since is newer."""
        rows = list(rows)
        for gone in set(self._programs) - {str(row["name"]) for row in rows}:
            if self._programs[gone].told < asked:
                del self._programs[gone]
        for row in rows:
            name = str(row["name"])
            program = self._get(name)
            program.plugin, program.wakes_on = str(row["plugin"]), frozenset(row["wakes_on"])
            if program.state != row["state"] and program.told < asked:
                self._found(name, program, row, now)
        for name in self.to_stop & set(self._programs):
            if self._programs[name].state in RUNS:
                self._hands.stop(name, "it was stopped under an earlier supervisord")
                self._hands.note("restart-prevented", name=name, by="watcher", reason="an operator had stopped it")

    def _found(self, name: str, program: _Program, row: Mapping[str, Any], now: float) -> None:
        program.state = str(row["state"])
        if program.state in FAILED:
            self._failed(name, program, now)
        elif program.state == "exited" and row["exit"] in row["exitcodes"]:
            program.dormant = True
            program.files = program.files or self._files(name, program)
        elif program.state == "stopped" and row["was_started"]:
            self.stopped.add(name)
            self._hands.hold_stopped(name)
        elif program.state == "running":
            program.running = program.started = now

    # What happens

    def event(self, name: str, state: str, was: str, expected: bool, now: float) -> None:
        """One state event of supervisord."""
        program = self._get(name)
        program.state, program.told = state, now
        if state == "starting":
            self._starting(name, program, was, now)
        elif state == "running":
            program.running = now
        elif state == "exited":
            self._exited(name, program, expected, now)
        elif state in FAILED:
            self._failed(name, program, now)
        elif state == "stopped":
            self._stopped(name, program)

    def removed(self, name: str) -> None:
        """A program was taken out of supervisord's configuration."""
        if self._programs.pop(name, None) is not None:
            self._hands.release(name)
        self.stopped.discard(name)
        self.to_stop.discard(name)

    def _starting(self, name: str, program: _Program, was: str, now: float) -> None:
        program.started, program.running, program.due, program.dormant = now, None, None, False
        program.files = self._files(name, program)
        self.expected_ends.discard(name)
        if was != "stopped" or name in self.to_stop:
            return
        if name in self.stopped:
            self.stopped.discard(name)
            self._hands.note("restart", name=name, by="operator", reason="started after a stop")
        program.backoff.forget()
        self._hands.release(name)

    def _exited(self, name: str, program: _Program, expected: bool, now: float) -> None:
        lived = now - (program.started or now)
        program.running = None
        if name in self.expected_ends:
            self.expected_ends.discard(name)
            return
        if expected:
            program.dormant = True
            program.backoff.forget()
            self._hands.note("dormant", name=name)
            return
        pause = program.backoff.ended(lived)
        self._hands.note("program-ended", name=name, seconds=round(lived, 1), hold_seconds=pause)
        if pause:
            program.held_until = now + pause
            times = program.backoff.short_lives
            self._hands.hold(name, pause, f"{name} ended {times} times in a row soon after its start")

    def _failed(self, name: str, program: _Program, now: float) -> None:
        pause = program.backoff.failed()
        program.due = (now + pause, f"supervisord gave it up ({program.state})")
        self._hands.note("program-failed", name=name, state=program.state, retry_seconds=pause)

    def _stopped(self, name: str, program: _Program) -> None:
        program.due, program.running, program.dormant = None, None, False
        if self.shutting_down:
            return
        if name in self.to_stop:
            self.to_stop.discard(name)
        elif name not in self.stopped:
            self.stopped.add(name)
            self._hands.note("stopped", name=name, by="operator")
        program.backoff.forget()
        self._hands.hold_stopped(name)

    # What is due

    def next(self) -> float | None:
        """When `timers` wants to be called."""
        return min((one.due[0] for one in self._programs.values() if one.due is not None), default=None)

    def timers(self, now: float) -> None:
        """Start what is due."""
        for name, program in self._programs.items():
            if program.due is None or now < program.due[0]:
                continue
            why = program.due[1]
            program.due = (now + AGAIN, why)
            self._hands.note("restart", name=name, by="watcher", reason=why)
            self._hands.start(name, why)

    def slow(self, now: float) -> None:
        """The look that relies on no event: changed configurations of dormant programs, and good lives."""
        for name, program in self._programs.items():
            if program.running is not None:
                program.backoff.lived(now - program.running)
            if program.dormant and program.due is None and self._files(name, program) != program.files:
                program.due = (now, "its configuration changed")

    def appeared(self, subsystems: Iterable[str], now: float) -> None:
        """Hardware appeared in these subsystems."""
        found = set(subsystems)
        for program in self._programs.values():
            if program.dormant and program.due is None and (program.wakes_on & found or self._lost(program, found)):
                program.due = (now + DEBOUNCE, "hardware appeared: " + ", ".join(sorted(program.wakes_on & found)))

    def wants_hardware(self) -> bool:
        """Whether any program waits, or may come to wait, for hardware."""
        return any(program.wakes_on - {"config"} for program in self._programs.values())

    def _lost(self, program: _Program, found: set[str]) -> bool:
        return LOST in found and bool(program.wakes_on - {"config"})

    def _files(self, name: str, program: _Program) -> list[list[int] | None]:
        # Before supervisord was asked the program's name has to do, which is the plugin's unless somebody renamed it.
        plugin = program.plugin or name.rpartition(":")[2]
        return [_stamp(self._config), _stamp(os.path.join(self._etc, "plugins.d", f"{plugin}.yaml"))]

    def _get(self, name: str) -> _Program:
        if name not in self._programs:
            self._programs[name] = _Program(BackOff(*self._pauses))
        return self._programs[name]

    def _shown(self, name: str, program: _Program, now: float) -> dict[str, Any]:
        shown: dict[str, Any] = {"state": program.state}
        if name in self.stopped:
            shown["stopped_by"] = "operator"
        if program.dormant:
            shown["dormant"] = sorted(program.wakes_on | {"config"})
        if program.held_until > now and program.state in RUNS:
            shown["held_seconds"] = round(program.held_until - now, 1)
        if program.due is not None:
            shown |= {"start_in_seconds": round(max(0.0, program.due[0] - now), 1), "why": program.due[1]}
        shown |= {key: value for key, value in program.backoff.dump().items() if value}
        return shown


def _stamp(path: str) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_ino, status.st_size]
