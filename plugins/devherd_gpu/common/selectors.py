"""Selectors: which GPUs a rule is about, by index, id, PCI address, model, device id or partition profile.

A selector is a text `kind:pattern`; `*`, `?` and `[..]` match as in file names, without regard to case. Some speak for
themselves and need no prefix: `3` and `0:1` are indices, `GPU-...` and `MIG-...` ids, `0000:1b:00.0` a PCI address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import NamedTuple

KINDS = ("index", "uuid", "pci", "model", "device", "profile")
"""`uuid` is a GPU's own id, whatever its vendor calls it; `device` the PCI device id (`0x2330`)."""

Facts = Mapping[str, tuple[str, ...]]
"""What is known of a GPU: kind -> every text by which it may be selected."""

_INDEX = re.compile(r"\d{1,4}(:\d{1,4})?", re.ASCII)
_ID = re.compile(r"(GPU|MIG)-.*", re.ASCII | re.IGNORECASE)
_PCI = re.compile(r"([0-9a-f*?]{1,8}:)?[0-9a-f*?]{1,2}:[0-9a-f*?]{1,2}(\.[0-7*?])?", re.ASCII | re.IGNORECASE)
_SHORT_PCI = re.compile(r"[0-9a-f*?]{1,2}:[0-9a-f*?]{1,2}(\.[0-7*?])?", re.ASCII | re.IGNORECASE)


class Selector(NamedTuple):
    """One selector; `text` as it was written."""

    kind: str
    pattern: str
    text: str

    def fits(self, facts: Facts) -> bool:
        """Whether a GPU is meant."""
        match = _compiled(self.pattern)
        return self.kind == "all" or any(match.fullmatch(fact) for fact in facts.get(self.kind, ()))


def parse(text: str) -> Selector:
    """Read a selector. Raises ValueError that says how to write it."""
    if text in ("all", "*"):
        return Selector("all", "*", text)
    kind, colon, pattern = text.partition(":")
    if colon and kind.lower() in KINDS:
        if not pattern:
            raise ValueError(f"{text!r} has nothing after the colon")
        return _checked(kind.lower(), pattern, text)
    if _INDEX.fullmatch(text):
        return Selector("index", text, text)
    if _ID.fullmatch(text):
        return Selector("uuid", text, text)
    if _PCI.fullmatch(text):
        return _checked("pci", text, text)
    raise ValueError(
        f"{text!r} is no selector: write 0 (an index), GPU-... (an id), 0000:1b:00.0 (a PCI address), model:*H100*, "
        f"or one of {', '.join(f'{kind}:' for kind in KINDS)} with a pattern"
    )


def problem(text: str) -> str:
    """Why a text is no selector; empty when it is one."""
    try:
        parse(text)
    except ValueError as error:
        return str(error)
    return ""


def parse_all(texts: Sequence[str]) -> tuple[Selector, ...]:
    """The selectors that can be read; a configuration that was checked has no others."""
    return tuple(parse(text) for text in texts if not problem(text))


def any_fits(selectors: Iterable[Selector], facts: Facts) -> bool:
    """Whether one of them means this GPU."""
    return any(selector.fits(facts) for selector in selectors)


def unmatched(selectors: Iterable[Selector], every: Sequence[Facts]) -> list[Selector]:
    """Those that mean no GPU at all."""
    return [selector for selector in selectors if not any(selector.fits(facts) for facts in every)]


def _checked(kind: str, pattern: str, text: str) -> Selector:
    if kind == "pci" and not _PCI.fullmatch(pattern) and "*" not in pattern:
        raise ValueError(f"{pattern!r} is no PCI address: write it like 0000:1b:00.0 (* matches any digits)")
    if kind == "pci" and _SHORT_PCI.fullmatch(pattern):
        pattern = f"0000:{pattern}"
    if kind == "index" and not re.fullmatch(r"[\d:*?\[\]-]+", pattern):
        raise ValueError(f"{pattern!r} is no index: write 0, or 0:1 for a partition")
    return Selector(kind, pattern, text)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern), re.IGNORECASE)
