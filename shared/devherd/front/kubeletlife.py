"""Notes when a kubelet came and when it ended, with its version where the node shows it.

The kubelet tells nobody its version on the sockets that plugins share with it, so what is noted is what the process
itself shows: its program file and command line. Where neither names a version, none is noted.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from typing import Any

from devherd.kubelet.identity import Identity
from devherd.process import read_stat

LOOK_AFTER = 0.2
"""Seconds after a lost stream: a process that closes its sockets as it ends is gone by then."""

_VERSION = re.compile(r"(?<![\w.])v?(1\.\d{1,2}\.\d{1,3}(?:[-+][0-9A-Za-z.+-]+)?)(?![\w.])")


class KubeletLife:
    """Follows one kubelet after the other. `proc` is where the node's procfs is."""

    def __init__(self, note: Callable[..., None], proc: str = "/proc") -> None:
        self._note = note
        self._proc = proc
        self._current: Identity | None = None
        self._up_since = 0.0
        self._suspected = 0.0

    def seen(self, identity: Identity) -> None:
        """Another kubelet answers; the one before has ended, if that was not noted yet."""
        if self._current is not None and self._current != identity:
            self._down()
        self._current, self._up_since = identity, time.time()
        self._note("kubelet-up", pid=identity.pid or None, **describe(identity.pid, self._proc))

    def look_soon(self) -> None:
        """A stream ended: maybe its kubelet did."""
        if not self._suspected:
            self._suspected = time.time()
            asyncio.get_running_loop().call_later(LOOK_AFTER, self.look)

    def look(self) -> None:
        """Note the end of the current kubelet if it has ended."""
        if self._current is not None and ended(self._current):
            self._down()
        self._suspected = 0.0

    def _down(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            # When its streams ended is when it ended; what was noticed later has no better moment than now.
            ended_at = self._suspected or time.time()
            up = round(max(0.0, ended_at - self._up_since), 3)
            self._note("kubelet-down", pid=current.pid or None, since=round(ended_at, 3), seconds_up=up)


def ended(identity: Identity) -> bool:
    """Whether that life of a process is over; False where it cannot be seen (another pid namespace)."""
    if identity.pid <= 0:
        return False
    stat = read_stat(identity.pid)
    return stat is None or stat.state in ("Z", "X", "x") or stat.start != identity.start_time


def describe(pid: int, proc: str) -> dict[str, Any]:
    """What a kubelet's process shows of itself: `version` if it names one, `exe`, and when that file was made."""
    if pid <= 0:
        return {}
    found: dict[str, Any] = {}
    command = ""
    try:
        found["exe"] = os.readlink(f"{proc}/{pid}/exe")
        found["exe_modified"] = int(os.stat(f"{proc}/{pid}/exe").st_mtime)
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            # Only the program's own name: later words name images, which have versions of their own.
            command = file.read(4096).split(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        pass
    version = version_in(found.get("exe", "")) or version_in(command)
    return {"version": version, **found} if version else found


def version_in(path: str) -> str:
    """The Kubernetes version that a path names (`/opt/v1.31.2/kubelet`); empty if it names none."""
    found = _VERSION.findall(path.replace("_", "/").replace("kubelet-", "/").replace("kubernetes-", "/"))
    return f"v{found[-1]}" if found else ""
