"""Sees who listens on kubelet.sock, within a millisecond of listen().

The kubelet binds its socket before it listens, so the event that announces the file comes too early; and gRPC's
own reconnect waits a second. A bare connect is cheap enough to be tried again and again instead. Nothing here
debounces: the first pod may be admitted 13 ms after the socket appears.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from time import monotonic

from devherd.kubelet.afterwards import say_later
from devherd.kubelet.folder import FolderId, FolderWatch, folder_id
from devherd.kubelet.identity import Identity, probe_socket
from devherd.kubelet.urgency import Urgency
from devherd.patience import round_pause

_LOG = logging.getLogger(__name__)
_SPINS = 20  # the gap between bind() and listen() is microseconds: first tries without any pause
_EAGER = 1.0  # seconds after an event during which a try is made every millisecond
_SLOWEST = 1.0


class KubeletWatch:
    """Follows the kubelet's registration socket. One per process; idempotent triggers; never gives up.

    `current` is who listened last, `up` whether they did at the last look, `error` why not, `triggered_at` when the
    current one's socket file came (monotonic seconds). Probing happens while
    somebody waits in `listening`, after a trigger (`poke`), and when the slow poll finds the socket file changed.
    """

    def __init__(
        self,
        folder: str,
        *,
        name: str = "kubelet.sock",
        poll: float = 5.0,
        probe: Callable[[str], Identity] = probe_socket,
    ) -> None:
        self.folder = os.path.abspath(folder)
        self.socket_path = os.path.join(self.folder, name)
        self.current: Identity | None = None
        self.up = False
        self.error = ""
        self.triggered_at = 0.0
        self._seen_at = 0.0
        self._poll = max(poll, 0.05)
        self._probe = probe
        self._files = FolderWatch(self.folder, name, self.poke)
        self._urgency = Urgency()
        self._waiters: set[asyncio.Future[Identity]] = set()
        self._on_kubelet: list[Callable[[Identity], None]] = []
        self._on_folder: list[Callable[[], None]] = []
        self._due = False
        self._seen_file: tuple[int, int, int] | None = None
        self._seen_folder: FolderId | None = None
        self._failing_file: tuple[int, int, int] | None = None
        self._failing_since = 0.0
        self._failed_at = 0.0
        self._burst = 0.0
        self._tries = 0
        self._pause = 0.0
        self._sleeper: asyncio.Future[None] | None = None
        self._roused = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in a running event loop."""
        if self._task is None:
            self._seen_folder = folder_id(self.folder)
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End; whoever waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._files.close()
        self._urgency.end()
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def poke(self) -> None:
        """Say that the kubelet may have come (SIGUSR1, inotify): look at once."""
        self._due = True
        self._restart_burst()
        self._rouse()

    def knows(self) -> bool:
        """Whether the kubelet behind the present socket file was seen a moment ago: one who says so now is late."""
        return self.up and monotonic() - self._seen_at < _EAGER and self._file() == self._seen_file

    def probe_now(self) -> Identity | None:
        """Look once, right now, and tell subscribers if somebody new listens."""
        seen_file = self._file()
        try:
            identity = self._probe(self.socket_path)
        except OSError as error:
            self.up, self.error = False, f"{self.socket_path}: {error.strerror or error}"
            self._failed_at = monotonic()
            if seen_file != self._failing_file:
                self._failing_file, self._failing_since = seen_file, self._failed_at
            return None
        self._seen_file = seen_file
        self._seen(identity)
        return identity

    def look_if_changed(self) -> None:
        """Look right now if the socket file is another one than at the last look; costs one stat."""
        if self._file() != self._seen_file:
            self.probe_now()

    async def listening(self) -> Identity:
        """Wait until somebody accepts connections; the look is made after this call, not remembered from before."""
        waiter: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        self._urgency.begin()
        self._files.arm()
        if len(self._waiters) == 1:
            self._restart_burst()
        self._rouse()
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    def on_kubelet(self, callback: Callable[[Identity], None]) -> Callable[[], None]:
        """Call back whenever another kubelet is seen than before. Returns how to end that."""
        return _subscribe(self._on_kubelet, callback)

    def on_folder(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever the device plugin folder is a new one (created, replaced). Returns how to end that."""
        return _subscribe(self._on_folder, callback)

    async def _run(self) -> None:
        while True:
            try:
                pause = self._step()
            except Exception:
                _LOG.exception("watching the kubelet's socket failed; trying again")
                pause = _SLOWEST
            await self._rest(pause)

    def _step(self) -> float:
        self._look_at_folder()
        if not self._waiters:
            self._files.disarm()
            if not self._due and self._file() == self._seen_file:
                self._notice_death()
                return round_pause(self._poll)
        else:
            self._files.rearm()
        if self.probe_now() is None:
            return self._next_pause()
        self._due = False
        return round_pause(self._poll)

    def _notice_death(self) -> None:
        # A kubelet that ends leaves its file as it was, so the poll above sees no change.
        if self.up and self.current is not None and self.current.pid > 0:
            self.up = os.path.exists(f"/proc/{self.current.pid}")

    def _look_at_folder(self) -> None:
        found = folder_id(self.folder)
        if found != self._seen_folder:
            self._seen_folder = found
            if found is not None:
                for callback in tuple(self._on_folder):
                    callback()

    def _file(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.socket_path)
        except OSError:
            return None
        return (status.st_dev, status.st_ino, status.st_ctime_ns)

    def _seen(self, identity: Identity) -> None:
        self.up, self.error, self._seen_at = True, "", monotonic()
        if identity != self.current:
            self.triggered_at = self._appeared()
            self.current = identity
            for callback in tuple(self._on_kubelet):
                callback(identity)
            say_later(_LOG, "the kubelet listens", pid=identity.pid, socket=self.socket_path)
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(identity)
        # At once: each list that the kubelet takes in makes two files here, and would wake us twice.
        self._files.disarm()
        self._urgency.end_soon()

    def _appeared(self) -> float:
        """When this kubelet's socket file came: when it was first seen, or after the last look that saw another."""
        if self._seen_file == self._failing_file and self._failing_since:
            return self._failing_since
        return max(self._burst, self._failed_at)

    def _restart_burst(self) -> None:
        self._burst = monotonic()
        self._tries = 0
        self._pause = 0.005

    def _next_pause(self) -> float:
        self._tries += 1
        if self._tries <= _SPINS:
            return 0.0
        if monotonic() - self._burst < _EAGER:
            return 0.001
        self._due = False
        if not self._waiters:
            # Nobody lacks a kubelet: the file is remembered, so that only a new one is looked at again.
            self._seen_file = self._file()
            return round_pause(self._poll)
        self._pause = min(self._pause * 2, _SLOWEST, self._poll)
        return self._pause

    def _rouse(self) -> None:
        self._roused = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _rest(self, pause: float) -> None:
        if pause <= 0 or self._roused:
            self._roused = False
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(pause, self._rouse)
        try:
            await self._sleeper
        finally:
            timer.cancel()
            self._sleeper = None
            self._roused = False


def _subscribe(callbacks: list[Callable[..., None]], callback: Callable[..., None]) -> Callable[[], None]:
    callbacks.append(callback)

    def end() -> None:
        if callback in callbacks:
            callbacks.remove(callback)

    return end
