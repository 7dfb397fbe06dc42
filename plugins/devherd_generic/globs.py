"""Globs as the well-known generic plugin (Go's path.Match) reads them, one path component at a time.

`*` any characters, `?` one, `[a-z]` and `[^a-z]` one of or none of, backslash takes the next as it is. None matches a
slash; all match a leading dot. A glob is kept as sets of characters, so that two can be asked whether a name fits both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from devherd.host import Entry, View

MATCHES_AT_MOST = 100_000
_LAST = 0x10FFFF
_SLASH = ord("/")

Ranges = tuple[tuple[int, int], ...]
Token = Ranges | None  # None: a star


class GlobError(ValueError):
    """A malformed glob; the text says what and where."""


@dataclass(frozen=True)
class Component:
    """One path component: its tokens, and the name itself when nothing in it is special."""

    tokens: tuple[Token, ...]
    literal: str | None

    @cached_property
    def names(self) -> re.Pattern[str]:
        """The pattern of names that fit; compiled when first asked for, for most components never are."""
        return re.compile("".join(_regex(token) for token in self.tokens), re.DOTALL)


@dataclass(frozen=True)
class Glob:
    """An absolute path, component by component."""

    text: str
    components: tuple[Component, ...]

    @property
    def is_literal(self) -> bool:
        """Whether it names just one path."""
        return all(component.literal is not None for component in self.components)

    @property
    def path(self) -> str:
        """The path that a literal glob names."""
        return "/" + "/".join(component.literal or "" for component in self.components)


def parse(text: str) -> Glob:
    """Read an absolute, normalised path with globs. Raises GlobError."""
    if not text.startswith("/"):
        raise GlobError("must be absolute: start it with /")
    parts = text[1:].split("/") if text != "/" else []
    for part in parts:
        if part in ("", ".", ".."):
            raise GlobError("must be written without //, /./, /../ and without a / at its end")
        if "**" in part:
            raise GlobError("** is not known here: name each folder level with a * of its own")
    return Glob(text, tuple(_component(part) for part in parts))


def overlap(left: Sequence[Token], right: Sequence[Token]) -> bool:
    """Whether some name fits both token lists."""
    # reachable[j]: the first i tokens of `left` and the first j of `right` can match the same text.
    reachable = [True]
    for other in right:
        reachable.append(reachable[-1] and other is None)
    for mine in left:
        row = [reachable[0] and mine is None]
        for j, other in enumerate(right):
            if mine is None:  # it matches nothing, or takes what the other token matches
                fits = reachable[j + 1] or (row[j] and other != ())
            elif other is None:
                fits = row[j] or (reachable[j + 1] and mine != ())
            else:
                fits = reachable[j] and _meet(mine, other)
            row.append(fits)
        reachable = row
    return reachable[-1]


def _meet(left: Ranges, right: Ranges) -> bool:
    return any(a <= d and c <= b for a, b in left for c, d in right)


def find(view: View, glob: Glob) -> list[tuple[str, Entry]]:
    """What exists for a glob, ordered by path; links that lead nowhere do not. Raises GlobError when it is too much."""
    paths = [""]
    for component in glob.components:
        if component.literal is not None:
            paths = [f"{path}/{component.literal}" for path in paths]
        else:
            fits = component.names.fullmatch
            paths = [f"{path}/{name}" for path in paths for name in view.names(path or "/") if fits(name)]
        if len(paths) > MATCHES_AT_MOST:
            raise GlobError(f"matches more than {MATCHES_AT_MOST} paths")
    if not glob.components:
        paths = ["/"]
    found = ((path, view.entry(path)) for path in sorted(paths))
    return [(path, entry) for path, entry in found if entry.type != "missing"]


def _component(text: str) -> Component:
    tokens = tuple(_tokens(text))
    return Component(tokens, _literal(tokens))


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "*":
            yield None
        elif char == "?":
            yield _without_slash(((1, _LAST),))
        elif char == "[":
            ranges, at = _set(text, at)
            yield ranges
        else:
            if char == "\\":
                char, at = _escaped(text, at)
            yield ((ord(char), ord(char)),)


def _escaped(text: str, at: int) -> tuple[str, int]:
    if at >= len(text):
        raise GlobError(f"{text!r} ends in a backslash")
    return text[at], at + 1


def _set(text: str, at: int) -> tuple[Ranges, int]:
    """A bracket expression, `at` after its bracket: the ranges, and where it ends."""
    negated = text[at : at + 1] == "^"
    at += negated
    ranges: list[tuple[int, int]] = []
    while at < len(text) and text[at] != "]":
        low, at = _bound(text, at)
        high = low
        if text[at : at + 1] == "-":
            high, at = _bound(text, at + 1)
        if high < low:
            raise GlobError(f"{text!r} has a range that runs backwards")
        ranges.append((ord(low), ord(high)))
    if at >= len(text):
        raise GlobError(f"{text!r} has a [ without its ]")
    if not ranges:
        raise GlobError(f"{text!r} has an empty []")
    return _without_slash(_negate(ranges) if negated else tuple(ranges)), at + 1


def _bound(text: str, at: int) -> tuple[str, int]:
    char = text[at : at + 1]
    if char == "\\":
        return _escaped(text, at + 1)
    if char in ("", "]", "-"):
        raise GlobError(f"{text!r} has an unfinished range")
    return char, at + 1


def _negate(ranges: Sequence[tuple[int, int]]) -> Ranges:
    rest: list[tuple[int, int]] = []
    start = 1
    for low, high in sorted(ranges):
        if low > start:
            rest.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        rest.append((start, _LAST))
    return tuple(rest)


def _without_slash(ranges: Ranges) -> Ranges:
    kept: list[tuple[int, int]] = []
    for low, high in ranges:
        if low <= _SLASH <= high:
            kept += [pair for pair in ((low, _SLASH - 1), (_SLASH + 1, high)) if pair[0] <= pair[1]]
        else:
            kept.append((low, high))
    return tuple(kept)


def _literal(tokens: Sequence[Token]) -> str | None:
    chars = [token for token in tokens if token and len(token) == 1 and token[0][0] == token[0][1]]
    return "".join(chr(token[0][0]) for token in chars) if len(chars) == len(tokens) else None


def _regex(token: Token) -> str:
    if token is None:
        return "[^/]*"
    if not token:
        return "(?!)"
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in token) + "]"
