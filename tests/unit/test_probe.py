"""The probe: what its front sees over the socketpair, whatever the vendor does."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from devherd.probe import wire
from devherd.probe.files import Files
from devherd.probe.frames import FrontLink
from devherd.probe.loop import serve
from devherd.settings import Paths
from devherd.values import Device, Evidence, HostFile, Inventory, Parts, Resource
from devherd.vendor import Vendor

NOWHERE = Paths(cdi="/nonexistent/cdi", features="/nonexistent/features", state="/nonexistent/state")


class Front:
    """The front's end, blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(10)
        self._file = sock.makefile("rb")
        self._decoder = wire.reply_decoder()

    def send(self, request: wire.Request) -> None:
        self.sock.sendall(wire.encode(request))

    def receive(self) -> wire.Reply:
        (length,) = wire.HEADER.unpack(self._file.read(wire.HEADER.size))
        return self._decoder.decode(self._file.read(length))

    def ask(self, request: wire.Request) -> Any:
        self.send(request)
        return self.receive()


@contextmanager
def probing(vendor: object, paths: Paths = NOWHERE) -> Iterator[tuple[Front, wire.Ready]]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(FrontLink(theirs), cast(Vendor, vendor), Files(paths, "plugin")))
    thread.start()
    front = Front(ours)
    try:
        ready = front.receive()
        assert isinstance(ready, wire.Ready)
        yield front, ready
    finally:
        front._file.close()
        ours.close()
        thread.join(10)
        theirs.close()
        assert not thread.is_alive()


def device(name: str, **attributes: str) -> Device:
    return Device(id=name, things=(f"sys:/devices/{name}",), parts=Parts(), attributes=attributes)


class Plain:
    def __init__(self, *names: str) -> None:
        self.names = names
        self.attributes: dict[str, str] = {}

    def scan(self) -> Inventory:
        return Inventory((Resource("a.example/x", tuple(device(n, **self.attributes) for n in self.names)),))


class Pipe:
    """An event source over a pipe."""

    def __init__(self, name: str = "pipe") -> None:
        self.read, self.write = os.pipe2(os.O_NONBLOCK)
        self.name = name
        self.drains = 0
        self.broken = False

    def fileno(self) -> int:
        return self.read

    def drain(self) -> str:
        if self.broken:
            self.broken = False
            raise OSError("netlink is gone")
        self.drains += 1
        try:
            return self.name if os.read(self.read, 65536) else ""
        except BlockingIOError:
            return ""

    def fire(self) -> None:
        os.write(self.write, b"x")

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


def test_a_scan_is_sent_once_and_then_only_its_digest() -> None:
    vendor = Plain("d0", "d1")
    with probing(vendor) as (front, ready):
        assert ready.pid == os.getpid()
        assert ready.capabilities == ()
        first = front.ask(wire.Scan(1))
        assert first.number == 1
        assert [d.id for d in first.inventory.resources[0].devices] == ["d0", "d1"]
        again = front.ask(wire.Scan(2, known=first.digest))
        assert (again.number, again.digest, again.inventory) == (2, first.digest, None)
        vendor.names = ("d0",)
        other = front.ask(wire.Scan(3, known=first.digest))
        assert other.digest != first.digest
        assert [d.id for d in other.inventory.resources[0].devices] == ["d0"]


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    vendor = Plain("d0")
    vendor.attributes = {"a": "1", "b": "2"}
    with probing(vendor) as (front, _):
        first = front.ask(wire.Scan(1))
        vendor.attributes = {"b": "2", "a": "1"}
        assert front.ask(wire.Scan(2)).digest == first.digest


class Everything(Plain):
    def __init__(self) -> None:
        super().__init__("d0")
        self.pipe = Pipe()
        self.asked: list[tuple[object, ...]] = []

    def sources(self) -> Sequence[Pipe]:
        return [self.pipe]

    def check(self, devices: Sequence[Device]) -> Iterable[Evidence]:
        for item in devices:
            yield Evidence(item.things[0], "link", True, "port is down")

    def prepare(self, resource: str, ids: Sequence[str]) -> str:
        self.asked.append((resource, *ids))
        return "still in use" if "d9" in ids else ""

    def repair(self, thing: str, attempt: int) -> str:
        self.asked.append((thing, attempt))
        return ""


def test_every_capability_is_named_and_reachable() -> None:
    vendor = Everything()
    with probing(vendor) as (front, ready):
        assert ready.capabilities == ("watches", "checks", "prepares", "repairs")
        assert front.ask(wire.Check(1)).evidence == ()
        front.ask(wire.Scan(2))
        (evidence,) = front.ask(wire.Check(3)).evidence
        assert (evidence.thing, evidence.reason) == ("sys:/devices/d0", "port is down")
        assert front.ask(wire.Prepare(4, "a.example/x", ("d0",))) == wire.Done(4)
        assert front.ask(wire.Prepare(5, "a.example/x", ("d9",))) == wire.Done(5, "still in use")
        assert front.ask(wire.Repair(6, "sys:/devices/d0", 2)) == wire.Done(6)
        assert vendor.asked == [("a.example/x", "d0"), ("a.example/x", "d9"), ("sys:/devices/d0", 2)]


def test_without_the_capability_nothing_is_wrong_with_a_prepare_and_a_check() -> None:
    with probing(Plain("d0")) as (front, _):
        assert front.ask(wire.Prepare(1, "a.example/x", ("d0",))) == wire.Done(1)
        assert front.ask(wire.Check(2)).evidence == ()
        assert "no repair" in front.ask(wire.Repair(3, "t", 0)).error


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def scan(self) -> Inventory:
        if self.error:
            raise self.error
        return Inventory(absent="no card")

    def check(self, devices: Sequence[Device]) -> Iterable[Evidence]:
        yield Evidence("t", "k", True)
        raise self.error or ValueError


@pytest.mark.parametrize(
    "error",
    [OSError(5, "Input/output error"), SystemExit(3), MemoryError(), RecursionError("deep"), ValueError("a\nb")],
)
def test_a_vendor_that_raises_is_reported_and_asked_again(error: BaseException) -> None:
    vendor = Raises(error)
    with probing(vendor) as (front, _):
        for number, request in ((1, wire.Scan(1)), (2, wire.Check(2))):
            reply = front.ask(request)
            assert isinstance(reply, wire.Failed)
            assert reply.number == number
            assert type(error).__name__ in reply.error
            assert "\n" not in reply.error
            assert "test_probe.py" in reply.trace
        vendor.error = None
        assert front.ask(wire.Scan(3)).inventory.absent == "no card"


@pytest.mark.parametrize(
    "result",
    [
        None,
        7,
        {"resources": 3},
        Inventory((Resource("a/b", (cast(Device, "d0"),)),)),
        Inventory(absent=cast(str, object())),
    ],
)
def test_a_vendor_that_returns_nonsense_is_the_vendors_failure_every_time(result: object) -> None:
    class Nonsense:
        def scan(self) -> Any:
            return result

    with probing(Nonsense()) as (front, _):
        for number in (1, 2):
            assert isinstance(front.ask(wire.Scan(number)), wire.Failed)


def test_a_burst_of_events_becomes_one_hint_and_few_drains() -> None:
    vendor = Everything()
    with probing(vendor) as (front, _):
        until = time.monotonic() + 0.3
        started = time.monotonic()
        vendor.pipe.fire()
        assert front.receive() == wire.Hint("pipe")
        assert time.monotonic() - started < 0.25
        fired = 0
        while time.monotonic() < until:
            vendor.pipe.fire()
            fired += 1
            time.sleep(0.0005)
        front.send(wire.Check(1))
        hints = 0
        while isinstance(front.receive(), wire.Hint):
            hints += 1
        assert fired > 100
        assert 1 <= hints <= 16
        assert vendor.pipe.drains <= 20


def test_an_event_during_a_scan_is_not_lost() -> None:
    vendor = Everything()
    scan = vendor.scan

    def scan_and_fire() -> Inventory:
        vendor.pipe.fire()
        return scan()

    vendor.scan = scan_and_fire  # type: ignore[method-assign]
    with probing(vendor) as (front, _):
        assert isinstance(front.ask(wire.Scan(1)), wire.Scanned)
        assert front.receive() == wire.Hint("pipe")


def test_sources_that_break_are_opened_again_and_a_scan_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devherd.probe.sources.REOPEN", (0.05, 1.0))

    class Reopened(Everything):
        def sources(self) -> Sequence[Pipe]:
            self.pipe = Pipe("second" if self.asked else "first")
            self.asked.append(())
            return [self.pipe]

    vendor = Reopened()
    with probing(vendor) as (front, _):
        vendor.pipe.broken = True
        vendor.pipe.fire()
        assert front.receive() == wire.Hint("events lost")
        assert front.receive() == wire.Hint("events lost")
        vendor.pipe.fire()
        assert front.receive() == wire.Hint("second")


def test_sources_that_cannot_be_opened_do_not_stop_the_probe() -> None:
    class Deaf(Everything):
        def sources(self) -> Sequence[Pipe]:
            raise PermissionError("netlink")

    with probing(Deaf()) as (front, _):
        assert isinstance(front.ask(wire.Scan(1)), wire.Scanned)


def test_stop_ends_it_and_a_second_configure_is_refused() -> None:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(FrontLink(theirs), Plain("d0"), Files(NOWHERE, "plugin")))
    thread.start()
    front = Front(ours)
    assert isinstance(front.receive(), wire.Ready)
    from devherd.settings import Settings

    reply = front.ask(wire.Configure(4, Settings(), msgspec.Raw(msgspec.msgpack.encode({}))))
    assert isinstance(reply, wire.Failed)
    assert reply.number == 4
    front.send(wire.Stop())
    thread.join(10)
    assert not thread.is_alive()
    front._file.close()
    ours.close()
    theirs.close()


class WithFiles(Plain):
    path = ""

    def scan(self) -> Inventory:
        found = super().scan()
        wanted = (HostFile(self.path, "text"), HostFile("/elsewhere/x", "text"))
        return Inventory(found.resources, files=wanted)


def test_files_are_on_the_host_before_the_scan_is_answered(tmp_path: Path) -> None:
    vendor = WithFiles("d0")
    vendor.path = str(tmp_path / "cdi" / "a.json")
    paths = Paths(cdi=str(tmp_path / "cdi"), features=str(tmp_path / "f"), state=str(tmp_path))
    with probing(vendor, paths) as (front, _):
        reply = front.ask(wire.Scan(1))
        assert (tmp_path / "cdi" / "a.json").read_text() == "text"
        assert reply.inventory.files == ()
        assert [one.what for one in reply.inventory.skipped] == ["/elsewhere/x"]
        assert reply.inventory.resources == vendor.scan().resources
