"""The exporter's loop: listeners, the textfile, reload."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import time
from dataclasses import replace
from typing import Any

from devherd.config import Problem, load_plugin_config, load_settings
from devherd.control import ControlServer
from devherd.expected import expectations
from devherd.log import event, setup
from devherd.patience import woken
from devherd.process import adopt_lock
from devherd.settings import Settings

from devherd_exporter import textfile
from devherd_exporter.config import Config
from devherd_exporter.cut import cut
from devherd_exporter.expose import answer, text
from devherd_exporter.figures import figures
from devherd_exporter.gather import Gathered, Gatherer
from devherd_exporter.listeners import TcpListener, UnixListener
from devherd_exporter.manifest import MANIFEST
from devherd_exporter.series import Series

logger = logging.getLogger("devherd_exporter")

SOCKET = "exporter.metrics.sock"
FRESH = 1.0
"""Seconds an answer is good for: several clients at once cost the programs one question."""
RETRY = 10.0
"""Seconds until a listener that could not be opened is tried again."""


class Exporter:
    """One run of the exporter. `run` returns the exit status."""

    def __init__(self, path: str, settings: Settings, config: Config, problems: tuple[Problem, ...]) -> None:
        self._path = path
        self._settings = settings
        self._config = config
        self._configured = problems
        self._gatherer = Gatherer(settings.paths.run, config.timeout, config.pod_names)
        self._listeners: dict[str, UnixListener | TcpListener] = {}
        self._problems: dict[str, str] = {}
        self._series: Series | None = None
        self._made = 0.0
        self._turn = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._again = asyncio.Event()
        self._started = time.time()
        self._answers = 0
        self._textfile = ""

    async def run(self) -> int:
        """Serve until told to stop."""
        self._signals()
        control = ControlServer(f"{self._settings.paths.run}/exporter.control.sock", self._control)
        await self._try("control", control.start())
        writing = asyncio.create_task(self._write_for_ever(), name="textfile")
        opening = asyncio.create_task(self._keep_open(), name="listeners")
        await self._stopping.wait()
        for task in (writing, opening):
            task.cancel()
        await asyncio.gather(writing, opening, return_exceptions=True)
        await self._close_all()
        await control.stop()
        if self._textfile:
            textfile.remove(self._textfile)
        return 0

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        # For fronts; whoever sends it to everybody must not end us.
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    # -- the metrics

    async def series(self) -> Series:
        """The node's samples, at most a second old; asked for once, however many clients wait."""
        async with self._turn:
            if self._series is None or time.monotonic() - self._made > FRESH:
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(None, self._gather)
                self._series, self._made = cut(figures(found)), time.monotonic()
            return self._series

    def _gather(self) -> Gathered:
        expected, _ = expectations(self._settings)
        return replace(self._gatherer.gather(), expected=tuple(expected))

    async def _page(self, accept: str) -> tuple[bytes, str]:
        self._answers += 1
        return answer(await self.series(), accept)

    async def _write_for_ever(self) -> None:
        while True:
            path = textfile.place(self._config.textfile, self._settings.paths.root)
            if path != self._textfile and self._textfile:
                textfile.remove(self._textfile)
            self._textfile = path
            if path:
                await self._try("textfile", self._write(path))
            await asyncio.sleep(self._config.textfile_interval)

    async def _write(self, path: str) -> None:
        content = text(await self.series())
        await asyncio.get_running_loop().run_in_executor(None, textfile.write, path, content)

    # -- listeners

    def _wanted(self) -> dict[str, UnixListener | TcpListener]:
        wanted: dict[str, UnixListener | TcpListener] = {}
        if self._config.socket:
            path = f"{self._settings.paths.run}/{SOCKET}"
            wanted["socket"] = UnixListener(path, self._config.socket_group, self._page)
        if self._config.tcp is not None:
            wanted["tcp"] = TcpListener(self._config.tcp, self._page)
        return wanted

    async def _keep_open(self) -> None:
        """Open what is configured, again and again where that fails; follow renewed certificates."""
        while True:
            for name, listener in self._wanted().items():
                if name not in self._listeners and await self._try(name, listener.open()):
                    self._listeners[name] = listener
                    event(logger, "info", "listening", listener=name)
            tcp = self._listeners.get("tcp")
            if isinstance(tcp, TcpListener):
                self._attempt("certificate", tcp.refresh)
            if await woken(self._again, RETRY):
                self._again.clear()
                await self._close_all()

    async def _close_all(self) -> None:
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            await listener.close()

    # -- small things

    async def _try(self, what: str, work: Any) -> bool:
        """Await; an error is shown in status, and logged when it is a new one."""
        try:
            await work
        except (OSError, ValueError) as error:
            self._failed(what, error)
            return False
        self._problems.pop(what, None)
        return True

    def _attempt(self, what: str, work: Any) -> None:
        try:
            work()
        except (OSError, ValueError) as error:
            self._failed(what, error)
        else:
            self._problems.pop(what, None)

    def _failed(self, what: str, error: Exception) -> None:
        if self._problems.get(what) != str(error):
            event(logger, "error", "not possible now, will be tried again", what=what, error=str(error))
        self._problems[what] = str(error)

    def _reload(self) -> None:
        settings, config, problems = read(self._path)
        self._configured = problems
        for problem in problems:
            event(logger, "error", "configuration not loaded", problem=str(problem))
        if problems:
            return
        self._settings = settings
        self._config = config
        self._gatherer = Gatherer(settings.paths.run, config.timeout, config.pod_names)
        self._series = None
        self._again.set()
        event(logger, "info", "configuration loaded", path=self._path)

    async def _control(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request.get("op")
        if op == "ping":
            return {"program": "exporter", "pid": os.getpid()}
        if op != "status":
            raise ValueError(f"unknown op {op!r}; there are ping and status")
        return {
            "program": "exporter",
            "pid": os.getpid(),
            "started": self._started,
            "listeners": sorted(self._listeners),
            "textfile": self._textfile,
            "answers": self._answers,
            "series": self._series.size if self._series else None,
            "problems": [f"{what}: {text}" for what, text in sorted(self._problems.items())],
            "config_problems": [str(problem) for problem in self._configured],
        }


def read(path: str) -> tuple[Settings, Config, tuple[Problem, ...]]:
    """Both files. With problems the defaults stand in, which open no port."""
    loaded = load_settings(path)
    settings = loaded.value or Settings()
    plugin = load_plugin_config(settings, MANIFEST)
    config = plugin.value if isinstance(plugin.value, Config) else Config()
    return settings, config, (*loaded.problems, *plugin.problems)


def start(path: str) -> int:
    """Read the configuration and serve. Returns the exit status."""
    adopt_lock()
    settings, config, problems = read(path)
    setup(settings.log, "exporter")
    if any(problem.file == path for problem in problems):
        # Where the sockets are is not known: the defaults might belong to another devherd.
        for problem in problems:
            event(logger, "error", "configuration not loaded", problem=str(problem))
        return 1
    for problem in problems:
        event(logger, "error", "configuration not loaded; the defaults hold", problem=str(problem))
    with contextlib.suppress(OSError):
        # Metrics are never worth a device's time.
        os.nice(5)
    return asyncio.run(_serve(functools.partial(Exporter, path, settings, config, problems)))


async def _serve(make: functools.partial[Exporter]) -> int:
    return await make().run()
