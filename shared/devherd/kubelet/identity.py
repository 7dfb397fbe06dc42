"""Who listens on a Unix socket.

A socket file proves nothing: a killed kubelet leaves it behind, and inode numbers are used again. The kernel
keeps the credentials of the process that called listen() and hands them to whoever connects (unix(7),
SO_PEERCRED); together with the start time they name one life of one process.
"""

from __future__ import annotations

import os
import socket
import struct

from msgspec import Struct

_CREDENTIALS = struct.Struct("3i")


class Identity(Struct, frozen=True):
    """One life of the process behind a socket.

    `start_time` is field 22 of /proc/<pid>/stat, in clock ticks since boot. Where the process cannot be seen (another
    pid namespace: pid 0) it is the change time of the socket file in nanoseconds, which differs just as well.
    """

    pid: int
    start_time: int


def start_time_of(pid: int, proc: str = "/proc") -> int:
    """Return a process's start time (clock ticks since boot). Raises OSError when there is no such process."""
    with open(f"{proc}/{pid}/stat", "rb") as file:
        # The command, in parentheses, may itself hold spaces and parentheses.
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[19])


def probe_socket(path: str, proc: str = "/proc") -> Identity:
    """Connect to a socket, close at once, and say who listens. Raises OSError when nobody does.

    Never blocks: a listener whose queue is full (a frozen process) raises BlockingIOError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        client.connect(path)
        pid, _uid, _gid = _CREDENTIALS.unpack(
            client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
    if pid > 0:
        try:
            return Identity(pid, start_time_of(pid, proc))
        except (OSError, ValueError, IndexError):
            pass
    return Identity(pid, os.stat(path).st_ctime_ns)


def accepts(path: str) -> bool:
    """Tell whether anybody listens on a socket, even one too busy to accept."""
    try:
        probe_socket(path)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True
