"""Figures and times as people say them."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable

_STEPS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def span(seconds: float | None) -> str:
    """A duration: `0.4 s`, `12 s`, `3 min`, `2 h`, `5 d`; empty for None."""
    if seconds is None:
        return ""
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds > 0 else "0 s"
    for size, unit in _STEPS:
        if seconds >= size * (2 if unit != "s" else 1):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def millis(value: float | None) -> str:
    """Milliseconds: `3.2 ms`, `41 ms`; empty for None."""
    if value is None:
        return ""
    return f"{value:.1f} ms" if value < 10 else f"{value:,.0f} ms"


def since(unix: float | None, now: float | None = None) -> str:
    """How long ago a moment was (Unix seconds); empty when unknown."""
    if not unix:
        return ""
    return span(max(0.0, (time.time() if now is None else now) - unix))


def clock(unix: float | None) -> str:
    """A moment as local wall time, with the date when it was not today; empty when unknown."""
    if not unix:
        return ""
    moment = time.localtime(unix)
    today = time.localtime()
    same = moment[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S", moment)


def count(number: int, one: str, many: str = "") -> str:
    """`1 device`, `2 devices`."""
    return f"{number:,} {one if number == 1 else (many or one + 's')}"


def listing(items: Iterable[str], most: int = 4) -> str:
    """`a, b, c and 7 more`."""
    found = list(items)
    if len(found) <= most:
        return ", ".join(found)
    return ", ".join(found[:most]) + f" and {len(found) - most:,} more"


def program() -> str:
    """How this program was called, for hints that can be copied into a terminal in the same folder."""
    called = sys.argv[0]
    if os.path.basename(called) != "devherd" or shutil.which("devherd") == os.path.abspath(called):
        return "devherd"
    return min(os.path.relpath(called), called, key=len)


def short(identity: str, most: int = 16) -> str:
    """A long id cut in the middle of nothing: its start and an ellipsis."""
    return identity if len(identity) <= most else identity[: most - 4] + "..."
