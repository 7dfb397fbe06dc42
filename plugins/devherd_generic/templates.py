"""Placeholders in env, annotations and CDI names: `{path}` and its like; `{{` and `}}` are braces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

NAMES = ("path", "host_path", "name", "index", "copy", "id")

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True)
class Template:
    """Literal text and placeholder names in turn: text, name, text, name, ..., text."""

    pieces: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The placeholders it uses."""
        return frozenset(self.pieces[1::2])

    def render(self, values: Mapping[str, str]) -> str:
        """The text with every placeholder replaced."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        return "".join(values[piece] if i % 2 else piece for i, piece in enumerate(self.pieces))


def parse(text: str) -> Template:
    """Read a template. Raises ValueError for an unknown placeholder or a lone brace."""
    pieces = [""]
    at = 0
    for match in _PIECE.finditer(text):
        pieces[-1] += text[at : match.start()]
        at = match.end()
        if match[0] in ("{{", "}}"):
            pieces[-1] += match[0][0]
        elif match[1] in NAMES:
            pieces += [match[1], ""]
        elif match[1] is not None:
            known = ", ".join(f"{{{name}}}" for name in NAMES)
            raise ValueError(
                f"unknown placeholder {match[0]}: there are {known}; a brace itself is written {{{{ or }}}}"
            )
        else:
            raise ValueError(f"a lone {match[0]} in {text!r}: write {match[0] * 2} for the character itself")
    pieces[-1] += text[at:]
    return Template(tuple(pieces))
