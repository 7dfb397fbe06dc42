"""Everything the watcher does beyond signalling: confirms registrations, listens for signs of life, revives, wakes.

Nothing here may hurt the signals: what waits is done by children, and an error in here is the app's to catch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from typing import Any

from devherd import log
from devherd.process import Handle, read_command

from devherd_watcher import memory, supervisor
from devherd_watcher.asking import Asker
from devherd_watcher.chores import Chores
from devherd_watcher.confirm import Confirmation
from devherd_watcher.fronts import Fronts, Program
from devherd_watcher.hardware import Uevents
from devherd_watcher.holds import Holds
from devherd_watcher.judge import judge, silent
from devherd_watcher.listener import Event
from devherd_watcher.memory import Memory
from devherd_watcher.nudge import Nudge
from devherd_watcher.owner import Identity, answers
from devherd_watcher.programs import Programs
from devherd_watcher.pulse import Pulse
from devherd_watcher.record import Record
from devherd_watcher.restarter import Restarter
from devherd_watcher.settings import Settings

RPC_SECONDS = 20.0
FIRST_LOOK, AFTER_EVENT = 3.0, 0.3
"""Seconds to the first look. What supervisord kept for us, older news, comes once we are RUNNING."""
LOOK_RETRY = 5.0
LOOK_AGAIN = 600.0
"""Seconds between looks at all of supervisord's programs, in case an event was lost."""
RESTLESS = 5
RESTLESS_SECONDS = 300.0
"""A watcher that has started more often than that in this time only signals: it may be the one that is wrong."""
LAUNCHER = "devherd.launcher"

logger = logging.getLogger("devherd_watcher")


class Care:
    """Lives beside the signal path. Times are monotonic seconds."""

    def __init__(self, config: str, settings: Settings, fronts: Fronts, saved: Memory, problem: str) -> None:
        self._config, self._settings = config, settings
        self._fronts = fronts
        self._chores, self._asker = Chores(), Asker()
        self._restarter, self._pulse, self._nudge = Restarter(), Pulse(), Nudge()
        self._holds = Holds(settings.run, fronts.supervisor)
        state = os.path.join(settings.state, memory.FILE)
        self._record = Record(self._chores, f"{settings.log_folder}/events", state, settings.boot, time.monotonic)
        rules = settings.rules
        self._programs = Programs(self, settings.etc, config, (rules.hold_first, rules.hold_max, rules.stable))
        self._confirmation: Confirmation | None = None
        self._kubelet: Handle | None = None
        self._identity: Identity | None = None
        self._known_kubelet = saved.kubelet
        self._uevents: Uevents | None = None
        self._problems: dict[str, str] = {"memory": problem} if problem else {}
        self._me = os.environ.get("SUPERVISOR_PROCESS_NAME", "watcher")
        now = time.monotonic()
        self._look_at, self._beat_at = now + FIRST_LOOK, now + rules.ping
        self._heard = False
        self._recall(saved, now)

    @property
    def chores(self) -> Chores:
        """Children at work; the app has its own use for them."""
        return self._chores

    # -- what the app tells

    def event(self, event: Event, now: float) -> None:
        """An event of supervisord."""
        if not self._heard:
            self._heard = True
            self._look_at = now + AFTER_EVENT
        if event.name.startswith("PROCESS_STATE_"):
            name = _full(event.fields.get("groupname", ""), event.fields.get("processname", ""))
            if name != self._me:
                state = event.name[len("PROCESS_STATE_") :].lower()
                was, expected = event.fields.get("from_state", "").lower(), event.fields.get("expected") == "1"
                self._programs.event(name, state, was, expected, now)
                self._record.soon()
        elif event.name == "PROCESS_GROUP_REMOVED":
            self._programs.removed(event.fields.get("groupname", ""))
        elif event.name == "PROCESS_GROUP_ADDED":
            self._look_at = min(self._look_at, now + 1.0)
        elif event.name == "SUPERVISOR_STATE_CHANGE_STOPPING":
            self._programs.shutting_down = True

    def ended(self, now: float) -> None:
        """A child of supervisord has ended."""
        self._nudge.soon(now)

    def kubelet_came(self, identity: Identity, now: float) -> None:
        """Another kubelet listens."""
        if identity == self._identity:
            return
        self._kubelet_gone(now)
        self._identity = identity
        with contextlib.suppress(OSError):
            handle = Handle(identity.pid)
            if handle.stat.start == identity.start_time:
                self._kubelet = handle
            else:
                handle.close()
        if tuple(identity) != self._known_kubelet:
            self._known_kubelet = (identity.pid, identity.start_time)
            self.note("kubelet-up", pid=identity.pid, start_time=identity.start_time, exe=_program_of(identity.pid))
        self._confirmation = Confirmation(identity, now, self._settings.rules.confirm)
        self._record.soon()

    def reload(self, settings: Settings) -> None:
        """Other settings count from now on."""
        self._settings = settings

    # -- the loop

    def fds(self) -> list[int]:
        """Descriptors to poll for reading."""
        fds = [*self._chores.fds(), *self._asker.fds()]
        if self._uevents is not None:
            fds.append(self._uevents.fileno())
        if self._kubelet is not None and self._kubelet.fd >= 0:
            fds.append(self._kubelet.fd)
        return fds

    def ready(self, fd: int, now: float) -> None:
        """Handle a readable descriptor, if it is one of ours."""
        if self._kubelet is not None and fd == self._kubelet.fd:
            self._kubelet_gone(now)
        elif self._uevents is not None and fd == self._uevents.fileno():
            found = self._uevents.drain()
            if found:
                self._programs.appeared(found, now)
        elif not self._chores.ready(fd):
            self._asker.ready(fd)

    def next(self) -> float:
        """When `timers` wants to be called."""
        times = [
            self._chores.next(),
            self._asker.next(),
            self._restarter.next(),
            self._nudge.next(),
            self._record.next(),
            self._programs.next() if self._escalates() else None,
            self._confirmation.due if self._confirmation is not None else None,
        ]
        return min([self._look_at, self._beat_at, *(at for at in times if at is not None)])

    def timers(self, now: float) -> None:
        """All that is due."""
        self._chores.timers(now)
        self._asker.timers(now)
        self._restarter.timers(now)
        self._nudge.timers(now)
        if self._escalates():
            self._programs.timers(now)
        if now >= self._look_at:
            self._look(now)
        if self._confirmation is not None and self._confirmation.due is not None and now >= self._confirmation.due:
            self._confirm(self._confirmation, now)
        if now >= self._beat_at:
            self._beat_at = now + self._settings.rules.ping
            self._beat(now)
        self._record.timers(now, self._memory(now))

    def slow(self, now: float) -> None:
        """The look every few seconds that relies on no event."""
        self._programs.slow(now)
        if self._kubelet is not None and self._kubelet.fd < 0 and not self._kubelet.alive():
            self._kubelet_gone(now)

    def status(self) -> dict[str, Any]:
        """For people."""
        now = time.monotonic()
        return {
            "registration": self._confirmation.status() if self._confirmation is not None else None,
            "supervised": self._programs.status(now),
            "restarts": self._restarter.status(),
            "escalation": self._escalation(),
            "problems": [*self._problems.values(), *filter(None, (self._restarter.problem, self._record.problem))],
        }

    def front_status(self, program: Program) -> dict[str, Any]:
        """What `status` says of a front beside what the signal path knows."""
        now = time.monotonic()
        return {"silent_seconds": round(self._pulse.silence(program.pid, now), 1), "why": self._pulse.why(program.pid)}

    def close(self) -> None:
        """Write what waits for it, for two seconds at most, and let go of everything."""
        self._record.soon()
        deadline = time.monotonic() + 2.0
        self._record.timers(time.monotonic() + 1.0, self._memory(time.monotonic()))
        while self._chores.busy("writing") and time.monotonic() < deadline:
            for fd in self._chores.fds():
                self._chores.ready(fd)
            time.sleep(0.005)
        self._asker.close()
        self._chores.close()
        self._restarter.close()
        if self._uevents is not None:
            self._uevents.close()
        if self._kubelet is not None:
            self._kubelet.close()

    # -- Hands: what the rules have done

    def start(self, name: str, why: str) -> None:
        """Have supervisord start a program."""
        log.event(logger, "info", "starting a program", program=name, why=why)
        self._rpc(f"start {name}", lambda: supervisor.start(name))

    def stop(self, name: str, why: str) -> None:
        """Have supervisord stop a program."""
        log.event(logger, "info", "stopping a program", program=name, why=why)
        self._rpc(f"stop {name}", lambda: supervisor.stop(name))

    def hold(self, name: str, seconds: float, why: str) -> None:
        """Have its launcher wait."""
        if self._escalates():
            log.event(logger, "warning", "a program is held back", program=name, seconds=seconds, why=why)
            self._problem("holds", self._holds.hold(name, time.monotonic() + seconds, why))

    def hold_stopped(self, name: str) -> None:
        """Have its launcher wait for us under another supervisord."""
        self._problem("holds", self._holds.stopped(name))

    def release(self, name: str) -> None:
        """Have its launcher go on."""
        self._holds.release(name)

    def note(self, kind: str, **fields: Any) -> None:
        """Write down what happened."""
        self._record.note(kind, **fields)

    # -- doing

    def _recall(self, saved: Memory, now: float) -> None:
        handle = self._fronts.identity
        self._programs.recall(saved, saved.supervisor == handle)
        self._record.loaded(saved)
        self._starts = (*(at for at in saved.starts if 0 <= now - at < RESTLESS_SECONDS), now)[-RESTLESS - 1 :]
        self._record.soon()

    def _memory(self, now: float) -> Memory:
        return Memory(
            supervisor=self._fronts.identity, kubelet=self._known_kubelet, starts=self._starts, **self._programs.dump()
        )

    def _escalates(self) -> bool:
        return self._settings.rules.escalate and len(self._starts) <= RESTLESS

    def _escalation(self) -> str:
        if not self._settings.rules.escalate:
            return "off"
        if not self._escalates():
            return f"off: the watcher started {len(self._starts)} times in {RESTLESS_SECONDS:g} s"
        return "on"

    def _problem(self, topic: str, text: str) -> None:
        if text and self._problems.get(topic) != text:
            log.event(logger, "warning", "a problem", problem=text)
        self._problems.pop(topic, None)
        if text:
            self._problems[topic] = text

    def _rpc(self, name: str, work: Any) -> None:
        self._chores.start(name, work, lambda _, error: self._problem(name, error), RPC_SECONDS, time.monotonic())

    def _look(self, now: float) -> None:
        """Ask supervisord for everything, which its events tell only by and by."""
        self._look_at = now + LOOK_AGAIN
        config = self._config

        def done(rows: Any, error: str) -> None:
            at = time.monotonic()
            self._problem("look", error)
            if error:
                self._look_at = at + LOOK_RETRY
                return
            self._programs.looked([row for row in rows if row["name"] != self._me], at)
            self._problem("manifests", "; ".join(row["problem"] for row in rows if row.get("problem")))
            self._watch_hardware()
            self._record.soon()

        self._chores.start("asking supervisord", lambda: supervisor.look(config), done, RPC_SECONDS, now)

    def _watch_hardware(self) -> None:
        if self._uevents is not None or not self._programs.wants_hardware():
            return
        try:
            self._uevents = Uevents()
            self._problem("uevents", "")
        except OSError as error:
            self._problem("uevents", f"no hardware events ({error.strerror}): what is plugged in wakes nothing")

    def _kubelet_gone(self, now: float) -> None:
        if self._identity is not None and self._confirmation is not None:
            self.note("kubelet-down", pid=self._identity.pid)
        if self._kubelet is not None:
            self._kubelet.close()
            self._kubelet = None
        self._confirmation = self._identity = None

    def _confirm(self, confirmation: Confirmation, now: float) -> None:
        programs = {program.name: program for program in self._fronts.programs() if program.front}
        missing = self._programs.serving() - {program.supervised for program in programs.values()}
        confirmation.look([*programs, *missing], now)
        if not programs and not missing:
            confirmation.conclude()
        for program in programs.values():
            self._ask_status(confirmation, program, now)
        for name in missing:
            # It is being started again, and registers by itself; until it has, nothing is confirmed.
            if confirmation.answer(name, silent("it does not run")):
                self._act(confirmation)

    def _ask_status(self, confirmation: Confirmation, program: Program, now: float) -> None:
        def done(answer: dict[str, Any] | None, why: str) -> None:
            verdict = silent(why) if answer is None else judge(answer, confirmation.kubelet)
            if confirmation is self._confirmation and confirmation.answer(program.name, verdict):
                self._act(confirmation)

        self._asker.ask(self._socket(program), {"op": "status"}, done, 5.0, now)

    def _act(self, confirmation: Confirmation) -> None:
        before = confirmation.state, confirmation.reports
        plan = confirmation.conclude()
        programs = {program.name: program for program in self._fronts.programs() if program.front}
        for name in plan.signal:
            if name in programs and programs[name].safe:
                programs[name].handle.send(signal.SIGUSR1)
        now = time.monotonic()
        for name, why in plan.restart:
            if name in programs and self._may_restart(confirmation.kubelet, now):
                confirmation.restarting(name, now)
                self._restart(programs[name], why, now)
        if (confirmation.state, confirmation.reports) != before and (confirmation.reports or confirmation.due is None):
            self._say(confirmation)

    def _say(self, confirmation: Confirmation) -> None:
        level = "info" if confirmation.state == "confirmed" else "error"
        log.event(logger, level, f"registrations {confirmation.state}", reports="; ".join(confirmation.reports))
        self.note(f"registrations-{confirmation.state}", pid=confirmation.kubelet.pid, reports=confirmation.reports)
        self._problem("registration", "; ".join(confirmation.reports))

    def _may_restart(self, kubelet: Identity, now: float) -> bool:
        """One at a time, and not for a kubelet that does not even take a connection."""
        return self._escalates() and self._restarter.free(now) and answers(self._owner_path, kubelet)

    @property
    def _owner_path(self) -> str:
        return os.path.join(self._settings.device_plugins, "kubelet.sock")

    def _restart(self, program: Program, why: str, now: float) -> None:
        log.event(logger, "error", "restarting a front", program=program.name, pid=program.pid, why=why)
        self.note("restart", name=program.name, pid=program.pid, by="watcher", reason=why)
        self._programs.expected_ends.add(program.supervised)
        if not self._restarter.begin(program.name, program.pid, program.handle.stat.start, now):
            self._programs.expected_ends.discard(program.supervised)

    def _beat(self, now: float) -> None:
        """Ask every front whether it is there; restart one that has not been for too long."""
        fronts = {program.pid: program for program in self._fronts.programs() if program.front}
        self._pulse.fronts(fronts, now, self._settings.rules.ping)
        for program in fronts.values():
            if LAUNCHER in read_command(program.pid):
                # It waits for a lock or is held back, and becomes a front only then.
                self._pulse.excuse(program.pid, now)
            else:
                self._ping(program, now)
        quiet = self._pulse.silent(now, self._settings.rules.silent)
        if not quiet.pids:
            self._problem("silence", "")
        elif quiet.all:
            self._problem("silence", f"none of the {quiet.of} fronts answers: nothing is restarted for that")
        else:
            program = fronts[quiet.pids[0]]
            self._problem("silence", f"{program.name} (pid {program.pid}) does not answer")
            if self._escalates() and self._restarter.free(now):
                self._restart(program, f"no answer for {self._pulse.silence(program.pid, now):.0f} s", now)

    def _ping(self, program: Program, now: float) -> None:
        pid = program.pid

        def done(answer: dict[str, Any] | None, why: str) -> None:
            if answer is not None and answer.get("pid") == pid:
                self._pulse.answered(pid, time.monotonic())
            else:
                self._pulse.failed(pid, why or f"process {answer and answer.get('pid')} answers for it")

        self._asker.ask(self._socket(program), {"op": "ping"}, done, min(10.0, self._settings.rules.silent), now)

    def _socket(self, program: Program) -> str:
        return os.path.join(self._settings.run, f"{program.plugin or program.name}.control.sock")


def _full(group: str, name: str) -> str:
    return name if group in ("", name) else f"{group}:{name}"


def _program_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
