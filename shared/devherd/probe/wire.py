"""Messages between a front and its probe: msgpack frames over one socketpair, each with a 4-byte length.

The front asks, one request at a time, each with its own number and deadline; the probe answers with the same
number, or sends a Hint on its own when an event source fired. Nothing here imports grpc, asyncio or a vendor.
"""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from devherd.settings import Settings
from devherd.values import Evidence, Inventory

HEADER = struct.Struct("!I")
MAX_FRAME = 256 * 1024 * 1024


class Configure(Struct, frozen=True, tag=True):
    """Front: the first message. `config` is the plugin's own configuration, encoded; the probe knows its type.

    The probe reads no configuration file: what the front has validated is what the probe runs with.
    """

    number: int
    settings: Settings
    config: msgspec.Raw


class Scan(Struct, frozen=True, tag=True):
    """Front: scan the host. `known` is the digest of the inventory the front already has."""

    number: int
    known: str = ""


class Check(Struct, frozen=True, tag=True):
    """Front: gather health evidence about the devices of the last scan."""

    number: int


class Prepare(Struct, frozen=True, tag=True):
    """Front: PreStartContainer for these ids."""

    number: int
    resource: str
    ids: tuple[str, ...]


class Repair(Struct, frozen=True, tag=True):
    """Front: take step `attempt` of the reset ladder for a thing nobody holds."""

    number: int
    thing: str
    attempt: int


class Stop(Struct, frozen=True, tag=True):
    """Front: close everything and exit."""

    number: int = 0


class Ready(Struct, frozen=True, tag=True):
    """Probe: the vendor is loaded. `capabilities` are names of the optional protocols it fulfils."""

    pid: int
    capabilities: tuple[str, ...]


class Scanned(Struct, frozen=True, tag=True):
    """Probe: a scan's result. `inventory` is None when its digest equals `known`; seconds are monotonic."""

    number: int
    digest: str
    seconds: float
    inventory: Inventory | None = None


class Checked(Struct, frozen=True, tag=True):
    """Probe: evidence."""

    number: int
    evidence: tuple[Evidence, ...]
    seconds: float


class Done(Struct, frozen=True, tag=True):
    """Probe: a prepare or repair ended. `error` is empty on success."""

    number: int
    error: str = ""


class Failed(Struct, frozen=True, tag=True):
    """Probe: the vendor raised. The probe lives on; `error` is for a person, `trace` for the log."""

    number: int
    error: str
    trace: str = ""


class Hint(Struct, frozen=True, tag=True):
    """Probe: an event source fired; a rescan is due."""

    source: str


Request = Configure | Scan | Check | Prepare | Repair | Stop
Reply = Ready | Scanned | Checked | Done | Failed | Hint

_encoder = msgspec.msgpack.Encoder()


def encode(message: Request | Reply) -> bytes:
    """One frame, header included."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def request_decoder() -> msgspec.msgpack.Decoder[Request]:
    """Decoder for what a probe receives (frame body, no header)."""
    return msgspec.msgpack.Decoder(Request)


def reply_decoder() -> msgspec.msgpack.Decoder[Reply]:
    """Decoder for what a front receives (frame body, no header). Raises msgspec.DecodeError on rubbish."""
    return msgspec.msgpack.Decoder(Reply)
