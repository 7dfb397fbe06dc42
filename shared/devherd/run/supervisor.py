"""supervisord as a child: started like the service would start it, and heard like systemd would hear it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from devherd.process import LOCK_FD, Handle
from devherd.run import leftovers
from devherd.run.layout import Layout

WAKE = 0.02
"""Seconds between nudges: supervisord looks at its children once a second, or when somebody connects."""


class StartFailed(Exception):
    """A process of the instance did not come up; the text has its last words."""


class Supervisor:
    """One instance's supervisord, over many lives."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._process: subprocess.Popen[bytes] | None = None
        # The launcher asks the kernel to end supervisord with the thread that started it: one that lives as long as we.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, timeout: float = 30.0) -> None:
        """Start and wait for READY=1, which the watcher sends. Raises StartFailed."""
        path = self._layout.at("run", "notify.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            notify.bind(path)
            self._process = self._spawner.submit(self._spawn, path).result()
            try:
                self._wait_ready(notify, time.monotonic() + timeout)
            finally:
                os.unlink(path)

    def _spawn(self, notify: str) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if key not in (LOCK_FD, "WATCHDOG_USEC")}
        environment |= {leftovers.MARK: self._layout.folder, "NOTIFY_SOCKET": notify}
        python = [sys.executable, "-I"]
        launcher = [*python, "-m", "devherd.launcher", "--supervisor", "--name", "supervisord"]
        launcher += ["--lock", self._layout.at("run", "supervisord.lock"), "--"]
        with open(self._layout.at("log", "supervisord.out"), "ab") as out:
            return subprocess.Popen(
                [*launcher, *python, "-m", "supervisor.supervisord", "-n", "-s", "-c", self._layout.supervisor_config],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                cwd="/",
                # Ctrl-C in our terminal is ours to act on.
                start_new_session=True,
            )

    def _wait_ready(self, notify: socket.socket, deadline: float) -> None:
        assert self._process is not None
        notify.setblocking(False)
        nudged = False
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise StartFailed(f"supervisord ended with status {self._process.returncode}:\n{self.last_words()}")
            if select.select([notify], [], [], WAKE)[0] and b"READY=1" in notify.recv(4096).split(b"\n"):
                return
            # The first spawn waits a second unless something happens.
            nudged = nudged or self._nudge()
        raise StartFailed(f"the watcher did not get ready in time:\n{self.last_words()}")

    def stop(self, timeout: float = 30.0) -> None:
        """SIGTERM: supervisord stops its programs and ends. What is left after `timeout` seconds is killed."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._wait_end(lambda: self._nudge(), time.monotonic() + timeout)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def crash(self, spare: tuple[int, ...] = ()) -> None:
        """SIGKILL for supervisord and all that it started, at once. `spare`: pids that are none of them."""
        if self._process is not None:
            self._process.kill()
        leftovers.end(self._layout.folder, spare)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Let go of the spawning thread; supervisord must have ended."""
        self._spawner.shutdown()

    def _wait_end(self, nudge: Callable[[], object], deadline: float) -> None:
        assert self._process is not None
        try:
            handle = Handle(self._process.pid)
        except ProcessLookupError:
            return
        while not handle.wait(WAKE) and time.monotonic() < deadline:
            nudge()
        handle.close()
        if time.monotonic() < deadline:
            self._process.wait()

    def _nudge(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
            return sock.connect_ex(self._layout.supervisor_socket) == 0

    def last_words(self, lines: int = 15) -> str:
        """The ends of the logs, for a person who wants to know why."""
        texts = []
        for name in sorted(os.listdir(self._layout.log)):
            if os.path.isdir(self._layout.at("log", name)):
                continue
            with open(self._layout.at("log", name), encoding="utf-8", errors="replace") as file:
                tail = file.read()[-4000:].splitlines()[-lines:]
            if tail:
                texts.append(f"{name}:\n" + "\n".join(f"  {line}" for line in tail))
        return "\n".join(texts)
