"""A simulated node from a capture of a real one: the same files below another root, and the same that can happen to it.

What a capture says of hardware is its sysfs folder. To lose a device is to lose that folder, everything that leads
there, and every device node on it; to move one to another number is to rename it in its folder and wherever it is
linked.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from devherd.capture.about import describe
from devherd.capture.archive import Capture
from devherd.sim.files import NodeFiles
from devherd.sim.node import NodeError, no_device
from devherd.sim.nodespec import NodeSpec
from devherd.sim.places import NodeRoot

FOLDERS = ("/dev", "/sys/dev/char", "/sys/dev/block", "/sys/class", "/sys/bus/pci/devices", "/proc", "/etc")
_SLOT = re.compile(r"^(.*?)([0-9]+)$")
_HARDWARE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]|[0-9]+-[0-9.]+|LNX\S+|\S+\.auto")
"""Names of folders that stand for hardware: a PCI function, a USB device, a platform device."""


@dataclass
class Lost:
    """What went with broken hardware, one for all its device nodes: links and texts by path."""

    links: dict[str, str]
    texts: dict[str, str]


@dataclass
class Piece:
    """One device node: its number, and the sysfs folder its number leads to (empty: none is known)."""

    path: str
    kind: str
    major: int
    minor: int
    folder: str = ""
    lost: Lost | None = None

    @property
    def present(self) -> bool:
        """Whether it is there."""
        return self.lost is None

    @property
    def number_link(self) -> str:
        """The link from its number to its folder."""
        return f"/sys/dev/{'char' if self.kind == 'c' else 'block'}/{self.major}:{self.minor}"

    @property
    def slots(self) -> tuple[str, str, int]:
        """What the kernel numbers together: pieces that differ in their last digits only."""
        found = _SLOT.match(self.path)
        return (found[1] if found else self.path, self.kind, self.major)


class ReplayedNode:
    """Like `devherd.sim.node.Node`, built from a capture."""

    def __init__(self, capture: Capture, root: str) -> None:
        self.spec = NodeSpec(name="captured", title=describe(capture))
        self._files = NodeFiles(root)
        self._links: dict[str, str] = dict(capture.links)
        self._texts: dict[str, str] = {path: text for path, text in capture.files.items() if path.startswith("/sys/")}
        self._pieces = [self._piece(path, number) for path, number in sorted(capture.nodes.items(), key=_natural)]
        # The names and numbers the kernel has for devices, whoever sits there now.
        self._slots = {piece.path: (piece.slots, piece.minor) for piece in self._pieces}

    @classmethod
    def build(cls, capture: Capture, root: str) -> ReplayedNode:
        """Create the files below an empty or missing folder."""
        node = cls(capture, root)
        files = node._files
        for path in (*FOLDERS, *sorted(capture.folders)):
            files.folder(path)
        for path, text in capture.files.items():
            files.write(path, text)
        for path in capture.nodes:
            files.write(path, "")
        for path, target in capture.links.items():
            if target.startswith("/sys/") and target not in capture.links and target not in capture.files:
                files.folder(target)
            files.link(path, target)
        files.write("/etc/machine-id", node.spec.machine_id + "\n")
        files.new_boot_id()
        node._write_table()
        return node

    def _piece(self, path: str, number: str) -> Piece:
        kind, major, minor = number.split()
        piece = Piece(path, kind, int(major), int(minor))
        target = self._links.get(piece.number_link, "")
        piece.folder = target if target.startswith("/sys/devices/") else ""
        return piece

    # Where things are

    @property
    def root(self) -> str:
        """Where its files are."""
        return self._files.root

    @property
    def rdev_table(self) -> str:
        """The file with device numbers, for `paths.rdev_table`."""
        return self._files.rdev_table

    @property
    def places(self) -> NodeRoot:
        """For the simulated kubelet's container runtime."""
        paths = self._files.paths()
        return NodeRoot(self.root, paths["dev"], paths["sys"], self.rdev_table)

    def paths(self) -> dict[str, str]:
        """The part of the settings' `paths` that points into this node."""
        return self._files.paths()

    def present(self) -> list[str]:
        """Device nodes that are there, as logical paths."""
        return [piece.path for piece in self._pieces if piece.present]

    def absent(self) -> list[str]:
        """Device nodes whose device is broken."""
        return [piece.path for piece in self._pieces if not piece.present]

    def thing(self, path: str) -> str:
        """The hardware behind a device node that is there: `sys:/devices/...`, or its number where nothing is known."""
        piece = self._at(path, present=True)
        return f"sys:{piece.folder[4:]}" if piece.folder else f"{piece.kind}:{piece.major}:{piece.minor}"

    def hardware(self, path: str) -> str:
        """The sysfs folder of the hardware behind a device node; stays the same when its number moves."""
        return self._hardware(self._at(path, present=True))[4:]

    @property
    def boot_id(self) -> str:
        """This boot's id."""
        return self._files.boot_id

    # What happens

    def break_device(self, path: str) -> None:
        """The hardware falls off the bus, with every device node that is on it."""
        piece = self._at(path, present=True)
        folder = self._hardware(piece)
        gone = [other for other in self._pieces if other.present and (other is piece or _below(other.folder, folder))]
        links = {at: to for at, to in self._links.items() if _goes(at, to, folder, gone)}
        texts = {at: text for at, text in self._texts.items() if _below(at, folder)}
        for at in (*links, *(other.path for other in gone)):
            self._files.remove(at)
            self._links.pop(at, None)
        for at in texts:
            self._files.remove(at)
            del self._texts[at]
        if folder:
            self._remove_folders(folder)
        lost = Lost(links, texts)
        for other in gone:
            other.lost = lost
        self._write_table()

    def heal_device(self, path: str) -> None:
        """Broken hardware comes back with all its device nodes, in the slots it had."""
        lost = self._at(path, present=False).lost
        assert lost is not None
        back = [piece for piece in self._pieces if piece.lost is lost]
        for piece in back:
            if piece.path in self.present():
                raise NodeError(f"{piece.path} belongs to another device by now")
        for at, text in lost.texts.items():
            self._put_text(at, text)
        for piece in back:
            if piece.folder:
                self._files.folder(piece.folder)
            self._files.write(piece.path, "")
            piece.lost = None
        self._write_table()
        for at, to in lost.links.items():
            self._put_link(at, to)

    def renumber(self, moves: dict[str, str]) -> None:
        """Devices change numbers, all at once: `{"/dev/x5": "/dev/x4"}` makes x4 what was x5. Swaps are fine."""
        moving = [(self._at(old, present=True), new) for old, new in moves.items()]
        free = {piece.path for piece in self._pieces if piece.present} - set(moves)
        targets = []
        for piece, new in moving:
            slots, minor = self._slots.get(new, (None, 0))
            if slots != piece.slots:
                raise NodeError(f"{new} is no name that {piece.path} can have")
            if new in free:
                raise NodeError(f"{new} is in use; break or move its device as well")
            free.add(new)
            targets.append((piece, new, minor))
        self._move(targets)

    def reboot(self, *, compact: bool = True) -> None:
        """A new boot id; with `compact` the kernel numbers what it finds from its first number on."""
        groups: dict[tuple[str, str, int], list[str]] = {}
        for path, (slots, _) in self._slots.items() if compact else ():
            groups.setdefault(slots, []).append(path)
        for slots, paths in groups.items():
            found = [piece for piece in self._pieces if piece.present and piece.slots == slots]
            moves = {piece.path: slot for piece, slot in zip(found, paths, strict=False) if piece.path != slot}
            # Only where the kernel numbers: a name that is a word stays.
            if moves and all(_SLOT.match(path) for path in paths):
                self.renumber(moves)
        self._files.new_boot_id()

    # Moving

    def _move(self, targets: list[tuple[Piece, str, int]]) -> None:
        renames: dict[str, str] = {}
        aliases = {at: to for at, to in self._links.items() if any(to == piece.path for piece, _, _ in targets)}
        for piece, new, _ in targets:
            self._files.remove(piece.path)
            self._drop_link(piece.number_link)
            if piece.folder and posixpath.basename(piece.folder) == posixpath.basename(piece.path):
                renames[piece.folder] = posixpath.join(posixpath.dirname(piece.folder), posixpath.basename(new))
        self._rename(renames)
        names = {piece.path: new for piece, new, _ in targets}
        for piece, new, minor in targets:
            piece.path, piece.minor = new, minor
            piece.folder = renames.get(piece.folder, piece.folder)
            self._files.write(new, "")
        self._write_table()
        for piece, _, _ in targets:
            if piece.folder:
                self._rewrite_number(piece)
                self._put_link(piece.number_link, piece.folder)
        for at, to in aliases.items():
            self._put_link(at, names[to])

    def _rename(self, renames: Mapping[str, str]) -> None:
        """Rename sysfs folders, all at once, and what links to them; a class link has its device's name."""
        if not renames:
            return
        names = {posixpath.basename(old): posixpath.basename(new) for old, new in renames.items()}
        links = [(at, to) for at, to in self._links.items() if _moved(at, renames) != at or _moved(to, renames) != to]
        texts = [(at, text) for at, text in self._texts.items() if _moved(at, renames) != at]
        for at, _ in links:
            self._drop_link(at)
        for at, _ in texts:
            self._files.remove(at)
            del self._texts[at]
        for old in renames:
            self._remove_folders(old)
        for at, text in texts:
            self._put_text(_moved(at, renames), text)
        for new in renames.values():
            self._files.folder(new)
        for at, to in links:
            name = posixpath.basename(at)
            named = to in renames and name == posixpath.basename(to)
            place = posixpath.join(posixpath.dirname(at), names[name]) if named else _moved(at, renames)
            self._put_link(place, _moved(to, renames))

    def _rewrite_number(self, piece: Piece) -> None:
        at = f"{piece.folder}/dev"
        if at in self._texts:
            self._put_text(at, f"{piece.major}:{piece.minor}\n")
        at = f"{piece.folder}/uevent"
        if at in self._texts:
            text = re.sub(r"(?m)^MINOR=.*$", f"MINOR={piece.minor}", self._texts[at])
            self._put_text(at, re.sub(r"(?m)^DEVNAME=.*$", f"DEVNAME={piece.path[5:]}", text))

    # Files

    def _at(self, path: str, *, present: bool) -> Piece:
        for piece in self._pieces:
            if piece.path == path and piece.present == present:
                return piece
        there = self.present() if present else self.absent()
        raise NodeError(no_device(path, there, "" if present else "broken "))

    @staticmethod
    def _hardware(piece: Piece) -> str:
        """The nearest folder above that stands for hardware of its own; else the device's own folder."""
        for folder in _upwards(piece.folder):
            if _HARDWARE.fullmatch(posixpath.basename(folder)):
                return folder
        return piece.folder

    def _put_link(self, at: str, to: str) -> None:
        self._files.link(at, to)
        self._links[at] = to

    def _drop_link(self, at: str) -> None:
        self._files.remove(at)
        self._links.pop(at, None)

    def _put_text(self, at: str, text: str) -> None:
        self._files.write(at, text)
        self._texts[at] = text

    def _remove_folders(self, folder: str) -> None:
        for at, _, _ in os.walk(self._files.real(folder), topdown=False):
            os.rmdir(at)

    def _write_table(self) -> None:
        self._files.write_rdev_table(
            f"{piece.path} {piece.kind} {piece.major} {piece.minor}" for piece in self._pieces if piece.present
        )


def _goes(at: str, to: str, folder: str, gone: list[Piece]) -> bool:
    """Whether a link goes with hardware: it is in its folder, leads there, or to one of its device nodes."""
    names = {name for piece in gone for name in (piece.path, piece.number_link)}
    return at in names or to in names or _below(at, folder) or _below(to, folder)


def _upwards(folder: str) -> Iterator[str]:
    while folder.count("/") > 3:
        yield folder
        folder = posixpath.dirname(folder)


def _below(path: str, folder: str) -> bool:
    return bool(folder) and (path == folder or path.startswith(folder + "/"))


def _moved(path: str, renames: Mapping[str, str]) -> str:
    for old, new in renames.items():
        if _below(path, old):
            return new + path[len(old) :]
    return path


def _natural(item: tuple[str, str]) -> tuple[str, int]:
    found = _SLOT.match(item[0])
    return (found[1], int(found[2])) if found else (item[0], -1)
