"""The kubelet that listens now, and whether every front is registered with it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from typing import Any

from devherd import log
from devherd.process import Handle, alive

from devherd_watcher.confirm import Confirmation
from devherd_watcher.context import Context
from devherd_watcher.fronts import Program
from devherd_watcher.judge import judge, silent
from devherd_watcher.memory import Process
from devherd_watcher.owner import Identity, answers

STATUS_SECONDS = 5.0
"""How long a front may take for its status."""
NOBODY: Process = (0, 0)

logger = logging.getLogger("devherd_watcher")


class Registrations:
    """`known` is the kubelet that the trail says is up. Times are monotonic seconds."""

    def __init__(self, context: Context, known: Process) -> None:
        self.known = known
        self._context = context
        self._confirmation: Confirmation | None = None
        self._handle: Handle | None = None
        self._seen_at: float | None = None

    def came(self, identity: Identity, now: float) -> None:
        """Another kubelet listens."""
        if self._confirmation is not None and self._confirmation.kubelet == identity:
            return
        self._forget()
        with contextlib.suppress(OSError):
            self._handle = Handle(identity.pid)
            if self._handle.stat.start != identity.start_time:
                self._handle.close()
                self._handle = None
        if identity != self.known:
            self._down()
            self.known = (identity.pid, identity.start_time)
            self._seen_at = now
            exe = _program_of(identity.pid)
            self._context.note("kubelet-up", pid=identity.pid, start_time=identity.start_time, exe=exe)
        self._confirmation = Confirmation(identity, now, self._context.settings.rules.confirm)

    def fds(self) -> list[int]:
        """Descriptors that become readable when the kubelet ends."""
        return [self._handle.fd] if self._handle is not None and self._handle.fd >= 0 else []

    def ready(self, fd: int) -> bool:
        """Handle a readable descriptor. False: not ours."""
        if fd not in self.fds():
            return False
        self.slow()
        return True

    def slow(self) -> None:
        """Has the kubelet ended? Also one that an earlier watcher saw."""
        if self._handle is not None and self._handle.wait(0):
            self._forget()
        if self._handle is None and self.known != NOBODY and self.known[1] and not alive(*self.known):
            self._forget()
            self._down()

    def next(self) -> float | None:
        """When `timers` wants to be called."""
        return self._confirmation.due if self._confirmation is not None else None

    def timers(self, now: float) -> None:
        """Look at every front if it is time."""
        confirmation = self._confirmation
        if confirmation is None or confirmation.due is None or now < confirmation.due:
            return
        fronts = self._fronts()
        missing = self._context.serving() - set(fronts)
        confirmation.look([*fronts, *missing], now)
        if not fronts and not missing:
            confirmation.conclude()
        for program in fronts.values():
            self._ask(confirmation, program, now)
        for name in missing:
            # It is being started again, and registers by itself; until it has, nothing is confirmed.
            if confirmation.answer(name, silent("it does not run")):
                self._act(confirmation)

    def status(self) -> dict[str, Any] | None:
        """For people; None while there is no kubelet."""
        return self._confirmation.status() if self._confirmation is not None else None

    def close(self) -> None:
        """Let go of the kubelet."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _fronts(self) -> dict[str, Program]:
        return {program.supervised: program for program in self._context.fronts.programs() if program.front}

    def _forget(self) -> None:
        self.close()
        self._confirmation = None
        self._context.problem("registration", "")

    def _down(self) -> None:
        if self.known != NOBODY:
            up = None if self._seen_at is None else round(time.monotonic() - self._seen_at, 1)
            self._context.note("kubelet-down", pid=self.known[0], seconds_up=up)
            self.known, self._seen_at = NOBODY, None

    def _ask(self, confirmation: Confirmation, program: Program, now: float) -> None:
        def done(answer: dict[str, Any] | None, why: str) -> None:
            verdict = silent(why) if answer is None else judge(answer, confirmation.kubelet)
            # An answer to the looks of an earlier kubelet says nothing about this one.
            if confirmation is self._confirmation and confirmation.answer(program.supervised, verdict):
                self._act(confirmation)

        path = program.control(self._context.settings.run)
        self._context.asker.ask(path, {"op": "status"}, done, STATUS_SECONDS, now)

    def _act(self, confirmation: Confirmation) -> None:
        before = confirmation.state, confirmation.reports
        plan = confirmation.conclude()
        fronts = self._fronts()
        for name in plan.signal:
            if name in fronts and fronts[name].safe:
                fronts[name].handle.send(signal.SIGUSR1)
        now = time.monotonic()
        for name, why in plan.restart:
            if name in fronts and self._may_restart(confirmation.kubelet, now):
                confirmation.restarting(name, now)
                self._context.restart(fronts[name], why, now)
        if (confirmation.state, confirmation.reports) != before and (confirmation.reports or confirmation.due is None):
            self._say(confirmation)

    def _may_restart(self, kubelet: Identity, now: float) -> bool:
        """Not for a kubelet that does not even take a connection."""
        path = os.path.join(self._context.settings.device_plugins, "kubelet.sock")
        return self._context.may_restart(now) and answers(path, kubelet)

    def _say(self, confirmation: Confirmation) -> None:
        level = "info" if confirmation.state == "confirmed" else "error"
        text = "; ".join(confirmation.reports)
        log.event(logger, level, f"registrations {confirmation.state}", pid=confirmation.kubelet.pid, reports=text)
        reports = list(confirmation.reports)
        self._context.note(f"registrations-{confirmation.state}", pid=confirmation.kubelet.pid, reports=reports)
        self._context.problem("registration", text)


def _program_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
