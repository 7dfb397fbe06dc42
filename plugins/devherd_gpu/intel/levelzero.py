"""What Intel's Level Zero sidecar says of a GPU, where it runs on this node.

`Levelzero/GetDeviceHealth` and `/GetDeviceTemperature` take the PCI address (field 1). A field that is false is not
sent, so an answer with an error (field 42) says nothing of the GPU, and no answer at all is for none.
"""

from __future__ import annotations

import os
import struct

from devherd_gpu.common import protowire
from devherd_gpu.common.unary import CallError, call

TIMEOUT = 2.0
_PARTS = {1: "memory", 2: "bus", 3: "SoC"}
_SENSORS = {1: "", 2: "GPU ", 3: "memory "}
_ERROR = 42


def request(address: str) -> bytes:
    """The question about one GPU."""
    data = address.encode()
    return b"\x0a" + bytes([len(data)]) + data


def bad_parts(socket_path: str, address: str) -> list[str] | None:
    """Parts of the GPU that are not well; None when there is no answer to go by."""
    answer = _ask(socket_path, "GetDeviceHealth", address)
    return None if answer is None else parse_health(answer)


def temperatures(socket_path: str, address: str) -> dict[str, float] | None:
    """Sensor -> °C; None when there is no answer to go by."""
    answer = _ask(socket_path, "GetDeviceTemperature", address)
    return None if answer is None else parse_temperatures(answer)


def parse_health(message: bytes) -> list[str] | None:
    """The same from a response."""
    found = dict(protowire.fields(message))
    if _ERROR in found:
        return None
    return [name for field, name in _PARTS.items() if not found.get(field)]


def parse_temperatures(message: bytes) -> dict[str, float] | None:
    """The same from a response; doubles are eight bytes, little endian."""
    found = dict(protowire.fields(message))
    if _ERROR in found:
        return None
    values = {name: found.get(field) for field, name in _SENSORS.items()}
    return {
        f"{name}temperature": struct.unpack("<d", value)[0]
        for name, value in values.items()
        if isinstance(value, bytes) and len(value) == 8
    }


def _ask(socket_path: str, method: str, address: str) -> bytes | None:
    if not socket_path or not os.path.exists(socket_path):
        return None
    try:
        return call(socket_path, f"/Levelzero/{method}", request(address), TIMEOUT)
    except (CallError, protowire.WireError):
        return None
