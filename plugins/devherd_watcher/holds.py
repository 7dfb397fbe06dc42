"""Files that a program's launcher looks at before it becomes the program (devherd.launcher, `held`).

They lie beside the locks in `paths.run`. A hold ends by itself, so a watcher that dies holds nothing back for good.
"""

from __future__ import annotations

import contextlib
import os

from devherd.process import read_stat


class Holds:
    """The hold files of one supervisord's programs."""

    def __init__(self, run: str, supervisor: int) -> None:
        self._run = run
        stat = read_stat(supervisor)
        self._supervisor = (supervisor, stat.start if stat is not None else 0)

    def hold(self, name: str, until: float, why: str) -> str:
        """Hold the program back until a monotonic time. Returns what went wrong."""
        return self._write(name, f"until {until:.3f}\n{why}\n")

    def stopped(self, name: str) -> str:
        """An operator stopped it: a start by another supervisord waits for the watcher. Returns what went wrong."""
        pid, start = self._supervisor
        return self._write(name, f"stopped {pid} {start}\nit was stopped under an earlier supervisord\n")

    def release(self, name: str) -> None:
        """Take the hold back."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._run, f"{name.rpartition(':')[2]}.hold")

    def _write(self, name: str, text: str) -> str:
        path = self._path(name)
        try:
            with open(f"{path}.tmp", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(f"{path}.tmp", path)
        except OSError as error:
            return f"{path}: {error.strerror}; {name} cannot be held back"
        return ""
