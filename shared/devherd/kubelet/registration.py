"""Keeps one resource registered with whichever kubelet is there.

The open ListAndWatch stream is the only proof of being registered; the kubelet never reconnects by itself. So the
task below runs in a circle: have a socket, wait for a kubelet, register, watch the stream, and when it ends begin
again. Two rules guard the kubelet's habit of disconnecting by resource name: never register while a stream is open on
the same kubelet, and let 75 ms pass after one ended there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

from msgspec.structs import replace

from devherd.kubelet import regstatus
from devherd.kubelet.afterwards import say_later
from devherd.kubelet.changes import Changes
from devherd.kubelet.contest import SETTLE, Contest
from devherd.kubelet.endpoint import Endpoint, EndpointError
from devherd.kubelet.identity import Identity
from devherd.kubelet.layout import SUBFOLDER, Layout
from devherd.kubelet.link import KubeletLink, Refused, RegisterError
from devherd.kubelet.regstatus import RegistrationStatus
from devherd.kubelet.rivals import Newcomers, Rival, find_rivals
from devherd.kubelet.server import ResourceServer, Stream
from devherd.kubelet.verify import Confirmation, Verifier
from devherd.kubelet.watch import KubeletWatch
from devherd.patience import round_pause

_LOG = logging.getLogger(__name__)
_STREAM_DUE = 2.0  # seconds from Register's OK to the stream
_RETRY_MAX = 5.0


class Registration:
    """One resource's circle. `on_change` gets each new status.

    `poll` and `refused_retry` are seconds. Without a `verifier` an open stream counts as registered.
    """

    def __init__(
        self,
        server: ResourceServer,
        endpoint: Endpoint,
        watch: KubeletWatch,
        link: KubeletLink,
        layout: Layout,
        *,
        verifier: Verifier | None = None,
        poll: float = 5.0,
        refused_retry: float = 60.0,
        on_change: Callable[[RegistrationStatus], None] | None = None,
    ) -> None:
        self.status = RegistrationStatus()
        self._server = server
        self._endpoint = endpoint
        self._watch = watch
        self._link = link
        self._layout = layout
        self._verifier = verifier
        self._poll = poll
        self._refused_retry = refused_retry
        self._on_change = on_change
        self._target: Identity | None = None
        self._pauses: dict[Identity, float] = {}
        self._contest = Contest(server.resource, verifier, self._rivals)
        self._asked = 0
        self._failures = 0
        self._gap_since = monotonic()
        self._binds = 0
        self._binding = asyncio.Lock()
        self._changes = Changes()
        self._ends: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self) -> None:
        """Begin, in a running event loop."""
        self._server.on_streams = self._stream_event
        self._ends = [self._watch.on_kubelet(self._kubelet_seen), self._watch.on_folder(self._folder_seen)]
        self._spawn(self._run())

    async def stop(self, grace: float = 0.0) -> None:
        """Remove the socket, end the stream, stop the server; the kubelet keeps the capacity for five minutes."""
        self._stopping = True
        for end in self._ends:
            end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._endpoint.remove()
        await self._server.stop(grace)
        self._say(state=regstatus.STOPPED, stream_since=0.0, error="")

    def retry(self) -> None:
        """Register now if no stream is open, whatever back-off was due; the pause after a stream's end stays."""
        self._pauses = {one: min(until, monotonic() + SETTLE) for one, until in self._pauses.items()}
        self._failures = 0
        self._asked += 1
        self._contest.asked()
        self._changes.kick()

    # What others tell us.

    def _stream_event(self, stream: Stream) -> None:
        if stream.identity is None:
            stream.identity = self._target
        if stream not in self._server.streams and stream.identity is not None:
            self._gap_since = monotonic()
            if not stream.was_cut:
                self._contest.ended(stream.identity)
            self._pause(stream.identity, self._contest.pause(stream.identity))
        self._changes.kick()

    def _kubelet_seen(self, identity: Identity) -> None:
        self._link.abandon(identity)
        self._changes.kick()

    def _folder_seen(self) -> None:
        self._spawn(self._rebind_early())

    # The circle.

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._ensure_bound(may_miss=True)
                identity = await self._next_kubelet()
                if self._live(identity) is None and not await self._left_to_another(identity):
                    await self._register(identity)
                if self._live(identity) is not None:
                    await self._serve(identity)
            except RegisterError as error:  # noqa: PERF203
                self._refused(error)
            except (OSError, EndpointError) as error:
                await self._no_socket(error)
            except Exception as error:
                _LOG.exception("registration failed; trying again", extra={"fields": self._fields()})
                self._say(state=regstatus.WAITING, error=f"internal error: {error}")
                await asyncio.sleep(1.0)

    async def _next_kubelet(self) -> Identity:
        """Return who listens now, once the pause for that kubelet is over."""
        told = (regstatus.WAITING, regstatus.REFUSED)
        if self.status.state not in told and not (self._contest.lost and self._watch.probe_now()):
            self._say(state=regstatus.WAITING, stream_since=0.0, rivals=())
        while True:
            identity = await self._watch.listening()
            if self._live(identity) is not None or self._remaining(identity) <= 0:
                return identity
            await self._changes.until(self._pause_over(identity), self._remaining(identity))

    def _pause_over(self, identity: Identity) -> Callable[[], bool]:
        return lambda: (
            self._remaining(identity) <= 0 or self._watch.current != identity or self._live(identity) is not None
        )

    async def _left_to_another(self, identity: Identity) -> bool:
        """Stay out of a resource that another server has, and look again now and then, or when somebody asks."""
        loss = await self._contest.loss(identity)
        if loss is None:
            return False
        self._say(state=regstatus.TAKEN, identity=identity, stream_since=0.0, error=loss.text, rivals=loss.rivals)
        asked, due = self._asked, monotonic() + self._contest.look_again()

        def over() -> bool:
            return self._asked != asked or self._watch.current != identity or self._live(identity) is not None

        while monotonic() < due and not loss.may_be_over() and not await self._changes.until(over, 1.0):
            pass
        return True

    async def _register(self, identity: Identity) -> None:
        await self._ensure_bound()
        name = self._endpoint.publish(self._layout.current)
        if identity != self._target:
            self._target, self._failures = identity, 0
        self._say(state=regstatus.REGISTERING, identity=identity, endpoint=name, stream_since=0.0)
        try:
            await self._link.register(identity, name, self._server.resource, self._server.handler.options())
        except RegisterError:
            # The kubelet may have finished all the same: only the stream tells.
            if self._live(identity) is None:
                raise
        self._watch.look_if_changed()
        await self._changes.until(
            lambda: self._live(identity) is not None or self._watch.current != identity, _STREAM_DUE
        )
        if self._watch.current != identity:
            await self._whose_stream(identity)
        elif self._live(identity) is None:
            raise RegisterError(Refused.TIMEOUT, "the kubelet said OK and opened no stream within 2 s")

    async def _whose_stream(self, identity: Identity) -> None:
        """Another kubelet came during the call: a stream that does not end soon was opened by that one."""
        await self._changes.until(lambda: self._live(identity) is None, SETTLE)
        stream = self._live(identity)
        if stream is not None:
            stream.identity = self._watch.current

    async def _serve(self, identity: Identity) -> None:
        """Stay until our stream on this kubelet has ended or another kubelet listens."""
        stream = self._live(identity)
        await self._changes.until(lambda: self._over(identity) or (stream is not None and stream.sent is not None))
        if stream is None or self._over(identity):
            return
        self._failures = 0
        self._say(
            state=regstatus.UNVERIFIED if self._verifier else regstatus.REGISTERED,
            identity=identity,
            registered_at=time.time(),
            duration_ms=max(0.0, stream.sent_at - max(self._gap_since, self._watch.triggered_at)) * 1000,
            count=self.status.count + 1,
            stream_since=stream.since,
            stream_opened=stream.opened_at,
            error="",
            rivals=(),
        )
        say_later(_LOG, "registered", **self._fields(), ms=round(self.status.duration_ms, 1))
        confirming = self._confirm(stream)
        try:
            while not await self._changes.until(lambda: self._over(identity), round_pause(self._poll)):
                await self._keep_socket()
        finally:
            if confirming is not None:
                confirming.cancel()

    def _confirm(self, stream: Stream) -> asyncio.Task[None] | None:
        if self._verifier is None:
            return None

        def judged(shown: bool | None, error: str, rivals: tuple[Rival, ...]) -> None:
            states = {True: regstatus.REGISTERED, False: regstatus.TAKEN, None: regstatus.UNVERIFIED}
            self._say(state=states[shown], error=error, rivals=rivals)

        newcomers = Newcomers(self._endpoint.device_plugins)
        check = Confirmation(self._verifier, self._server.resource, self._rivals, newcomers, self._changes.until)
        return self._spawn(check.run(stream, judged))

    def _rivals(self) -> tuple[Rival, ...]:
        return find_rivals(self._endpoint.device_plugins, self._server.resource, self._endpoint.names)

    # Failures.

    def _refused(self, error: RegisterError) -> None:
        self._failures += 1
        state, pause = regstatus.WAITING, min(_RETRY_MAX, 0.005 * 2 ** min(self._failures, 12))
        if error.kind is Refused.PERMANENT:
            state, pause = regstatus.REFUSED, self._refused_retry
        elif error.kind is Refused.CONNECTED:
            self._endpoint.rename()
        elif (error.kind is Refused.DIAL and self._endpoint.deaf()) or self._other_layout(error):
            pause = 0.0
        elif error.kind is not Refused.AWAY:
            pause = max(pause, SETTLE)
        if self._target is not None:
            self._pause(self._target, pause)
        if self.status.error != str(error):
            _LOG.warning("not registered", extra={"fields": {**self._fields(), "error": str(error), "retry_s": pause}})
        self._say(state=state, error=str(error))

    def _other_layout(self, error: RegisterError) -> bool:
        """The kubelet does not reach a socket that is there: it may not want subfolders."""
        if error.kind not in (Refused.DIAL, Refused.PLUGIN) or "options" in str(error).lower():
            return False
        if self._layout.current != SUBFOLDER:
            # Another resource has moved us already; this one was offered at the old place.
            return self.status.endpoint != self._endpoint.name(self._layout.current)
        if not self._endpoint.intact(SUBFOLDER):
            return False
        return self._layout.fall_back(f"the kubelet refused {self.status.endpoint}: {error}")

    async def _no_socket(self, error: Exception) -> None:
        if self.status.error != str(error):
            _LOG.warning("no socket", extra={"fields": {**self._fields(), "error": str(error)}})
        self._say(state=regstatus.WAITING, error=str(error))
        binds = self._binds
        await self._changes.until(lambda: self._binds != binds, min(self._poll, 1.0))

    # The socket.

    async def _ensure_bound(self, may_miss: bool = False) -> None:
        async with self._binding:
            if self._endpoint.anchored() and not self._endpoint.moved():
                return
            if self._endpoint.bound and not self._endpoint.moved():
                self._layout.fall_back(f"the socket vanished from {self._endpoint.folder}")
            try:
                await self._server.bind(self._endpoint)
            except FileNotFoundError:
                if not may_miss:
                    raise
                text = f"{self._endpoint.device_plugins}: not there yet; the kubelet makes it when it starts"
                self._say(state=regstatus.WAITING, error=text, stream_since=0.0)
                return
            self._binds += 1
        if self.status.state == regstatus.WAITING:
            self._say(error="")
        self._changes.kick()
        self._spawn(self._link.warm_up(self._endpoint.anchor))

    async def _rebind_early(self) -> None:
        """A new folder: bind now rather than when the kubelet listens."""
        with contextlib.suppress(OSError, EndpointError):
            await self._ensure_bound()

    async def _keep_socket(self) -> None:
        """Put back what somebody removed under an open stream; the kubelet needs it only for the next dial."""
        try:
            await self._ensure_bound()
            self._endpoint.publish(self._layout.current)
        except (OSError, EndpointError) as error:
            _LOG.warning("the socket was lost", extra={"fields": {**self._fields(), "error": str(error)}})

    # Small things.

    def _live(self, identity: Identity) -> Stream | None:
        """The newest open stream on this kubelet."""
        return next((one for one in reversed(self._server.streams) if one.identity == identity), None)

    def _over(self, identity: Identity) -> bool:
        return self._live(identity) is None or self._watch.current != identity

    def _pause(self, identity: Identity, seconds: float) -> None:
        now = monotonic()
        self._pauses = {one: until for one, until in self._pauses.items() if until > now}
        self._pauses[identity] = now + seconds

    def _remaining(self, identity: Identity) -> float:
        return self._pauses.get(identity, 0.0) - monotonic()

    def _say(self, **changes: Any) -> None:
        status = replace(self.status, **changes)
        if status != self.status:
            self.status = status
            if self._on_change is not None:
                self._on_change(status)

    def _fields(self) -> dict[str, object]:
        return {"resource": self._server.resource, "endpoint": self.status.endpoint}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
