"""Reads protobuf's wire format (protobuf.dev, "Encoding") where a probe needs a few fields of one message."""

from __future__ import annotations

from collections.abc import Iterator

_FIXED = {1: 8, 5: 4}


class WireError(ValueError):
    """The bytes are no protobuf message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field number and value: an int for a varint, the bytes for everything else. Raises WireError."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise WireError(f"wire type {kind}")
        if place + length > len(data):
            raise WireError("cut short")
        yield key >> 3, data[place : place + length]
        place += length


def text(value: int | bytes) -> str:
    """A string field's value; empty for another kind."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
    raise WireError("cut short")
