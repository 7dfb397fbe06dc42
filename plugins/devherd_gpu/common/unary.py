"""One gRPC call over a unix socket, for a probe, which must not carry a gRPC library: HTTP/2 frames by hand.

Only what a short question to a local service needs (RFC 9113, and gRPC's PROTOCOL-HTTP2): one stream, no compression,
small messages. Response headers are not decoded; a call that brings no message has failed.
"""

from __future__ import annotations

import socket
import struct
import time

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 1, 4, 1, 8
_STREAM = 1
LARGEST = 1 << 20
"""Bytes of an answer that are read at most."""


class CallError(Exception):
    """The call failed; the text says how, for a person."""


def call(path: str, method: str, request: bytes = b"", timeout: float = 2.0) -> bytes:
    """Call `/package.Service/Method` on the socket `path`; returns the response message's bytes.

    `timeout` is in seconds, for the whole call. Raises CallError.
    """
    end = time.monotonic() + timeout
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout)
            sock.connect(path)
            sock.sendall(_opening(method, request, timeout))
            return _message(_body(_Frames(sock, end)))
    except TimeoutError:
        raise CallError(f"{path} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise CallError(f"{path}: {error.strerror or error}") from None


def _opening(method: str, request: bytes, timeout: float) -> bytes:
    block = b"\x83\x86"  # :method POST, :scheme http, from HPACK's static table
    block += _literal(4, method) + _literal(1, "localhost")
    for name, value in (
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", f"{max(1, int(timeout * 1000))}m"),
    ):
        block += b"\x00" + _text(name) + _text(value)
    message = struct.pack("!BI", 0, len(request)) + request
    window = struct.pack("!I", LARGEST)
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, struct.pack("!HI", 4, LARGEST))  # SETTINGS_INITIAL_WINDOW_SIZE
        + _frame(_WINDOW, 0, 0, window)
        + _frame(_HEADERS, _END_HEADERS, _STREAM, block)
        + _frame(_DATA, _END_STREAM, _STREAM, message)
    )


def _literal(index: int, value: str) -> bytes:
    """A header whose name is in the static table, not to be indexed."""
    return bytes([index]) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    return b"\x7f" + _varint(len(data) - 127) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _frame(kind: int, frame_flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, frame_flags, stream) + payload


class _Frames:
    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock = sock
        self._end = end

    def next(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and payload."""
        head = self._exactly(9)
        length = int.from_bytes(head[:3], "big")
        kind, frame_flags, stream = struct.unpack("!BBI", head[3:])
        return kind, frame_flags, stream & 0x7FFFFFFF, self._exactly(length)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def _exactly(self, count: int) -> bytes:
        if count > LARGEST:
            raise CallError("a frame is larger than any answer may be")
        found = bytearray()
        while len(found) < count:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            more = self._sock.recv(count - len(found))
            if not more:
                raise CallError("the service closed the connection without an answer")
            found += more
        return bytes(found)


def _body(frames: _Frames) -> bytes:
    """The data of our stream, to its end."""
    found = bytearray()
    while True:
        kind, frame_flags, stream, payload = frames.next()
        if kind == _SETTINGS and not frame_flags & _ACK:
            frames.send(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not frame_flags & _ACK:
            frames.send(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY or (kind == _RST and stream == _STREAM):
            raise CallError("the service ended the call")
        elif kind == _DATA and stream == _STREAM:
            if frame_flags & _PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            found += payload
            if len(found) > LARGEST:
                raise CallError("the answer is larger than any may be")
        if kind in (_DATA, _HEADERS) and stream == _STREAM and frame_flags & _END_STREAM:
            return bytes(found)


def _message(body: bytes) -> bytes:
    if len(body) < 5:
        raise CallError("the service answered with an error and no message")
    compressed, length = struct.unpack("!BI", body[:5])
    if compressed or len(body) < 5 + length:
        raise CallError("the service's message is compressed or cut short")
    return body[5 : 5 + length]
