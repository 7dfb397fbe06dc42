"""Hardware events: the kernel's uevents, or udev's after its rules ran, straight from netlink.

pyudev would do the same for one to two megabytes more in every process that listens.
"""

from __future__ import annotations

import os
import socket
import struct

NETLINK_KOBJECT_UEVENT = 15
KERNEL, UDEV = 1, 2
"""Multicast groups."""
AT_ONCE = 64
"""Events read in one turn, so that a storm of them delays nothing else."""
_UDEV_HEADER = struct.Struct("=8sIIII")

Properties = dict[str, str]


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

    def take(self) -> tuple[list[Properties], bool]:
        """Up to AT_ONCE events that are there, and whether the kernel dropped some because too many came."""
        found: list[Properties] = []
        lost = False
        for _ in range(AT_ONCE):
            data = self._next()
            if data is None:
                break
            if data:
                found.append(properties(data))
            lost = lost or not data
        return found, lost

    def _next(self) -> bytes | None:
        """A message; empty where some were dropped, None when there is none."""
        try:
            return self._sock.recv(65536)
        except BlockingIOError:
            return None
        except OSError:  # ENOBUFS
            return b""

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def properties(data: bytes) -> Properties:
    """A message's variables (`ACTION`, `SUBSYSTEM`, `DEVPATH`, ...); empty for one that is none."""
    start = data.find(b"\0") + 1
    if data.startswith(b"libudev\0"):
        if len(data) < _UDEV_HEADER.size:
            return {}
        start = _UDEV_HEADER.unpack_from(data)[3]
    words = (word.decode(errors="replace").partition("=") for word in data[start:].split(b"\0") if b"=" in word)
    return {key: value for key, _, value in words}
