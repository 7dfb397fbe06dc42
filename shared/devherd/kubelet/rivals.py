"""Who else serves plugin sockets here: what to name when another server has our resource.

Nobody can ask a plugin which resource it serves without disturbing it (a second ListAndWatch takes messages away from
the first in more than one vendor's plugin), so these are the candidates, the likeliest first.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Set

from msgspec import Struct

from devherd.kubelet.identity import probe_socket

_MOST = 5
_COMMAND_MAX = 120
_OURS = "devherd"
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


class Rival(Struct, frozen=True):
    """A live socket in the kubelet's folder that is not ours.

    `pid` is 0 where the kernel does not show it (another pid namespace, or a process too busy to accept). `pod` is the
    UID of the pod the process runs in, empty for a process of the host.
    """

    socket: str
    pid: int
    command: str
    pod: str

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid else "pid unknown"
        told = [who, *([self.command] if self.command else []), *([f"pod {self.pod}"] if self.pod else [])]
        return f"{self.socket} ({', '.join(told)})"


class Newcomers:
    """Tells whether a file has come into the kubelet's folder since the last look; the kubelet's own do not count."""

    def __init__(self, device_plugins: str) -> None:
        self._folder = device_plugins
        self._known: frozenset[tuple[str, int]] | None = None

    def any(self) -> bool:
        """Look. False before anything is remembered."""
        known, self._known = self._known, self._files()
        return known is not None and not self._known <= known

    def remember(self) -> None:
        """Take what is there now for known, unless something is remembered already."""
        if self._known is None:
            self._known = self._files()

    def _files(self) -> frozenset[tuple[str, int]]:
        try:
            with os.scandir(self._folder) as entries:
                return frozenset(
                    (one.name, one.inode()) for one in entries if not one.name.startswith((".", "kubelet"))
                )
        except OSError:
            return frozenset()


def find_rivals(device_plugins: str, resource: str, ours: Set[str], proc: str = "/proc") -> tuple[Rival, ...]:
    """Return the live sockets that may serve `resource`, the likeliest first, five at most.

    `ours` are the paths of this resource's own sockets. Other plugins of devherd are named only if they serve the
    same resource: a mistake in the configuration.
    """
    found = []
    for path in _sockets(device_plugins):
        if path in ours or path == os.path.join(device_plugins, "kubelet.sock"):
            continue
        likely = _likeness(os.path.relpath(path, device_plugins), resource)
        if likely < 0:
            continue
        try:
            pid = probe_socket(path).pid
            age = os.stat(path).st_ctime_ns
        except BlockingIOError:
            pid, age = 0, 0
        except OSError:
            continue
        if pid != os.getpid():
            found.append((-likely, -age, path, pid))
    return tuple(Rival(path, pid, _command(pid, proc), _pod(pid, proc)) for _, _, path, pid in sorted(found)[:_MOST])


def named(rivals: tuple[Rival, ...]) -> str:
    """The other live servers in words."""
    if not rivals:
        return "no other live socket was found"
    return f"other live sockets: {', '.join(map(str, rivals))}"


def _sockets(device_plugins: str) -> list[str]:
    paths = glob.glob(os.path.join(device_plugins, "*")) + glob.glob(os.path.join(device_plugins, "*", "*"))
    return [path for path in paths if _is_socket(path)]


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _likeness(name: str, resource: str) -> int:
    """How many words of the resource are in the socket's name; -1: a plugin of ours that serves another resource."""
    if name.startswith((f"{_OURS}/", f"{_OURS}-")):
        same = name.removesuffix(".sock").endswith("." + resource.replace("/", "_"))
        return 100 if same else -1
    words = {word for word in re.split(r"[^a-z0-9]+", resource.lower()) if len(word) > 2} - {"com", "org", "net"}
    return sum(word in name.lower() for word in words)


def _command(pid: int, proc: str) -> str:
    """The command line, as `ps` shows it to everybody; cut short."""
    for file, end in (("cmdline", b"\0"), ("comm", b"\n")):
        try:
            with open(f"{proc}/{pid}/{file}", "rb") as opened:
                text = opened.read(4096).rstrip(end).replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
        if text:
            printable = "".join(one if one.isprintable() else "?" for one in text)
            return printable if len(printable) <= _COMMAND_MAX else printable[: _COMMAND_MAX - 1] + "…"
    return ""


def _pod(pid: int, proc: str) -> str:
    """The kubelet names a pod's cgroups after its UID, with `_` for `-` under systemd."""
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="ascii", errors="replace") as file:
            found = _POD.search(file.read(65536))
    except OSError:
        return ""
    return found[1].replace("_", "-") if found else ""
