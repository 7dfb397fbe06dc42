"""Reads a node's files for a capture, in a process of its own: `python -I -m devherd.capture.reader`.

An attribute of a sick device may never answer. Then the one who waits is this process, which its parent leaves behind;
what was read until then is in the capture. Settings and wishes come as JSON on stdin, entries go out as JSON lines.
"""

from __future__ import annotations

import glob
import os
import posixpath
import stat
import sys
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from devherd.capture import choice
from devherd.host import Host
from devherd.settings import Paths

LARGEST = 64 * 1024
MOST_ENTRIES = 200_000
DEEPEST = 6
MOST_MATCHES = 1000


class Order(Struct, frozen=True):
    """What to read: where the node's files are, device nodes to take whatever they are called, further patterns."""

    paths: Paths
    wanted: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


class Entry(Struct, frozen=True, omit_defaults=True):
    """One thing on a node, by its logical path.

    `kind`: `file` with its text, `link` with its logical target, `dir`, `node` with its number (`c 240 3`), `reading`:
    the folder that comes next (what the parent names when nothing more comes), `end`.
    """

    path: str
    kind: str
    text: str = ""


class Reader:
    """Walks a host once, what devices need first. Nothing is given twice."""

    def __init__(self, order: Order) -> None:
        self._order = order
        # Without links on the way: what the kernel says of a place must be found below these.
        real = {name: os.path.realpath(getattr(order.paths, name)) for name in ("root", "dev", "sys", "proc")}
        self._host = Host(msgspec.structs.replace(order.paths, **real))
        self._view = self._host.view()
        self._seen: set[str] = set()

    def entries(self) -> Iterator[Entry]:
        """Everything a capture takes."""
        nodes = list(self._nodes())
        yield from nodes
        for entry in nodes:
            if entry.kind == "node":
                yield from self._hardware(entry)
        for bus in choice.BUSES:
            yield from self._linked(f"/sys/bus/{bus}/devices")
        for name in choice.CLASSES:
            yield from self._linked(f"/sys/class/{name}", with_hardware=True)
        for pattern in (*choice.SYS, *choice.PROC, *self._order.patterns):
            yield from self._matching(pattern)
        yield from self._cmdline()

    # Device nodes

    def _nodes(self) -> Iterator[Entry]:
        links: list[tuple[str, str]] = []
        taken: set[str] = set()
        for path in self._walk("/dev"):
            real = self._host.path(path)
            entry = self._view.entry(path)
            if not entry.is_node or (self._boring(entry.path) and not self._asked(path, entry.path)):
                continue
            if os.path.islink(real):
                links.append((path, entry.path))
                continue
            taken.add(path)
            yield self._once(Entry(path, "node", f"{entry.type} {entry.major} {entry.minor}"))
        yield from (self._once(Entry(path, "link", target)) for path, target in links if target in taken)

    def _walk(self, folder: str, depth: int = 0) -> Iterator[str]:
        try:
            found = sorted(os.scandir(self._host.path(folder)), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in found:
            path = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if depth < DEEPEST and (not self._boring(path + "/") or self._asked_below(path)):
                    yield from self._walk(path, depth + 1)
            else:
                yield path

    @staticmethod
    def _boring(path: str) -> bool:
        return choice.BORING.match(path) is not None

    def _asked(self, *paths: str) -> bool:
        return any(path in self._order.wanted for path in paths)

    def _asked_below(self, folder: str) -> bool:
        return any(path.startswith(folder + "/") for path in self._order.wanted)

    # Hardware

    def _hardware(self, node: Entry) -> Iterator[Entry]:
        kind, major, minor = node.text.split()
        link = f"/sys/dev/{'char' if kind == 'c' else 'block'}/{major}:{minor}"
        folder = self._target(link)
        yield from self._link(link)
        subsystem = self._target(f"{folder}/subsystem") if folder else None
        if folder and subsystem and subsystem.startswith("/sys/class/"):
            yield from self._link(f"{subsystem}/{posixpath.basename(folder)}")

    def _linked(self, folder: str, with_hardware: bool = False) -> Iterator[Entry]:
        for name in self._view.names(folder):
            path = f"{folder}/{name}"
            # A pod's veth has no hardware, and its name is nobody's business.
            if not with_hardware or os.path.lexists(self._host.path(f"{path}/device")):
                yield from self._link(path)

    def _link(self, path: str) -> Iterator[Entry]:
        target = self._target(path)
        if target is None or path in self._seen:
            return
        yield self._once(Entry(path, "link", target))
        yield from self._folder(target)

    def _target(self, path: str) -> str | None:
        """Where a link leads, as a logical path; None when it is none, or leads out of /sys."""
        real = self._host.path(path)
        try:
            target = os.path.join(os.path.realpath(os.path.dirname(real)), os.readlink(real))
        except OSError:
            return None
        logical = self._host.logical(os.path.normpath(target))
        return logical if logical.startswith("/sys/") else None

    def _folder(self, path: str, depth: int = 0) -> Iterator[Entry]:
        """A device's folder with what we take from it, then the folders of the hardware above it."""
        while path.startswith("/sys/devices/") and path not in self._seen:
            yield from self._content(path, depth)
            path = posixpath.dirname(path)

    def _content(self, path: str, depth: int) -> Iterator[Entry]:
        yield self._once(Entry(path, "dir"))
        yield Entry(path, "reading")
        everything = choice.READ_ALL.fullmatch(posixpath.basename(path)) is not None
        try:
            found = sorted(os.scandir(self._host.path(path)), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in found:
            child = f"{path}/{entry.name}"
            if entry.is_symlink():
                target = self._target(child) if choice.LINKS.fullmatch(entry.name) else None
                if target is not None:
                    yield self._once(Entry(child, "link", target))
                    yield from self._folder(target)
            elif entry.is_dir():
                if depth < DEEPEST and choice.FOLDERS.fullmatch(entry.name) and child not in self._seen:
                    yield from self._content(child, depth + 1)
            elif everything or entry.name in choice.ATTRIBUTES:
                yield from self._file(child)

    # Single files

    def _matching(self, pattern: str) -> Iterator[Entry]:
        base = self._host.path(pattern)
        yield Entry(pattern, "reading")
        for real in sorted(glob.glob(base))[:MOST_MATCHES]:
            # By its real place: nothing in a capture lies behind a link that is in it.
            path = self._host.logical(os.path.realpath(real))
            if os.path.isfile(real) and path not in self._seen:
                yield from self._file(path)

    def _file(self, path: str) -> Iterator[Entry]:
        real = self._host.path(path)
        try:
            mode = os.stat(real).st_mode
            # What nobody may read is written to act.
            if not stat.S_ISREG(mode) or not mode & stat.S_IRUSR:
                return
            with open(real, "rb") as file:
                text = file.read(LARGEST)
        except OSError:
            return
        yield self._once(Entry(path, "file", text.decode("utf-8", "replace")))

    def _cmdline(self) -> Iterator[Entry]:
        try:
            with open(self._host.path("/proc/cmdline"), encoding="utf-8", errors="replace") as file:
                words = file.read(LARGEST).split()
        except OSError:
            return
        yield Entry("/proc/cmdline", "file", " ".join(word for word in words if choice.CMDLINE.match(word)) + "\n")

    def _once(self, entry: Entry) -> Entry:
        self._seen.add(entry.path)
        return entry


def main() -> int:
    """Read an Order from stdin, write entries to stdout."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    encoder = msgspec.json.Encoder()
    out = sys.stdout.buffer
    for number, entry in enumerate(Reader(order).entries()):
        out.write(encoder.encode(entry) + b"\n")
        if entry.kind == "reading":
            out.flush()  # what comes next may take for ever
        if number > MOST_ENTRIES:
            break
    out.write(encoder.encode(Entry("", "end")) + b"\n")
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
