"""systemd's notification socket (sd_notify(3)); nothing happens where there is none."""

from __future__ import annotations

import os
import socket


class Notifier:
    """Speaks to the NOTIFY_SOCKET that supervisord handed on."""

    def __init__(self) -> None:
        self._path = os.environ.get("NOTIFY_SOCKET", "")
        self._watchdog = bool(os.environ.get("WATCHDOG_USEC"))

    def ready(self) -> None:
        """The watcher is up. It says nothing about registrations."""
        self._send("READY=1")

    def stopping(self) -> None:
        """supervisord is shutting down."""
        self._send("STOPPING=1")

    def tick(self) -> None:
        """supervisord still sends events, so it is not hung."""
        if self._watchdog:
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(text.encode(), address)
        except OSError:
            # A full or missing socket is systemd's affair; the next tick tries again.
            return
