"""supervisord's event listener protocol: events in on stdin, READY and RESULT out on stdout."""

from __future__ import annotations

from typing import NamedTuple

READY = b"READY\n"
OK = b"RESULT 2\nOK"
MAX_EVENT = 1024 * 1024


class Event(NamedTuple):
    """One event. `fields` are the payload's `key:value` words, where it has such."""

    name: str
    fields: dict[str, str]


class EventStream:
    """Turns bytes into events, however they are cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Raises ValueError when this is not supervisord's protocol."""
        self._buffer += data
        events = []
        while (event := self._next()) is not None:
            events.append(event)
        return events

    def _next(self) -> Event | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > 4096:
                raise ValueError("no event header in 4096 bytes")
            return None
        header = words(self._buffer[:end].decode())
        length = int(header["len"]) if header.get("len", "").isdigit() else -1
        if "eventname" not in header or not 0 <= length <= MAX_EVENT:
            raise ValueError(f"not an event header: {bytes(self._buffer[:end])!r}")
        if len(self._buffer) < end + 1 + length:
            return None
        payload = bytes(self._buffer[end + 1 : end + 1 + length])
        del self._buffer[: end + 1 + length]
        first, _, _ = payload.decode(errors="replace").partition("\n")
        return Event(header["eventname"], words(first))


def words(line: str) -> dict[str, str]:
    """`key:value` words of a line."""
    return dict(word.split(":", 1) for word in line.split() if ":" in word)
