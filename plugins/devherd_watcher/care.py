"""Everything the watcher does beyond signalling: confirms registrations, listens for signs of life, revives, wakes.

Nothing here may hurt the signals: what waits is done by children, and an error in here is the app's to catch.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from devherd import log

from devherd_watcher import memory
from devherd_watcher.asking import Asker
from devherd_watcher.chores import Chores
from devherd_watcher.fronts import Fronts, Program
from devherd_watcher.hardware import Uevents
from devherd_watcher.heartbeat import Heartbeat
from devherd_watcher.holds import Holds
from devherd_watcher.listener import Event
from devherd_watcher.memory import Memory
from devherd_watcher.nudge import Nudge
from devherd_watcher.owner import Identity
from devherd_watcher.programs import Programs
from devherd_watcher.record import Record
from devherd_watcher.registrations import Registrations
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

logger = logging.getLogger("devherd_watcher")


class Care:
    """Lives beside the signal path. Times are monotonic seconds."""

    def __init__(self, config: str, settings: Settings, fronts: Fronts, saved: Memory, problem: str) -> None:
        self.settings, self.fronts, self.asker = settings, fronts, Asker()
        self.chores = Chores()
        self._config = config
        self._restarter, self._nudge = Restarter(), Nudge()
        self._holds = Holds(settings.run, fronts.supervisor)
        state = os.path.join(settings.state, memory.FILE)
        self._record = Record(self.chores, f"{settings.log_folder}/events", state, settings.boot, time.monotonic)
        rules = settings.rules
        self._programs = Programs(self, settings.etc, config, (rules.hold_first, rules.hold_max, rules.stable))
        self._problems: dict[str, str] = {"memory": problem} if problem else {}
        self._registrations = Registrations(self, saved.kubelet)
        self._uevents: Uevents | None = None
        self._me = os.environ.get("SUPERVISOR_PROCESS_NAME", "watcher")
        now = time.monotonic()
        self._heartbeat = Heartbeat(self, now)
        self._look_at = now + FIRST_LOOK
        self._heard = False
        self._recall(saved, now)

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
        self._registrations.came(identity, now)
        self._record.soon()

    def reload(self, settings: Settings) -> None:
        """Other settings count from now on."""
        self.settings = settings

    # -- the loop

    def fds(self) -> list[int]:
        """Descriptors to poll for reading."""
        fds = [*self.chores.fds(), *self.asker.fds(), *self._registrations.fds()]
        if self._uevents is not None:
            fds.append(self._uevents.fileno())
        return fds

    def ready(self, fd: int, now: float) -> None:
        """Handle a readable descriptor, if it is one of ours."""
        if self._uevents is not None and fd == self._uevents.fileno():
            found = self._uevents.drain()
            if found:
                self._programs.appeared(found, now)
        elif not (self.chores.ready(fd) or self.asker.ready(fd)):
            self._registrations.ready(fd)

    def next(self) -> float:
        """When `timers` wants to be called."""
        times = [
            self.chores.next(),
            self.asker.next(),
            self._restarter.next(),
            self._nudge.next(),
            self._record.next(),
            self._programs.next() if self._escalates() else None,
            self._registrations.next(),
        ]
        return min([self._look_at, self._heartbeat.due, *(at for at in times if at is not None)])

    def timers(self, now: float) -> None:
        """All that is due."""
        self.chores.timers(now)
        self.asker.timers(now)
        self._restarter.timers(now)
        self._nudge.timers(now)
        if self._escalates():
            self._programs.timers(now)
        if now >= self._look_at:
            self._look(now)
        self._registrations.timers(now)
        self._heartbeat.timers(now)
        self._record.timers(now, self._memory(now))

    def slow(self, now: float) -> None:
        """The look every few seconds that relies on no event."""
        self._programs.slow(now)
        self._registrations.slow()

    def status(self) -> dict[str, Any]:
        """For people."""
        now = time.monotonic()
        return {
            "registration": self._registrations.status(),
            "supervised": self._programs.status(now),
            "restarts": self._restarter.status(),
            "escalation": self._escalation(),
            "problems": [*self._problems.values(), *filter(None, (self._restarter.problem, self._record.problem))],
        }

    def front_status(self, program: Program) -> dict[str, Any]:
        """What `status` says of a front beside what the signal path knows."""
        return self._heartbeat.status(program.pid, time.monotonic())

    def close(self) -> None:
        """Write what waits for it, for two seconds at most, and let go of everything."""
        self._record.soon()
        deadline = time.monotonic() + 2.0
        self._record.timers(time.monotonic() + 1.0, self._memory(time.monotonic()))
        while self.chores.busy("writing") and time.monotonic() < deadline:
            for fd in self.chores.fds():
                self.chores.ready(fd)
            time.sleep(0.005)
        self.asker.close()
        self.chores.close()
        self._restarter.close()
        if self._uevents is not None:
            self._uevents.close()
        self._registrations.close()

    # -- Hands: what the rules have done

    def start(self, name: str, why: str) -> None:
        """Have supervisord start a program."""
        log.event(logger, "info", "starting a program", program=name, why=why)
        self._rpc(f"start {name}", lambda: _supervisor().start(name))

    def stop(self, name: str, why: str) -> None:
        """Have supervisord stop a program."""
        log.event(logger, "info", "stopping a program", program=name, why=why)
        self._rpc(f"stop {name}", lambda: _supervisor().stop(name))

    def hold(self, name: str, seconds: float, why: str) -> None:
        """Have its launcher wait."""
        if self._escalates():
            log.event(logger, "warning", "a program is held back", program=name, seconds=seconds, why=why)
            self.problem("holds", self._holds.hold(name, time.monotonic() + seconds, why))

    def hold_stopped(self, name: str) -> None:
        """Have its launcher wait for us under another supervisord."""
        self.problem("holds", self._holds.stopped(name))

    def release(self, name: str) -> None:
        """Have its launcher go on."""
        self._holds.release(name)

    def note(self, kind: str, **fields: Any) -> None:
        """Write down what happened."""
        self._record.note(kind, **fields)

    # -- Context: what the parts share

    def serving(self) -> set[str]:
        """Programs that should have a front running."""
        return self._programs.serving()

    def may_restart(self, now: float) -> bool:
        """One at a time, if at all."""
        return self._escalates() and self._restarter.free(now)

    def restart(self, program: Program, why: str, now: float) -> None:
        """End a front; supervisord starts it again."""
        log.event(logger, "error", "restarting a front", program=program.name, pid=program.pid, why=why)
        self.note("restart", name=program.name, pid=program.pid, by="watcher", reason=why)
        self._programs.expected_ends.add(program.supervised)
        if not self._restarter.begin(program.name, program.pid, program.handle.stat.start, now):
            self._programs.expected_ends.discard(program.supervised)

    def problem(self, topic: str, text: str) -> None:
        """Something is wrong, until the same topic comes with an empty text."""
        if text and self._problems.get(topic) != text:
            log.event(logger, "warning", "a problem", problem=text)
        self._problems.pop(topic, None)
        if text:
            self._problems[topic] = text

    # -- doing

    def _recall(self, saved: Memory, now: float) -> None:
        handle = self.fronts.identity
        self._programs.recall(saved, saved.supervisor == handle)
        self._record.loaded(saved)
        self._starts = (*(at for at in saved.starts if 0 <= now - at < RESTLESS_SECONDS), now)[-RESTLESS - 1 :]
        self._record.soon()

    def _memory(self, now: float) -> Memory:
        return Memory(
            supervisor=self.fronts.identity,
            kubelet=self._registrations.known,
            starts=self._starts,
            **self._programs.dump(),
        )

    def _escalates(self) -> bool:
        return self.settings.rules.escalate and len(self._starts) <= RESTLESS

    def _escalation(self) -> str:
        if not self.settings.rules.escalate:
            return "off"
        if not self._escalates():
            return f"off: the watcher started {len(self._starts)} times in {RESTLESS_SECONDS:g} s"
        return "on"

    def _rpc(self, name: str, work: Any) -> None:
        self.chores.start(name, work, lambda _, error: self.problem(name, error), RPC_SECONDS, time.monotonic())

    def _look(self, now: float) -> None:
        """Ask supervisord for everything, which its events tell only by and by."""
        self._look_at = now + LOOK_AGAIN
        config = self._config

        def done(rows: Any, error: str) -> None:
            at = time.monotonic()
            self.problem("look", error)
            if error:
                self._look_at = at + LOOK_RETRY
                return
            self._programs.looked([row for row in rows if row["name"] != self._me], now, at)
            self.problem("manifests", "; ".join(row["problem"] for row in rows if row.get("problem")))
            self._watch_hardware()
            self._record.soon()

        self.chores.start("asking supervisord", lambda: _supervisor().look(config), done, RPC_SECONDS, now)

    def _watch_hardware(self) -> None:
        if self._uevents is not None or not self._programs.wants_hardware():
            return
        try:
            self._uevents = Uevents()
            self.problem("uevents", "")
        except OSError as error:
            self.problem("uevents", f"no hardware events ({error.strerror}): what is plugged in wakes nothing")


def _supervisor() -> Any:
    # For children only: none of it is to stay in memory here.
    from devherd_watcher import supervisor

    return supervisor


def _full(group: str, name: str) -> str:
    return name if group in ("", name) else f"{group}:{name}"
