"""Memory that runs out for some processes only: a memory group of the kernel's (cgroup v1 or v2) with a low limit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "devherd-chaos"
_HOG = """
import os
open({procs!r}, "w").write(str(os.getpid()))
open("/proc/self/oom_score_adj", "w").write("1000")
eaten = []
while True:
    eaten.append(b"x" * (1 << 20))
"""


class MemoryGroup:
    """One group. Raises OSError where none can be made."""

    def __init__(self) -> None:
        self._old = os.path.isdir("/sys/fs/cgroup/memory")
        self._root = Path("/sys/fs/cgroup/memory" if self._old else "/sys/fs/cgroup")
        for left in self._root.glob(f"{_NAME}-*"):
            with contextlib.suppress(OSError):
                left.rmdir()
        self.folder = self._root / f"{_NAME}-{time.time_ns():x}"
        self.folder.mkdir()
        self._home = self._own()
        self._limit = self.folder / ("memory.limit_in_bytes" if self._old else "memory.max")
        self._usage = self.folder / ("memory.usage_in_bytes" if self._old else "memory.current")
        try:
            self.lift()
        except OSError:
            self.folder.rmdir()
            raise

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This process is in the group for a while, so that what it starts is born there."""
        self._move(self.folder)
        try:
            yield
        finally:
            self._move(self._home)

    def squeeze(self, spare: int, times: int) -> None:
        """Leave only `spare` bytes beyond what is in use, and have somebody else want more, some times in a row."""
        try:
            with contextlib.suppress(OSError):
                self._limit.write_text(str(int(self._usage.read_text()) + spare))
            for _ in range(times):
                hog = subprocess.Popen(
                    [sys.executable, "-c", _HOG.format(procs=str(self.folder / "cgroup.procs"))],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                try:
                    hog.wait(1.0)
                except subprocess.TimeoutExpired:
                    hog.kill()
                    hog.wait()
        finally:
            self.lift()

    def lift(self) -> None:
        """No limit."""
        self._limit.write_text("-1" if self._old else "max")

    def close(self) -> None:
        """Remove the group; its processes must have ended."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _move(self, group: Path) -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    def _own(self) -> Path:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(",") if self._old else not controllers:
                return self._root / path.lstrip("/")
        raise OSError("/proc/self/cgroup names no memory group")
