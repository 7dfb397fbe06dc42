"""The front's side of its probe: requests with deadlines, and the replacement of a probe that hangs.

A probe is never waited for. One that misses a deadline is killed, forgotten (a process in D state stays
until the kernel lets it go; it is only counted) and replaced, with a pause that doubles up to a cap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from devherd.front.journal import Journal
from devherd.front.spawn import Spawned, spawn_probe
from devherd.log import event
from devherd.patience import within
from devherd.probe import wire
from devherd.settings import Probe as ProbeSettings
from devherd.settings import Settings

logger = logging.getLogger(__name__)

MAX_ABANDONED = 4
"""As many processes stuck in the kernel at once; then no new one is started until one is gone."""

REPAIR_DEADLINE = 120.0
"""Seconds for one repair: a reset takes its time, and nothing else of the probe's work is urgent meanwhile."""


class ProbeError(Exception):
    """A request got no answer, or the vendor raised. The text says which and why."""


@dataclass(frozen=True)
class ProbeStatus:
    """What `status` shows: state is starting, idle, busy, hung (being replaced), waiting (before a restart) or
    detached."""

    state: str
    pid: int | None
    doing: str
    doing_seconds: float
    replaced: int
    abandoned: tuple[int, ...]
    capabilities: tuple[str, ...]
    error: str


class _Connection:
    """One probe process: the stream, and the requests waiting for an answer."""

    def __init__(
        self,
        spawned: Spawned,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_hint: Callable[[str], None],
    ) -> None:
        self.spawned = spawned
        self.ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self._pending: dict[int, asyncio.Future[wire.Reply]] = {}
        self._on_hint = on_hint
        self._decoder = wire.reply_decoder()
        self._writer = writer
        self._task = asyncio.create_task(self._run(reader), name=f"probe-{spawned.pid}")

    @classmethod
    async def open(cls, spawned: Spawned, on_hint: Callable[[str], None]) -> _Connection:
        """Take over the front's end of the socketpair."""
        reader, writer = await asyncio.open_connection(sock=spawned.sock)
        return cls(spawned, reader, writer, on_hint)

    async def _run(self, reader: asyncio.StreamReader) -> None:
        error = "the probe ended"
        try:
            while True:
                (length,) = wire.HEADER.unpack(await reader.readexactly(wire.HEADER.size))
                if length > wire.MAX_FRAME:
                    raise ValueError(f"a frame of {length} bytes")
                self._dispatch(self._decoder.decode(await reader.readexactly(length)))
        except asyncio.IncompleteReadError:
            self._over(error)
        except (OSError, ValueError, msgspec.MsgspecError) as problem:
            self._over(f"the probe's stream broke: {problem}")
        finally:
            self.closed.set()
            self._fail(error)

    def _over(self, error: str) -> None:
        """The other side ended it: nobody watches the hardware now, so a rescan, with a new probe, is due at once."""
        self.closed.set()
        self._fail(error)
        self._on_hint(error)

    def _dispatch(self, reply: wire.Reply) -> None:
        if isinstance(reply, wire.Hint):
            self._on_hint(reply.source)
        elif isinstance(reply, wire.Ready):
            if not self.ready.done():
                self.ready.set_result(reply)
        else:
            waiting = self._pending.pop(reply.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)

    def _fail(self, error: str) -> None:
        waiting: list[asyncio.Future[Any]] = [self.ready, *self._pending.values()]
        self._pending.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(ProbeError(error))
                # Read once, so that one nobody waits for is not complained about.
                future.exception()

    async def ask(self, request: wire.Request) -> wire.Reply:
        """Send and await the answer. Raises ProbeError when the probe ends first."""
        if self.closed.is_set():
            raise ProbeError("the probe ended")
        waiting: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._pending[request.number] = waiting
        self._writer.write(wire.encode(request))
        return await waiting

    async def close(self) -> None:
        """Drop the stream; the process is somebody else's business."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()


class ProbeLink:
    """Owns the probe of one plugin. All methods belong to the front's loop."""

    def __init__(
        self,
        plugin: str,
        manifest: str,
        settings: Settings,
        config: msgspec.Raw,
        on_hint: Callable[[str], None],
        journal: Journal,
        first: Spawned | None = None,
    ) -> None:
        self._plugin = plugin
        self._manifest = manifest
        self._settings = settings
        self._config = config
        self._on_hint = on_hint
        self._journal = journal
        self._spawned = first
        self._connection: _Connection | None = None
        self._turn = asyncio.Lock()
        self._numbers = 0
        self._replaced = 0
        self._failures = 0
        self._not_before = 0.0
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._capabilities: tuple[str, ...] = ()
        self._state = "starting"
        self._doing = ""
        self._since = 0.0
        self._error = ""
        self._held = False

    @property
    def limits(self) -> ProbeSettings:
        """Deadlines and intervals in force."""
        return self._settings.probe

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Optional protocols of the vendor, known once a probe has answered."""
        return self._capabilities

    def status(self) -> ProbeStatus:
        """A picture for people."""
        self._reap()
        pid = self._connection.spawned.pid if self._connection else None
        seconds = time.monotonic() - self._since if self._doing else 0.0
        abandoned = tuple(process.pid for process in self._abandoned)
        return ProbeStatus(
            self._state, pid, self._doing, seconds, self._replaced, abandoned, self._capabilities, self._error
        )

    async def scan(self, known: str) -> wire.Scanned:
        """Scan the host. Raises ProbeError."""
        reply = await self._request(wire.Scan(self._next(), known), self.limits.deadline)
        if not isinstance(reply, wire.Scanned):
            raise ProbeError(f"the probe answered a scan with {type(reply).__name__}")
        return reply

    async def check(self) -> wire.Checked:
        """Gather evidence. Raises ProbeError."""
        reply = await self._request(wire.Check(self._next()), self.limits.deadline)
        if not isinstance(reply, wire.Checked):
            raise ProbeError(f"the probe answered a check with {type(reply).__name__}")
        return reply

    async def prepare(self, resource: str, ids: tuple[str, ...]) -> str:
        """PreStartContainer's work; the text says why it failed, empty when it did not. Raises ProbeError."""
        reply = await self._request(wire.Prepare(self._next(), resource, ids), self.limits.prepare_deadline)
        if not isinstance(reply, wire.Done):
            raise ProbeError(f"the probe answered a prepare with {type(reply).__name__}")
        return reply.error

    async def repair(self, thing: str, attempt: int) -> str:
        """One step of the reset ladder; the text says why it failed, empty when it did not. Raises ProbeError."""
        reply = await self._request(wire.Repair(self._next(), thing, attempt), REPAIR_DEADLINE)
        if not isinstance(reply, wire.Done):
            raise ProbeError(f"the probe answered a repair with {type(reply).__name__}")
        return reply.error

    async def detach(self) -> None:
        """End the probe and start none until `attach`. One that is stuck in the kernel is abandoned as ever."""
        self._held = True
        async with self._turn:
            await self.stop()
            self._state = "detached"

    def attach(self) -> None:
        """A probe may be started again."""
        self._held = False
        self._state, self._failures, self._not_before = "starting", 0, 0.0

    async def replace(self, settings: Settings, config: msgspec.Raw) -> None:
        """From now on use a fresh probe with this configuration. The old one is asked to stop."""
        async with self._turn:
            self._settings, self._config = settings, config
            await self._let_go(polite=True)

    async def stop(self) -> None:
        """End the probe; one that does not listen is killed."""
        await self._let_go(polite=True)
        if self._spawned is not None:
            self._abandon(self._spawned)
            self._spawned.sock.close()
            self._spawned = None

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    async def _request(self, request: wire.Request, deadline: float) -> wire.Reply:
        async with self._turn:
            if self._held:
                raise ProbeError("detached: an operator had the plugin let go of the driver (devherd attach)")
            try:
                reply = await within(self._ask(request), deadline)
            except asyncio.TimeoutError:
                await self._replace_hung(request, deadline)
                raise ProbeError(self._error) from None
            except ProbeError as problem:
                await self._ended(str(problem))
                raise
            finally:
                self._doing = ""
        self._journal.probe_answered()
        if isinstance(reply, wire.Failed):
            self._error = reply.error
            if reply.trace:
                event(logger, "warning", "the vendor failed", error=reply.error, trace=reply.trace)
            raise ProbeError(reply.error)
        self._error, self._failures, self._state = "", 0, "idle"
        return reply

    async def _ask(self, request: wire.Request) -> wire.Reply:
        connection = await self._connected()
        self._doing, self._since, self._state = type(request).__name__.lower(), time.monotonic(), "busy"
        return await connection.ask(request)

    async def _connected(self) -> _Connection:
        if self._connection is not None and not self._connection.closed.is_set():
            return self._connection
        if self._connection is not None:
            self._ended_at_rest(self._connection.spawned.pid)
        await self._let_go(polite=False)
        await self._may_start()
        self._state, self._doing, self._since = "starting", "start", time.monotonic()
        try:
            spawned = self._spawned or spawn_probe(self._plugin, self._manifest)
        except OSError as problem:
            raise ProbeError(f"cannot start a probe: {problem}") from problem
        self._spawned = None
        connection = self._connection = await _Connection.open(spawned, self._on_hint)
        # Configure is answered by Ready, which carries no number.
        configure = asyncio.ensure_future(connection.ask(wire.Configure(self._next(), self._settings, self._config)))
        both: set[asyncio.Future[Any]] = {configure, connection.ready}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if connection.ready.done():
                self._capabilities = connection.ready.result().capabilities
            else:
                reply = configure.result()
                raise ProbeError(reply.error if isinstance(reply, wire.Failed) else "the probe did not get ready")
        finally:
            configure.cancel()
        return connection

    async def _may_start(self) -> None:
        self._reap()
        while (pause := self._not_before - time.monotonic()) > 0 or len(self._abandoned) >= MAX_ABANDONED:
            self._state, self._doing = "waiting", ""
            await asyncio.sleep(min(max(pause, 0.1), 1.0))
            self._reap()

    async def _replace_hung(self, request: wire.Request, deadline: float) -> None:
        what = type(request).__name__.lower()
        if self._state == "waiting":
            self._journal.probe_silent(self._error)
            return
        pid = self._connection.spawned.pid if self._connection else None
        self._error = f"no answer to {what} within {deadline:g} s"
        self._journal.probe_silent(self._error)
        self._journal.probe_replaced(True, pid, what, self._error)
        event(logger, "error", "the probe hangs and is replaced", doing=what, deadline_s=deadline, pid=pid)
        self._state = "hung"
        await self._let_go(polite=False)
        self._back_off()

    async def _ended(self, error: str) -> None:
        self._error = error
        pid = self._connection.spawned.pid if self._connection else None
        event(logger, "error", "the probe failed and is replaced", error=error, pid=pid)
        self._journal.probe_silent(error)
        self._journal.probe_replaced(False, pid, self._doing, error)
        await self._let_go(polite=False)
        self._back_off()

    def _ended_at_rest(self, pid: int) -> None:
        """It answered and then ended, with nothing asked of it: no reason to wait before the next one."""
        self._replaced += 1
        event(logger, "warning", "the probe ended by itself and is replaced", pid=pid)
        self._journal.probe_replaced(False, pid, "", "the probe ended")

    def _back_off(self) -> None:
        self._replaced += 1
        pause = min(0.25 * 2**self._failures, self.limits.restart_max) if self._failures else 0.0
        self._failures = min(self._failures + 1, 16)
        self._not_before = time.monotonic() + pause

    async def _let_go(self, polite: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        await connection.close()
        if polite:
            # The closed stream tells the probe to end; one that is busy in a driver is not waited for.
            for _ in range(20):
                if connection.spawned.process.poll() is not None:
                    return
                await asyncio.sleep(0.01)
        self._abandon(connection.spawned)

    def _abandon(self, spawned: Spawned) -> None:
        with contextlib.suppress(OSError):
            spawned.process.kill()
        self._abandoned.append(spawned.process)
        self._reap()

    def _reap(self) -> None:
        self._abandoned = [process for process in self._abandoned if process.poll() is None]
