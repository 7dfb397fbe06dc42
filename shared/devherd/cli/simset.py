"""The options of `devherd simulate set`, as text and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import inspect

from devherd.cli.exits import USAGE, Fault
from devherd.cli.names import nearest
from devherd.sim.options import Options, changed


def parse(texts: Sequence[str]) -> dict[str, Any]:
    """OPTION=VALUE texts as changes that the kubelet will take. Raises Fault."""
    known = meanings()
    changes: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign:
            raise Fault(f"{text!r} is not OPTION=VALUE", "devherd simulate set lists the options.", code=USAGE)
        if key not in known:
            hint = nearest(key, known) + "`devherd simulate set` lists all options."
            raise Fault(f"there is no option {key!r}", hint, code=USAGE)
        try:
            changes[key] = json.loads(value)
        except ValueError:
            changes[key] = value
        try:
            changed(Options(), {key: changes[key]})
        except ValueError:
            raise Fault(f"{key}: {value!r} is not {_form(key)}", f"{key}: {known[key]}", code=USAGE) from None
    return changes


def meanings() -> dict[str, str]:
    """Option -> what it is."""
    return {field.name: _extra(field.type) for field in _fields()}


def help_text() -> str:
    """All options for `--help`, one a line."""
    width = max(map(len, meanings()))
    return "\b\nOptions of the kubelet:\n" + "\n".join(f"  {key:<{width}}  {text}" for key, text in meanings().items())


def _fields() -> Sequence[inspect.Field]:
    info = inspect.type_info(Options)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _extra(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description", ""))
    return ""


def _form(key: str) -> str:
    kind = next(field.type for field in _fields() if field.name == key)
    kind = kind.type if isinstance(kind, inspect.Metadata) else kind
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        whole = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
        low = kind.ge if kind.ge is not None else kind.gt
        return f"{whole} {'from' if kind.ge is not None else 'above'} {low:g}" if low is not None else whole
    if isinstance(kind, inspect.StrType) and kind.pattern:
        return "one of " + ", ".join(kind.pattern.strip("^$()").split("|"))
    return 'a JSON list, like ["/etc/cdi"] or [0, 1]'
