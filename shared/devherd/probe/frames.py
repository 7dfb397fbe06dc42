"""Frames of `wire` over a blocking socket."""

from __future__ import annotations

import socket

from devherd.probe import wire


class Ended(Exception):
    """The front closed its end."""


class FrontLink:
    """The probe's end. A frame is read when the first of its bytes is there, and then to its end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = wire.request_decoder()

    def fileno(self) -> int:
        """For polling."""
        return self._sock.fileno()

    def receive(self) -> wire.Request:
        """The next request. Raises Ended, or msgspec.DecodeError when the front speaks another language."""
        (length,) = wire.HEADER.unpack(self._read(wire.HEADER.size))
        if length > wire.MAX_FRAME:
            raise Ended
        return self._decoder.decode(self._read(length))

    def send(self, reply: wire.Reply) -> None:
        """Send a frame; waits while the front is busy. Raises Ended."""
        try:
            self._sock.sendall(wire.encode(reply))
        except OSError:
            raise Ended from None

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._sock.recv_into(view)
            except OSError:
                raise Ended from None
            if count == 0:
                raise Ended
            view = view[count:]
        return data
