"""A unary gRPC call as a few bytes on a socket: a client that costs next to nothing, so that the server is measured.

gRPC's own Python client needs as long for a call as our server does, and a kubelet is no Python program.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_ROOM = 2**31 - 1 - 65535
"""What RFC 9113's largest flow control window adds to the first one."""


class CallError(Exception):
    """The call was answered with a status instead of a message, or not at all."""


class PluginSocket:
    """One connection to a plugin's server; `call` is one request and its reply, both without framing."""

    def __init__(self, path: str, timeout: float = 60.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._socket.connect(path)
        self._buffer = b""
        self._stream = 1
        # SETTINGS_INITIAL_WINDOW_SIZE (4) for streams, WINDOW_UPDATE for the connection.
        settings = _frame(_SETTINGS, 0, 0, struct.pack("!HI", 4, 2**31 - 1))
        self._socket.sendall(_PREFACE + settings + _frame(_WINDOW_UPDATE, 0, 0, struct.pack("!I", _ROOM)))

    def __enter__(self) -> PluginSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def call(self, method: str, request: bytes) -> bytes:
        """Call a method of v1beta1.DevicePlugin. Raises CallError, OSError."""
        stream, self._stream = self._stream, self._stream + 2
        message = struct.pack("!BI", 0, len(request)) + request
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, stream, _headers(f"/v1beta1.DevicePlugin/{method}"))
            + _frame(_DATA, _END_STREAM, stream, message)
        )
        reply = b""
        while True:
            kind, flags, of, body = self._receive()
            if kind == _DATA and of == stream:
                reply += body
            elif kind == _HEADERS and of == stream and flags & _END_STREAM:
                break
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                self._socket.sendall(_frame(kind, _ACK, 0, body if kind == _PING else b""))
            elif kind == _GOAWAY:
                raise CallError("the server ends the connection")
        if len(reply) < 5:
            raise CallError(f"{method}: refused")
        return reply[5:]

    def _receive(self) -> tuple[int, int, int, bytes]:
        self._fill(9)
        length = int.from_bytes(self._buffer[:3], "big")
        kind, flags, stream = struct.unpack("!BBI", self._buffer[3:9])
        self._fill(9 + length)
        body, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
        return kind, flags, stream & 0x7FFFFFFF, body

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            piece = self._socket.recv(65536)
            if not piece:
                raise CallError("the server closed the connection")
            self._buffer += piece


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + body


def _headers(path: str) -> bytes:
    """HPACK (RFC 7541): entries of the static table, or literals that are not indexed, without Huffman coding."""
    post, http = b"\x83", b"\x86"
    named = [(b"\x04", path), (b"\x01", "localhost"), (b"\x0f\x10", "application/grpc")]
    te = b"\x00" + _text("te") + _text("trailers")
    return post + http + b"".join(name + _text(value) for name, value in named) + te


def _text(value: str) -> bytes:
    data = value.encode("ascii")
    assert len(data) < 127
    return bytes([len(data)]) + data
