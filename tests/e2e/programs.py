"""Programs the suite starts: each known by its process, ended by its process, its output in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class TookTooLong(AssertionError):
    """What was waited for did not come; the text says what, and what was there last."""


def wait(look: Callable[[], T], timeout: float, what: str, every: float = 0.05) -> T:
    """Look until the result is true, and return it. Raises TookTooLong."""
    end = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise TookTooLong(f"not within {timeout:g} s: {what}")
        time.sleep(every)


class Program:
    """One program, started any number of times."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id; 0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.pid != 0

    def start(self, argv: Sequence[str], environment: dict[str, str] | None = None, fresh_log: bool = True) -> None:
        """Start it in a session of its own; what it says goes to its log."""
        if self.running:
            raise RuntimeError(f"{self.name} runs already")
        with open(self.log, "wb" if fresh_log else "ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def send(self, number: int) -> None:
        """Signal it, if it runs."""
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 15.0) -> None:
        """Signal it and wait for its end; killed when it takes too long."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def tail(self, lines: int = 30) -> str:
        """The end of what it said."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
