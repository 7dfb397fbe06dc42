"""The watcher's loop."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

from devherd import log
from devherd.control import PollServer
from devherd.process import adopt_lock

from devherd_watcher.care import Care
from devherd_watcher.fronts import Fronts, Round
from devherd_watcher.listener import OK, READY, Event, EventStream
from devherd_watcher.notify import Notifier
from devherd_watcher.owner import Owner
from devherd_watcher.settings import LogSettings, Read, Wrong, decode, load, read
from devherd_watcher.socketwatch import SocketWatch

SOCKET = "kubelet.sock"
RELOOK = 0.05
"""Seconds after an event of supervisord at which its children are looked at once more."""
AFTERWARDS = 0.3
"""Seconds after the signals for which nothing else is done: kubelet and fronts need the processors, pods wait."""
SLOW = 5.0
"""Seconds between looks that rely on no event."""
SULK = 60.0
"""Seconds for which the care is left out after an unexpected error in it: the signals matter more."""

logger = logging.getLogger("devherd_watcher")


class Watcher:
    """One run of the watcher. `stdin` and `stdout` are the descriptors of supervisord's listener protocol."""

    def __init__(self, config: str, known: Read, stdin: int = 0, stdout: int = 1) -> None:
        self._config = config
        self._settings = settings = known.settings
        self._stdin, self._stdout = stdin, stdout
        self._stream = EventStream()
        self._notifier = Notifier()
        self._fronts = Fronts(os.getppid())
        self._watch = SocketWatch(settings.device_plugins, SOCKET)
        self._owner = Owner(self._watch.path)
        self._care = Care(config, settings, self._fronts, known.memory, known.problem)
        self._care_from = 0.0
        self._care_problem = ""
        self._control: PollServer | None = None
        self._states: dict[str, str] = {}
        self._started = time.time()
        self._rounds = self._sent = 0
        self._last: dict[str, Any] = {}
        self._relook: float | None = None
        self._untold: list[dict[str, Any]] = []
        self._tell_at: float | None = None
        self._slow = time.monotonic() + SLOW
        self._running = True
        self._signals: set[int] = set()

    def run(self) -> int:
        """Watch until supervisord goes or says stop. Returns the exit status."""
        wakeup = self._take_signals()
        self._open_control()
        if not self._fronts.refresh():
            self._relook = time.monotonic() + RELOOK
        if self._watch.exists():
            # Whether it came while nobody watched is unknown.
            self._kubelet_came(time.monotonic_ns(), "at start")
        os.write(self._stdout, READY)
        self._notifier.ready()
        log.event(logger, "info", "watching", socket=self._watch.path, folder=self._watch.watched)
        try:
            while self._running:
                self._turn(wakeup)
        finally:
            self._close()
        return 0

    def _turn(self, wakeup: int) -> None:
        ready = self._wait(wakeup)
        now_ns = time.monotonic_ns()
        # The kubelet first: everything else can wait a millisecond, a pod's admission cannot.
        if self._watch.fileno() in ready and self._watch.read():
            self._kubelet_came(now_ns, "event")
        if wakeup in ready:
            self._handle_signals(wakeup)
        if self._stdin in ready:
            self._receive()
        if not ready.isdisjoint(self._fronts.fds()):
            self._fronts.refresh()
            self._cared(self._care.ended, time.monotonic())
        for fd in ready - {self._watch.fileno(), wakeup, self._stdin}:
            if self._control is None or not self._control.ready(fd):
                self._cared(self._care.ready, fd, time.monotonic())
        self._timers(time.monotonic())

    def _wait(self, wakeup: int) -> set[int]:
        now = time.monotonic()
        care = max(self._care.next(), self._care_from)
        due = (self._relook, self._owner.next_look, self._slow, self._tell_at, care)
        times = [at for at in due if at is not None]
        timeout = max(0.0, min(times) - now)
        poller = select.poll()
        fds = [
            *self._fronts.fds(),
            *(self._control.fds() if self._control else ()),
            *(self._care.fds() if now >= self._care_from else ()),
        ]
        for fd in (self._watch.fileno(), wakeup, self._stdin, *fds):
            if fd >= 0:
                poller.register(fd, select.POLLIN)
        return {fd for fd, _ in poller.poll(int(timeout * 1000) + 1)}

    def _kubelet_came(self, noticed_ns: int, why: str) -> None:
        sent = self._fronts.signal(signal.SIGUSR1)
        microseconds = (time.monotonic_ns() - noticed_ns) // 1000
        self._owner.expect(time.monotonic() + AFTERWARDS)
        self._record(sent, microseconds, why)

    def _record(self, sent: Round, microseconds: int, why: str) -> None:
        self._rounds += 1
        self._sent += len(sent.reached)
        reached = [{"name": program.name, "pid": program.pid} for program in sent.reached]
        starting = [{"name": program.name, "pid": program.pid} for program in sent.starting]
        self._last = {
            "at": time.time(),
            "why": why,
            "microseconds": microseconds,
            "reached": reached,
            "starting": starting,
        }
        names = ",".join(program.name for program in sent.reached)
        # Not yet: a line of the log wakes supervisord.
        self._untold.append({"why": why, "fronts": names, "milliseconds": microseconds / 1000})
        if self._tell_at is None:
            self._tell_at = time.monotonic() + AFTERWARDS

    def _receive(self) -> None:
        data = os.read(self._stdin, 65536)
        if not data:
            self._running = False
            return
        for event in self._stream.feed(data):
            os.write(self._stdout, OK + READY)
            self._supervisor_event(event)
            self._cared(self._care.event, event, time.monotonic())

    def _supervisor_event(self, event: Event) -> None:
        if event.name.startswith("PROCESS_STATE_"):
            self._states[event.fields.get("processname", "")] = event.name[len("PROCESS_STATE_") :].lower()
            self._fronts.refresh()
            # The event says STARTING before there is a process.
            self._relook = time.monotonic() + RELOOK
        elif event.name == "SUPERVISOR_STATE_CHANGE_STOPPING":
            self._notifier.stopping()
        elif event.name.startswith("TICK_"):
            self._notifier.tick()

    def _tell(self) -> None:
        for round_ in self._untold:
            log.event(logger, "info", "fronts signalled", **round_)
        self._untold, self._tell_at = [], None

    def _timers(self, now: float) -> None:
        if self._tell_at is not None and now >= self._tell_at:
            self._tell()
        if self._relook is not None and now >= self._relook:
            self._relook = None if self._fronts.refresh() else now + RELOOK
        if self._owner.look(now, time.time()) and self._owner.identity is not None:
            log.event(logger, "info", "the kubelet listens", pid=str(self._owner.identity.pid))
            self._cared(self._care.kubelet_came, self._owner.identity, now)
        if now >= self._slow:
            self._slow = now + SLOW
            self._fronts.refresh()
            if self._watch.check():
                self._kubelet_came(time.monotonic_ns(), "slow look")
            self._cared(self._care.slow, now)
        self._cared(self._care.timers, now)

    def _cared(self, call: Callable[..., None], *arguments: object) -> None:
        """What goes beyond signalling must never end it."""
        if time.monotonic() < self._care_from:
            return
        try:
            call(*arguments)
            self._care_problem = ""
        except Exception as error:
            logger.exception("unexpected error; only signalling for a while")
            self._care_problem = f"only signalling for {SULK:g} s after an unexpected error: {error}"
            self._care_from = time.monotonic() + SULK

    def _take_signals(self) -> int:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._note_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return reading

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.add(number)

    def _handle_signals(self, wakeup: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wakeup, 4096)
        numbers, self._signals = self._signals, set()
        if signal.SIGUSR1 in numbers:
            self._kubelet_came(time.monotonic_ns(), "asked for")
        if signal.SIGHUP in numbers:
            self._reload()
        if numbers & {signal.SIGTERM, signal.SIGINT}:
            self._running = False

    def _reload(self) -> None:
        """Read the configuration again, in a child: it takes longer than a kubelet may wait for its signal."""
        config = self._config
        self._care.chores.start("reading", lambda: load(config), self._loaded, 30.0, time.monotonic())

    def _loaded(self, answer: Any, problem: str) -> None:
        try:
            if problem:
                raise Wrong(problem)
            before, self._settings = self._settings, decode(answer).settings
        except Wrong as error:
            log.event(logger, "error", "the new configuration is wrong; the old one stays", problems=str(error))
            return
        _set_up_log(self._settings.log)
        self._care.reload(self._settings)
        if before.device_plugins != self._settings.device_plugins:
            self._watch.close()
            self._watch = SocketWatch(self._settings.device_plugins, SOCKET)
            self._owner = Owner(self._watch.path)
            if self._watch.exists():
                self._kubelet_came(time.monotonic_ns(), "another folder")
        log.event(logger, "info", "configuration loaded", folder=self._watch.watched)

    def _open_control(self) -> None:
        path = os.path.join(self._settings.run, "watcher.control.sock")
        try:
            self._control = PollServer(path, self._answer)
        except OSError as error:
            log.event(logger, "error", "no control socket; watching without", socket=path, error=str(error))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request.get("op")
        if op == "ping":
            return {"pid": os.getpid()}
        if op == "status":
            return self._status()
        if op == "signal":
            self._kubelet_came(time.monotonic_ns(), "asked for")
            return self._last
        raise ValueError(f"unknown op {op!r}; there are ping, status and signal")

    def _status(self) -> dict[str, Any]:
        identity = self._owner.identity
        programs = [
            {
                "name": p.name,
                "pid": p.pid,
                "front": bool(p.front),
                "state": self._states.get(p.name, ""),
                **(self._care.front_status(p) if p.front else {}),
            }
            for p in self._fronts.programs()
        ]
        return {
            "program": "watcher",
            "pid": os.getpid(),
            "started": self._started,
            "supervisor": self._fronts.supervisor,
            "kubelet": {
                "socket": self._watch.path,
                "exists": self._watch.exists(),
                "pid": identity.pid if identity else None,
                "start_time": identity.start_time if identity else None,
                "seen_at": self._owner.seen_at,
            },
            "folder": {"path": self._watch.folder, "watched": self._watch.watched, "problem": self._watch.problem},
            "signals": {"rounds": self._rounds, "sent": self._sent, "last": self._last},
            "programs": programs,
            **self._care.status(),
            "problem": self._care_problem,
        }

    def _close(self) -> None:
        self._tell()
        self._care.close()
        if self._control is not None:
            self._control.close()
        self._watch.close()
        self._fronts.close()


def _set_up_log(settings: LogSettings) -> None:
    log.setup(cast(Any, settings), "watcher")


def start(config: str) -> int:
    """Read the configuration and watch. Returns the exit status."""
    adopt_lock()
    # A supervisord that reads no more must not stop us: then the log loses lines.
    os.set_blocking(2, False)
    _set_up_log(LogSettings("info", "text"))
    try:
        known = read(config)
    except Wrong as error:
        log.event(logger, "error", "the configuration is wrong", problems=str(error))
        return 1
    _set_up_log(known.settings.log)
    return Watcher(config, known).run()
