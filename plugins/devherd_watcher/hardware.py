"""Hardware that appears: the kernel's uevents, or udev's after its rules ran, straight from netlink.

pyudev would do the same for two megabytes more. Only subsystem and action are read, and nobody is believed more than
that: a forged event starts a program that looks for itself.
"""

from __future__ import annotations

import os
import socket
import struct

NETLINK_KOBJECT_UEVENT = 15
KERNEL, UDEV = 1, 2
"""Multicast groups."""
APPEARING = frozenset({"add", "bind", "change", "move", "online"})
AT_ONCE = 64
"""Events read in one turn, so that a storm of them delays nothing else."""
_UDEV_HEADER = struct.Struct("=8sIIII")
LOST = "*"
"""Stands for every subsystem: the kernel dropped events."""


class Uevents:
    """The netlink socket. Raises OSError where there is none (no right, no such protocol)."""

    def __init__(self, group: int = 0) -> None:
        group = group or (UDEV if os.path.exists("/run/udev/control") else KERNEL)
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._sock = socket.socket(socket.AF_NETLINK, kind, NETLINK_KOBJECT_UEVENT)
        try:
            self._sock.bind((0, group))
        except OSError:
            self._sock.close()
            raise

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._sock.fileno()

    def drain(self) -> set[str]:
        """Subsystems in which something appeared; LOST among them when events were dropped."""
        found = set()
        for _ in range(AT_ONCE):
            try:
                data = self._sock.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                # ENOBUFS: too many came at once.
                found.add(LOST)
                continue
            action, subsystem = parse(data)
            if action in APPEARING and subsystem:
                found.add(subsystem)
        return found

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def parse(data: bytes) -> tuple[str, str]:
    """Action and subsystem of a message; empty where it names none."""
    start = data.find(b"\0") + 1
    if data.startswith(b"libudev\0"):
        if len(data) < _UDEV_HEADER.size:
            return "", ""
        start = _UDEV_HEADER.unpack_from(data)[3]
    words = dict(word.split(b"=", 1) for word in data[start:].split(b"\0") if b"=" in word)
    return words.get(b"ACTION", b"").decode(errors="replace"), words.get(b"SUBSYSTEM", b"").decode(errors="replace")
