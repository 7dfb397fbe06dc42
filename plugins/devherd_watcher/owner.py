"""Who listens on kubelet.sock, for the record; nothing waits for the answer."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from devherd.process import read_stat

FIRST = 0.005
LAST = 0.7
_CREDENTIALS = struct.Struct("3i")


class Identity(NamedTuple):
    """One life of a listening process: pid, and start time in clock ticks since boot (0: not to be seen)."""

    pid: int
    start_time: int


def listener(path: str) -> Identity:
    """Who listens on a socket (unix(7), SO_PEERCRED). Raises OSError when nobody does, or it is too busy."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sock:
        sock.connect(path)
        pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    stat = read_stat(pid)
    return Identity(pid, stat.start if stat is not None else 0)


def answers(path: str, identity: Identity) -> bool:
    """Whether this very process takes a connection right now: one that is frozen, or gone, does not."""
    try:
        return listener(path) == identity
    except OSError:
        return False


class Owner:
    """Looks a few times after the socket appeared (it is bound before it is listened on), pausing ever longer.

    `next_look` is when, in monotonic seconds; None: nothing to do. `seen_at` is in Unix seconds.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.identity: Identity | None = None
        self.seen_at = 0.0
        self.next_look: float | None = None
        self._pause = FIRST

    def expect(self, now: float) -> None:
        """The socket appeared: start looking. Times are monotonic seconds."""
        self._pause = FIRST
        self.next_look = now + self._pause

    def look(self, now: float, wall: float) -> bool:
        """Look if it is time. True: somebody else listens than before."""
        if self.next_look is None or now < self.next_look:
            return False
        before = self.identity
        try:
            self.identity = listener(self.path)
        except OSError:
            self.identity = None
            self._pause *= 2
            self.next_look = now + self._pause if self._pause <= LAST else None
            return False
        self.next_look = None
        if self.identity == before:
            return False
        self.seen_at = wall
        return True
