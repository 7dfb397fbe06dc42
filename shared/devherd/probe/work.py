"""The vendor's calls, each turned into a reply: a vendor may raise or return nonsense, never break the probe."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from devherd.probe import wire
from devherd.probe.files import Files
from devherd.values import Device, Evidence, Inventory
from devherd.vendor import Checks, Prepares, Repairs, Vendor, Watches

CAPABILITIES: dict[str, type[Any]] = {"watches": Watches, "checks": Checks, "prepares": Prepares, "repairs": Repairs}


def capabilities(vendor: Vendor) -> tuple[str, ...]:
    """Names of the optional protocols the vendor fulfils."""
    return tuple(name for name, protocol in CAPABILITIES.items() if isinstance(vendor, protocol))


def failed(number: int, error: BaseException, doing: str) -> wire.Failed:
    """The reply for a call that raised."""
    text = " ".join(str(error).split()) or "no text"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return wire.Failed(number, f"{doing}: {type(error).__name__}: {text}"[:1000], trace[-8000:])


class Work:
    """Answers requests with one vendor, and remembers the last scan for the checks."""

    def __init__(self, vendor: Vendor, files: Files) -> None:
        self._vendor = vendor
        self._files = files
        self._devices: tuple[Device, ...] = ()
        self._digest = ""
        self._life = f"{os.getpid()}-{time.monotonic_ns()}"
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self._inventory = msgspec.msgpack.Decoder(Inventory)
        self._evidence = msgspec.msgpack.Decoder(tuple[Evidence, ...])

    def answer(self, request: wire.Request) -> wire.Reply:
        """Do what the request asks."""
        if isinstance(request, wire.Scan):
            return self._guarded(request.number, "scan", lambda: self._scan(request))
        if isinstance(request, wire.Check):
            return self._guarded(request.number, "check", lambda: self._check(request))
        if isinstance(request, wire.Prepare):
            return self._guarded(request.number, "prepare", lambda: self._prepare(request))
        if isinstance(request, wire.Repair):
            return self._guarded(request.number, "repair", lambda: self._repair(request))
        return wire.Failed(request.number, f"a probe cannot answer {type(request).__name__} now")

    def _guarded(self, number: int, doing: str, call: Callable[[], wire.Reply]) -> wire.Reply:
        try:
            return call()
        except (Exception, SystemExit) as error:
            return failed(number, error, doing)

    def _scan(self, request: wire.Scan) -> wire.Reply:
        started = time.monotonic()
        inventory = self._published(self._vendor.scan())
        seconds = time.monotonic() - started
        body = self._encoder.encode(inventory)
        digest = self._digest_of(body)
        if digest != self._digest:
            # Structs check nothing when built; what the front could not decode is the vendor's mistake, found here.
            self._inventory.decode(body)
            self._devices = tuple(device for resource in inventory.resources for device in resource.devices)
            self._digest = digest
        return wire.Scanned(request.number, digest, seconds, None if digest == request.known else inventory)

    def _published(self, inventory: Inventory) -> Inventory:
        """The inventory without its files, which are on the host now, and with what could not be written."""
        problems = self._files.publish(inventory.files)
        if not inventory.files and not problems:
            return inventory
        return msgspec.structs.replace(inventory, files=(), skipped=(*inventory.skipped, *problems))

    def _digest_of(self, body: bytes) -> str:
        # Python keys its 64-bit hash anew in each process, so a digest carries the life it means something in.
        # hashlib would bring OpenSSL into a process that must stay small.
        return f"{self._life}-{len(body)}-{hash(body) & 0xFFFFFFFFFFFFFFFF:016x}"

    def _check(self, request: wire.Check) -> wire.Reply:
        started = time.monotonic()
        found: tuple[Evidence, ...] = ()
        if isinstance(self._vendor, Checks):
            found = tuple(self._vendor.check(self._devices))
            self._evidence.decode(self._encoder.encode(found))
        return wire.Checked(request.number, found, time.monotonic() - started)

    def _prepare(self, request: wire.Prepare) -> wire.Reply:
        if not isinstance(self._vendor, Prepares):
            return wire.Done(request.number)
        return wire.Done(request.number, _text(self._vendor.prepare(request.resource, request.ids)))

    def _repair(self, request: wire.Repair) -> wire.Reply:
        if not isinstance(self._vendor, Repairs):
            return wire.Done(request.number, "this vendor knows no repair")
        return wire.Done(request.number, _text(self._vendor.repair(request.thing, request.attempt)))


def _text(result: object) -> str:
    """A vendor that forgets its return value said nothing against it."""
    return "" if result is None else str(result)
