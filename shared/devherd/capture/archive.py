"""The file of a capture: a tar.gz that a person can look into, and that is read without trusting whoever made it.

capture.json           what this is, when and with which devherd it was taken, what is missing
etc/...                devherd.yaml and plugins.d/*.yaml
node/...               files, links and folders of the node, by their logical paths
rdev                   device numbers: `/dev/x4 c 240 4`; the nodes themselves are empty files
status.json, devices.json, kubelet.json, events.jsonl, history.jsonl
more/...               what a support bundle adds
"""

from __future__ import annotations

import gzip
import io
import json
import os
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1
LARGEST_MEMBER = 64 * 1024 * 1024
LARGEST = 512 * 1024 * 1024
"""Bytes a capture may unpack to."""
MOST_MEMBERS = 500_000
_NUMBER = re.compile(r"(.+) ([cb] [0-9]+ [0-9]+)")

Json = dict[str, Any]


class CaptureError(Exception):
    """The file is no capture, or cannot be written; the text says why and where."""


@dataclass
class Capture:
    """A capture in memory. Paths in `files`, `links` and `folders` are logical: `/sys/...`, `/dev/...`."""

    about: Json = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    nodes: dict[str, str] = field(default_factory=dict)
    """Device node -> number, `c 240 4`."""
    texts: dict[str, str] = field(default_factory=dict)
    """The other members by name: `etc/devherd.yaml`, `status.json`."""

    def document(self, name: str) -> Any:
        """A JSON member's value; None when it is missing or damaged."""
        try:
            return json.loads(self.texts[name])
        except (KeyError, ValueError, RecursionError):
            return None

    def plugin_configs(self) -> dict[str, str]:
        """Plugin name -> text of its configuration."""
        start, end = "etc/plugins.d/", ".yaml"
        names = [name for name in self.texts if name.startswith(start) and name.endswith(end)]
        return {name[len(start) : -len(end)]: self.texts[name] for name in sorted(names)}

    # Writing

    def save(self, path: str) -> None:
        """Write the file, mode 0600, complete or not at all. Raises CaptureError."""
        temp = f"{path}.{os.getpid()}.part"
        try:
            descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                with (
                    open(descriptor, "wb") as raw,
                    gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed,
                    tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
                ):
                    self._write(tar)
                os.replace(temp, path)
            except BaseException:
                os.unlink(temp)
                raise
        except OSError as error:
            raise CaptureError(f"{path} cannot be written: {error.strerror or error}") from None

    def _write(self, tar: tarfile.TarFile) -> None:
        _add_text(tar, "capture.json", json.dumps({**self.about, "format": FORMAT}, indent=1, ensure_ascii=False))
        for name, text in sorted(self.texts.items()):
            _add_text(tar, name, text)
        _add_text(tar, "rdev", "".join(f"{path} {number}\n" for path, number in sorted(self.nodes.items())))
        for path in sorted(self.folders):
            member = tarfile.TarInfo("node" + path)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for path, text in sorted({**self.files, **dict.fromkeys(self.nodes, "")}.items()):
            _add_text(tar, "node" + path, text)
        for path, target in sorted(self.links.items()):
            member = tarfile.TarInfo("node" + path)
            member.type, member.linkname = tarfile.SYMTYPE, relative(path, target)
            tar.addfile(member)

    # Reading

    @classmethod
    def load(cls, path: str) -> Capture:
        """Read a file. Raises CaptureError for one that is damaged, too large, of a newer format, or no capture."""
        try:
            with tarfile.open(path, mode="r:gz") as tar:
                return _read(tar, path)
        except (OSError, EOFError, tarfile.TarError, zlib.error, UnicodeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CaptureError(f"{path} is no readable capture: {reason}") from None


def _read(tar: tarfile.TarFile, path: str) -> Capture:
    capture, total, numbers = Capture(), 0, ""
    for count, member in enumerate(tar):
        name = member.name
        total += max(0, member.size)
        if count > MOST_MEMBERS or member.size > LARGEST_MEMBER or total > LARGEST:
            raise CaptureError(f"{path}: unpacks to more than a capture can be")
        if posixpath.normpath(name) != name or name.startswith(("/", "..")) or "\0" in name:
            raise CaptureError(f"{path}: member {name!r} leads out of it")
        if not name.startswith("node/"):
            if member.isreg():
                text = _text(tar, member)
                if name == "capture.json":
                    capture.about = json.loads(text)
                elif name == "rdev":
                    numbers = text
                else:
                    capture.texts[name] = text
            continue
        logical = name[4:]
        if member.issym():
            target = posixpath.normpath(f".{posixpath.dirname(logical)}/{member.linkname}")
            if member.linkname.startswith("/") or target.startswith(".."):
                raise CaptureError(f"{path}: link {name!r} leads out of it")
            capture.links[logical] = f"/{target}"
        elif member.isdir():
            capture.folders.add(logical)
        elif member.isreg():
            capture.files[logical] = _text(tar, member)
    _check(capture, path)
    for line in numbers.splitlines():
        found = _NUMBER.fullmatch(line)
        if found and capture.files.pop(found[1], None) is not None:
            capture.nodes[found[1]] = found[2]
    return capture


def _check(capture: Capture, path: str) -> None:
    found = capture.about.get("format") if isinstance(capture.about, dict) else None
    if not isinstance(found, int):
        raise CaptureError(f"{path} is no capture: it holds no capture.json that says its format")
    if found > FORMAT:
        raise CaptureError(f"{path} has format {found}, this devherd reads up to {FORMAT}: use a newer one")
    # Written through a link that is in the capture, a file would land anywhere.
    for logical in (*capture.files, *capture.links, *capture.folders):
        for parent in _above(logical):
            if parent in capture.links or parent in capture.files:
                raise CaptureError(f"{path}: member 'node{logical}' is below a file or link")


def _above(path: str) -> Iterator[str]:
    while (path := posixpath.dirname(path)) != "/":
        yield path


def relative(path: str, target: str) -> str:
    """The target of a link at `path`, relative to its folder, as the kernel and udev write them."""
    return posixpath.relpath(target, posixpath.dirname(path))


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """One object a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", "replace")
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    return file.read(LARGEST_MEMBER + 1).decode("utf-8", "replace") if file is not None else ""
