"""Reads single values: text as written, numbers, booleans, and the few words of an enum."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from msgspec import inspect

from devherd.config import types
from devherd.config.nearest import nearest
from devherd.config.problems import KeyPath, Report, quoted
from devherd.config.scalars import advice, boolean_advice, resolve
from devherd.config.yaml12 import Scalar


class _Bad:
    """No value: the problem is reported."""


BAD = _Bad()
_INT64 = 2**63


def read(node: Scalar, info: inspect.Type, path: KeyPath, report: Report, about: inspect.Type | None = None) -> Any:
    """A scalar as the type says, or BAD (reported). `about` is the field's annotated type: its unit, its form.

    Raises TypeError for a type configurations do not support.
    """
    about = about or info
    if isinstance(info, inspect.StrType):
        return _text(node, info, path, report, types.annotation(about, "form"))
    if isinstance(info, inspect.BoolType):
        return _boolean(node, info, path, report)
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return _number(node, info, path, report, types.annotation(about, "unit"))
    if isinstance(info, inspect.EnumType | inspect.LiteralType):
        return _choice(node, info, path, report)
    if isinstance(info, inspect.NoneType):
        return None if _value(node) is None else _wrong(node, info, path, report)
    raise TypeError(f"configurations have no values of type {type(info).__name__}")


def fitting(node: Scalar, choices: Sequence[inspect.Type]) -> list[inspect.Type]:
    """The alternatives of a union that a scalar may mean, the nearest first."""
    value = _value(node)
    order: list[type[inspect.Type]] = []
    if value is None:
        order = [inspect.NoneType, inspect.StructType, inspect.DictType, *types.LISTS]
    elif isinstance(value, bool):
        order = [inspect.BoolType]
    elif isinstance(value, int):
        order = [inspect.IntType, inspect.FloatType]
    elif isinstance(value, float):
        order = [inspect.FloatType]
    named = [choice for choice in choices if node.text in types.choices(choice)]
    typed = [choice for kind in order for choice in choices if isinstance(choice, kind)]
    texts = [choice for choice in choices if isinstance(choice, inspect.StrType)]
    others = [choice for choice in choices if isinstance(choice, inspect.EnumType | inspect.LiteralType)]
    anything = [choice for choice in choices if isinstance(choice, inspect.AnyType)]
    return named + typed + texts + anything + others


def untyped(node: Scalar, path: KeyPath, report: Report) -> Any:
    """A scalar of untyped data, by the core schema."""
    value = _value(node)
    if isinstance(value, str):
        return value if _clean(node, path, report) else BAD
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        report.add(node.mark, path, "the number is too large", "quote it if it is text")
        return BAD
    return value


def describe(node: Scalar) -> str:
    """A scalar in words."""
    value = _value(node)
    if value is None:
        return "empty" if not node.text else node.text
    if isinstance(value, bool):
        return node.text
    return f"the text {quoted(node.text)}" if isinstance(value, str) else f"the number {quoted(node.text)[1:-1]}"


def _value(node: Scalar) -> Any:
    return resolve(node.text) if node.plain else node.text


def _wrong(node: Scalar, info: inspect.Type, path: KeyPath, report: Report, hint: str = "") -> Any:
    report.add(node.mark, path, f"must be {types.wanted(info)}, not {describe(node)}", hint)
    return BAD


def _clean(node: Scalar, path: KeyPath, report: Report) -> bool:
    """No operating system call, environment or socket message takes a NUL or half a surrogate pair."""
    if "\0" in node.text:
        report.add(node.mark, path, "a text cannot contain a NUL character")
        return False
    if any("\ud800" <= char <= "\udfff" for char in node.text):
        report.add(node.mark, path, "a text cannot contain half of a surrogate pair")
        return False
    return True


def _text(node: Scalar, info: inspect.StrType, path: KeyPath, report: Report, form: str) -> Any:
    if _value(node) is None:
        hint = f'write "{node.text}" for the text' if node.text else 'give it a value, or write "" for an empty text'
        return _wrong(node, info, path, report, hint)
    if not _clean(node, path, report):
        return BAD
    few = types.choices(info)
    if few and node.text not in few:
        return _wrong(node, info, path, report, _meant(node.text, few))
    if info.pattern and not _matches(info.pattern, node.text):
        wanted = f"must be {form}, not" if form else f"must match {info.pattern}, unlike"
        report.add(node.mark, path, f"{wanted} {quoted(node.text)}")
        return BAD
    return _limited(node, node.text, len(node.text), info, path, report)


def _matches(pattern: str, text: str) -> bool:
    # "$" also matches before a trailing newline, which no pattern here means.
    stray = pattern.endswith("$") and text.endswith("\n")
    return not stray and re.search(pattern, text) is not None


def _boolean(node: Scalar, info: inspect.BoolType, path: KeyPath, report: Report) -> Any:
    value = _value(node)
    if isinstance(value, bool):
        return value
    return _wrong(node, info, path, report, boolean_advice(node.text) + ("" if node.plain else " without quotes"))


def _number(node: Scalar, info: inspect.IntType | inspect.FloatType, path: KeyPath, report: Report, unit: str) -> Any:
    value = _value(node)
    whole = isinstance(info, inspect.IntType)
    if isinstance(value, str | bool | None):
        hint = advice(node.text, unit)
        if not node.plain and isinstance(resolve(node.text), int | float):
            hint = "write it without quotes"
        return _wrong(node, info, path, report, hint)
    if whole and isinstance(value, float):
        hint = f"write {int(value)}" if value.is_integer() and abs(value) < _INT64 else ""
        return _wrong(node, info, path, report, hint)
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        report.add(node.mark, path, "the number is too large")
        return BAD
    value = value if whole else float(value)
    if not math.isfinite(value):
        report.add(node.mark, path, f"must be a finite number, not {node.text[:48]}")
        return BAD
    return _limited(node, value, value, info, path, report)


def _limited(node: Scalar, value: Any, measure: float, info: Any, path: KeyPath, report: Report) -> Any:
    """The value, if its size (or a text's length) is within the type's limits."""
    low = getattr(info, "ge", None), getattr(info, "min_length", None)
    high = getattr(info, "le", None), getattr(info, "max_length", None)
    fits = all(bound is None or measure >= bound for bound in low)
    fits = fits and all(bound is None or measure <= bound for bound in high)
    fits = fits and (getattr(info, "gt", None) is None or measure > info.gt)
    fits = fits and (getattr(info, "lt", None) is None or measure < info.lt)
    multiple = getattr(info, "multiple_of", None)
    fits = fits and (multiple is None or measure % multiple == 0)
    if fits:
        return value
    what = f"the text has {len(value)} characters" if isinstance(value, str) else f"{node.text[:48]} is out of range"
    report.add(node.mark, path, f"{what}; must be {', '.join(types.limits(info))}")
    return BAD


def _choice(node: Scalar, info: inspect.EnumType | inspect.LiteralType, path: KeyPath, report: Report) -> Any:
    value = _value(node)
    for member, wanted in _members(info):
        if node.text == wanted if isinstance(wanted, str) else type(value) is type(wanted) and value == wanted:
            return member
    return _wrong(node, info, path, report, _meant(node.text, types.choices(info)))


def _meant(text: str, few: tuple[str, ...]) -> str:
    found = nearest(text, few)
    return f"did you mean {found}?" if found else ""


def _members(info: inspect.EnumType | inspect.LiteralType) -> list[tuple[Any, Any]]:
    """(what the program gets, what the file has) for each value."""
    if isinstance(info, inspect.EnumType):
        return [(member, member.value) for member in info.cls]
    return [(value, value) for value in info.values]
