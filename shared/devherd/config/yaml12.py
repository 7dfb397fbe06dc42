"""Reads a YAML 1.2 text into a tree that knows the place and the exact text of every scalar.

The tree is built from the parser's event stream, not from its nodes: events still carry anchors and tags, and
building needs no recursion, so that hostile nesting costs nothing. What would let one place of a file change
the meaning of another (anchors, aliases, tags, merge keys, duplicate keys) is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

from devherd.config.problems import Mark, Report, quoted

MAX_DEPTH = 64
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_LINE_END = re.compile(r"\r\n|\r|\n")


class Scalar(Struct, frozen=True):
    """One value. `plain` is false for quoted and block text, which is never anything but text."""

    mark: Mark
    text: str
    plain: bool


class Pair(Struct, frozen=True):
    """A key and its value."""

    key: Scalar
    value: Node


class Mapping(Struct, frozen=True):
    """Keys and values in the order of the file; no key twice."""

    mark: Mark
    pairs: tuple[Pair, ...]


class Sequence(Struct, frozen=True):
    """A list."""

    mark: Mark
    items: tuple[Node, ...]


class Broken(Struct, frozen=True):
    """A value whose problem is already reported."""

    mark: Mark


Node = Scalar | Mapping | Sequence | Broken


class _Frame:
    """A collection that is still being read."""

    def __init__(self, mark: Mark, mapping: bool) -> None:
        self.mark = mark
        self.mapping = mapping
        self.key: Node | None = None
        self.items: list[Node] = []
        self.pairs: list[Pair] = []
        self.seen: dict[str, int] = {}


class _Stop(Exception):
    """Reading on makes no sense; the reason is reported."""


def default_loader() -> Any:
    """PyYAML's C parser where it was built in, else the one in Python: stricter about tabs, otherwise the same."""
    return getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def decode_utf8(data: bytes, report: Report) -> str | None:
    """The file's text, or None when it is not clean UTF-8; then every odd character is reported."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        report.add(_place(before), (), f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        return None
    for found in _FORBIDDEN.finditer(text):
        if report.full:
            break
        code = ord(found.group())
        hint = f'remove it; in a double-quoted text it is written "\\u{code:04x}"' if code else "remove it"
        report.add(_place(text[: found.start()]), (), f"the character U+{code:04X} cannot be used here", hint)
    return None if report else text


def parse(text: str, report: Report, loader: Any = None) -> Node | None:
    """Read one document. An empty one is an empty mapping. None after an error that leaves no usable tree."""
    builder = _Builder(report)
    try:
        for event in _events(text, loader or default_loader()):
            builder.take(event)
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        report.add(_mark(error.problem_mark or error.context_mark), (), *_syntax(error))
        return None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        report.add(Mark(1, 1), (), f"this is not YAML: {quoted(str(error), 200)}")
        return None
    return builder.root or Mapping(Mark(1, 1), ())


def _events(text: str, loader: Any) -> Iterator[Any]:
    events: Iterator[Any] = yaml.parse(text, Loader=loader)
    return events


class _Builder:
    """Turns events into nodes."""

    def __init__(self, report: Report) -> None:
        self.root: Node | None = None
        self._report = report
        self._stack: list[_Frame] = []

    def take(self, event: Any) -> None:
        """Use the next event."""
        if isinstance(event, yaml.ScalarEvent):
            mark = _mark(event.start_mark)
            broken = self._refuse_extras(event, mark)
            self._place(Broken(mark) if broken else Scalar(mark, event.value, bool(event.implicit[0])))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            mark = _mark(event.start_mark)
            self._error(mark, f"*{event.anchor} is an alias, and aliases are not read", "write the value again")
            self._place(Broken(mark))
        elif isinstance(event, yaml.DocumentStartEvent):
            self._document(event)

    def _document(self, event: Any) -> None:
        mark = _mark(event.start_mark)
        if self.root is not None:
            self._error(mark, "a second document starts here; one file holds one", "remove the --- line")
            raise _Stop
        if event.version is not None and tuple(event.version) != (1, 2):
            self._error(mark, "this file is read as YAML 1.2", "remove the %YAML line")
        if event.tags:
            self._error(mark, "tags are not read", "remove the %TAG line")

    def _open(self, event: Any) -> None:
        mark = _mark(event.start_mark)
        self._refuse_extras(event, mark)
        if len(self._stack) >= MAX_DEPTH:
            self._error(mark, f"nested deeper than {MAX_DEPTH} levels")
            raise _Stop
        self._stack.append(_Frame(mark, isinstance(event, yaml.MappingStartEvent)))

    def _close(self) -> None:
        frame = self._stack.pop()
        if frame.mapping:
            self._place(Mapping(frame.mark, tuple(frame.pairs)))
        else:
            self._place(Sequence(frame.mark, tuple(frame.items)))

    def _place(self, node: Node) -> None:
        """Put a finished node where it belongs."""
        if not self._stack:
            self.root = node
        elif not self._stack[-1].mapping:
            self._stack[-1].items.append(node)
        elif self._stack[-1].key is None:
            self._stack[-1].key = node
        else:
            self._pair(self._stack[-1], self._stack[-1].key, node)
            self._stack[-1].key = None

    def _pair(self, frame: _Frame, key: Node, value: Node) -> None:
        if not isinstance(key, Scalar):
            if not isinstance(key, Broken):
                self._error(key.mark, "a key must be a single word or text", "quote it if it is meant as text")
        elif key.plain and key.text == "<<":
            self._error(key.mark, "<< (merge) is not read", "write the keys out")
        elif key.plain and key.text in {"", "~"}:
            self._error(key.mark, "the key is empty", "write a key before the colon")
        elif key.text in frame.seen:
            self._error(
                key.mark,
                f"the key {quoted(key.text)} is here twice; first in line {frame.seen[key.text]}",
                "keep one of them",
            )
        else:
            frame.seen[key.text] = key.mark.line
            frame.pairs.append(Pair(key, value))

    def _refuse_extras(self, event: Any, mark: Mark) -> bool:
        """Report an anchor or tag; true if the value cannot be taken as written."""
        if event.anchor is not None:
            self._error(mark, f"&{event.anchor} is an anchor, and anchors are not read", "remove it")
        if event.tag is not None:
            self._error(mark, "tags (!...) are not read", "remove it; quote the value if it is text")
            return True
        return False

    def _error(self, mark: Mark, message: str, hint: str = "") -> None:
        self._report.add(mark, self._path(), message, hint)

    def _path(self) -> tuple[str | int, ...]:
        path: list[str | int] = []
        for frame in self._stack:
            if not frame.mapping:
                path.append(len(frame.items))
            elif isinstance(frame.key, Scalar):
                path.append(frame.key.text)
        return tuple(path)


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1) if mark is not None else Mark(1, 1)


def _place(before: str) -> Mark:
    lines = _LINE_END.split(before)
    return Mark(len(lines), len(lines[-1]) + 1)


_ADVICE = (
    ("cannot start any token", "quote the text; indent with spaces, never with tabs"),
    ("mapping values are not allowed", 'quote a text that contains ": "; check the indentation'),
    ("expected ':'", "write `key: value`; check the indentation and the quotes above"),
    ("expected key", "check the indentation of this line and the one above"),
    ("expected <block end>", "check the indentation of this line and the one above"),
    ("expected '-' indicator", "check the indentation: list items start in one column"),
    ("expected ',' or", "a [ or { is not closed, or a comma is missing"),
    ("end of stream", "a quote is not closed"),
    ("Unicode character", "write the character itself"),
    ("escape", "use single quotes: a backslash means nothing there"),
)


def _syntax(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """The parser's words, and what is usually wrong."""
    problem = error.problem or "cannot be read"
    message = f"not valid YAML: {problem}"
    if error.context:
        message += f", {error.context}"
        if error.context_mark is not None and error.problem_mark is not None:
            line = error.context_mark.line + 1
            message += f" that starts in line {line}" if line != error.problem_mark.line + 1 else ""
    return message, next((hint for words, hint in _ADVICE if words in problem), "")
