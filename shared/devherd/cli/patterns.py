"""Rules that wait: patterns without a match, and whether a path would be one."""

from __future__ import annotations

import re
from typing import Any

from devherd.values import NOTHING_NOW

Json = dict[str, Any]


def waits(skipped: Json) -> bool:
    """Whether a skipped entry is only a pattern that nothing matches now."""
    return str(skipped.get("reason", "")).startswith(NOTHING_NOW)


def would_match(pattern: str, path: str) -> bool:
    """Whether a rule's pattern fits a path: a glob as in a group's `path`, or an expression on what is below /dev."""
    try:
        if pattern.startswith("/"):
            return re.fullmatch(_glob(pattern), path, re.DOTALL) is not None
        return path.startswith("/dev/") and re.fullmatch(pattern, path[len("/dev/") :]) is not None
    except re.error:
        return False


_PART = re.compile(r"\*|\?|\[(\^?)((?:\\.|[^]\\])+)\]|\\(.)|(.)", re.DOTALL)


def _glob(pattern: str) -> str:
    return "".join(_regex(part) for part in _PART.finditer(pattern))


def _regex(part: re.Match[str]) -> str:
    if part[0] == "*":
        return "[^/]*"
    if part[0] == "?":
        return "[^/]"
    if part[2]:
        return f"(?!/)[{part[1]}{part[2].replace('[', chr(92) + '[')}]"
    return re.escape(part[3] or part[4])
