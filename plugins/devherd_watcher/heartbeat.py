"""Asks every front now and then whether it is there, and has one restarted that has not been for too long."""

from __future__ import annotations

import time
from typing import Any

from devherd.process import read_command

from devherd_watcher.context import LAUNCHER, Context
from devherd_watcher.fronts import Program
from devherd_watcher.pulse import Pulse

LONGEST_ANSWER = 10.0
"""Seconds one question waits at most."""


class Heartbeat:
    """Times are monotonic seconds."""

    def __init__(self, context: Context, now: float) -> None:
        self._context = context
        self._pulse = Pulse()
        self._told: dict[int, float] = {}
        self.due = now + context.settings.rules.ping

    def timers(self, now: float) -> None:
        """Ask and judge if it is time."""
        if now < self.due:
            return
        rules = self._context.settings.rules
        self.due = now + rules.ping
        # A launcher waits for a lock or is held back, and becomes a front only then.
        fronts = {
            program.pid: program
            for program in self._context.fronts.programs()
            if program.front and LAUNCHER not in read_command(program.pid)
        }
        self._pulse.fronts(fronts, now, rules.ping)
        self._judge(fronts, now)
        for program in fronts.values():
            self._ask(program, now)

    def status(self, pid: int, now: float) -> dict[str, Any]:
        """For people."""
        return {"silent_seconds": round(self._pulse.silence(pid, now), 1), "why": self._pulse.why(pid)}

    def _judge(self, fronts: dict[int, Program], now: float) -> None:
        context = self._context
        quiet = self._pulse.silent(now, context.settings.rules.silent)
        self._tell(fronts, quiet.pids, now)
        if not quiet.pids:
            context.problem("silence", "")
        elif quiet.all:
            context.problem("silence", f"none of the {quiet.of} fronts answers: nothing is restarted for that")
        else:
            program = fronts[quiet.pids[0]]
            context.problem("silence", f"{program.name} (pid {program.pid}) does not answer")
            if context.may_restart(now):
                context.restart(program, f"no answer for {self._pulse.silence(program.pid, now):.0f} s", now)

    def _tell(self, fronts: dict[int, Program], pids: tuple[int, ...], now: float) -> None:
        """Write down who fell silent, and who is heard again; one that was replaced is not."""
        for pid in set(pids) - set(self._told):
            silence = self._pulse.silence(pid, now)
            self._told[pid] = time.time() - silence
            since, why = round(self._told[pid], 3), self._pulse.why(pid)
            what = f"front {fronts[pid].name}"
            self._context.note("heartbeat-stopped", what=what, since=since, reason=why)
        for pid in set(self._told) - set(pids):
            since = self._told.pop(pid)
            if pid in fronts:
                seconds = round(time.time() - since, 1)
                what = f"front {fronts[pid].name}"
                self._context.note("heartbeat-back", what=what, since=round(since, 3), seconds=seconds)

    def _ask(self, program: Program, now: float) -> None:
        pid = program.pid

        def done(answer: dict[str, Any] | None, why: str) -> None:
            if answer is not None and answer.get("pid") == pid:
                self._pulse.answered(pid, time.monotonic())
            else:
                self._pulse.failed(pid, why or f"process {answer and answer.get('pid')} answers for it")

        rules = self._context.settings.rules
        path = program.control(self._context.settings.run)
        self._context.asker.ask(path, {"op": "ping"}, done, min(LONGEST_ANSWER, rules.silent), now)
