"""What a kubelet's log and the process table must never show."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from devherd.process import read_command, read_stat
from devherd.run import leftovers
from support.turmoil import Broken
from support.usage import Usage, usage

_LINES = re.compile(
    r'"(?P<what>Got registration request from device plugin with resource|State pushed for device plugin'
    r'|ListAndWatch ended unexpectedly for device plugin)".*? resource(?:Name)?="(?P<resource>[^"]+)"'
)
_CRASHES = ("panic:", "fatal error:", "runtime error:", "Observed a panic", "SIGSEGV")
RIPE = 20.0
"""Seconds after which a process has all that it needs; from then on it may only use a little more."""
GROWTH = {"descriptors": 8, "threads": 6, "private": 6 * 1024}
"""How much more of each; private memory in KiB."""


def check_log(path: Path, ordered: bool) -> int:
    """One life of a kubelet: no crash, and never a Register while a stream for that resource is open.

    `ordered` false: it was frozen for a while, and saw what came then in any order. Returns the Register calls seen.
    """
    text = path.read_text(errors="replace") if path.exists() else ""
    crash = next((line for line in text.splitlines() if any(word in line for word in _CRASHES)), "")
    if crash:
        raise Broken(f"the kubelet crashed: {crash} ({path})")
    open_streams: set[str] = set()
    registers = 0
    for match in _LINES.finditer(text):
        what, resource = match["what"], match["resource"]
        if what.startswith("State"):
            open_streams.add(resource)
        elif what.startswith("ListAndWatch"):
            open_streams.discard(resource)
        else:
            registers += 1
            if ordered and resource in open_streams:
                raise Broken(f"{resource} was registered while its stream was open ({path})")
    return registers


class Census:
    """The suite's processes, in its `folder`, and its sockets, among the kubelet's; and that nothing grows."""

    def __init__(self, folder: str, sockets: Path, plugins: Collection[str]) -> None:
        self._folder = folder
        self._sockets = sockets
        each = [f"devherd.{process} {plugin}" for plugin in plugins for process in ("front", "probe")]
        self._kinds = Counter(["supervisor.supervisord", "devherd_watcher", *each])
        self._seen: dict[tuple[int, str], float] = {}
        self._ripe: dict[tuple[int, str], Usage] = {}
        self.grown = dict.fromkeys(GROWTH, 0)

    def unsettled(self, sockets: Collection[str]) -> str:
        """Which processes or sockets are missing or too many. `sockets`: those that the fronts say they serve.

        Each lies in our folder; in the top layout a link beside the kubelet's leads there.
        """
        kinds = Counter(self._processes().values())
        if kinds != self._kinds:
            return f"processes: {dict(kinds - self._kinds)} too many, {dict(self._kinds - kinds)} missing"
        stems = {re.sub("^devherd[-/]", "", socket) for socket in sockets}
        anchors, links = {f"devherd/{stem}" for stem in stems}, {f"devherd-{stem}" for stem in stems}
        found = {str(path.relative_to(self._sockets)) for path in self._sockets.rglob("*") if path.is_socket()}
        left = found - anchors - links - {"kubelet.sock"}
        return f"sockets: {sorted(left)} too many, {sorted(anchors - found)} missing" if left or anchors - found else ""

    def check_growth(self) -> None:
        """Nobody uses more than when it was new."""
        now = time.monotonic()
        living: dict[tuple[int, str], str] = {}
        for pid, kind in self._processes().items():
            with contextlib.suppress(OSError):
                living[pid, _started(pid)] = kind
        self._seen = {key: self._seen.get(key, now) for key in living}
        self._ripe = {key: usage for key, usage in self._ripe.items() if key in living}
        for key, kind in living.items():
            if now - self._seen[key] < RIPE:
                continue
            with contextlib.suppress(OSError):
                used = usage(key[0])
                first = self._ripe.setdefault(key, used)
                for name, bound in GROWTH.items():
                    more = getattr(used, name) - getattr(first, name)
                    self.grown[name] = max(self.grown[name], more)
                    if more > bound:
                        raise Broken(f"{kind} grows: {first} -> {used}")

    def _processes(self) -> dict[int, str]:
        """Pid -> what it is. A process that is about to become another, or to end soon, is none yet."""
        found = {}
        for pid in leftovers.marked(self._folder):
            words = read_command(pid)
            if "-m" in words:
                module = words[len(words) - 1 - words[::-1].index("-m") + 1]
                plugin = words[words.index("--plugin") + 1] if "--plugin" in words else ""
                found[pid] = f"{module} {plugin}".strip()
        parents = {pid: stat.parent for pid in found if (stat := read_stat(pid)) is not None}
        return {pid: kind for pid, kind in found.items() if found.get(parents.get(pid, 0)) != kind}


def _started(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]
