"""The scalars of the YAML 1.2 core schema, and nothing of 1.1.

In 1.2 `on`, `yes`, `12:30:45`, `2024-01-01` and `0000:03:00.0` are text. One deliberate difference: a number with
a leading zero (`0123`) stays text, because readers disagree whether it is octal.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
# Far beyond any number that fits a field; Python refuses to convert very long digit strings, slowly.
_MAX_DIGITS = 400


def resolve(text: str) -> Scalar:
    """The value of a plain (unquoted) scalar. Text that is no null, boolean or number is returned as it is."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if len(text) > _MAX_DIGITS:
        return text
    return _number(text)


def _number(text: str) -> Scalar:
    if _INT.fullmatch(text):
        return int(text)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float("-inf") if text.startswith("-") else float("inf")
    if text in _NAN:
        return float("nan")
    return text


def advice(text: str, unit: str = "") -> str:
    """What somebody who wrote this text where a number belongs should write instead; empty if unclear."""
    if re.fullmatch(r"[-+]?0+[0-9]+", text):
        octal = f", or 0o{text.lstrip('+-0') or '0'} for octal" if re.fullmatch(r"[-+]?[0-7]+", text) else ""
        return f"write it without leading zeros: {int(text[:_MAX_DIGITS])}{octal}"
    if re.fullmatch(r"[-+]?[0-9]+(_[0-9]+)+", text):
        return f"write digits only: {text.replace('_', '')}"
    clock = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,2})(?::([0-9]{1,2}))?", text)
    if clock and unit == "seconds":
        # 1:30 is a minute and a half, 1:00:00 an hour.
        parts = [int(part) for part in clock.groups() if part is not None]
        total = sum(part * 60**power for power, part in enumerate(reversed(parts)))
        return f"write a plain number of seconds: {total}"
    units = re.fullmatch(r"(?:([0-9]+)h)?(?:([0-9]+)m(?:in)?)?(?:([0-9]+)s)?", text) if unit == "seconds" else None
    if units and len(text) <= 20 and sum(part is not None for part in units.groups()) > 1:
        hours, minutes, seconds = (int(part or 0) for part in units.groups())
        return f"write a plain number of seconds: {hours * 3600 + minutes * 60 + seconds}"
    amount = re.fullmatch(r"([-+]?[0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z%]{1,12})", text)
    if amount:
        return f"write a plain number of {unit}" if unit else "write a plain number, without a unit"
    return ""


def boolean_advice(text: str) -> str:
    """What somebody who wrote this text where true or false belongs should write instead; empty if unclear."""
    lowered = text.lower()
    if lowered in {"on", "yes", "y", "true", "1", "enabled", "enable"}:
        return "write true"
    if lowered in {"off", "no", "n", "false", "0", "disabled", "disable"}:
        return "write false"
    return ""
