"""Markdown tables of a configuration's keys, and a file with all its defaults."""

from __future__ import annotations

import inspect as python_inspect
import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct, inspect

from devherd.config import types
from devherd.config.scalars import resolve


def sections(root: inspect.Type, *, top: bool) -> str:
    """A table for each struct. The file's own keys are all in the first one if `top`, else only its plain values."""
    struct = types.bare(root)
    assert isinstance(struct, inspect.StructType)
    found = _structs(struct)
    places = {kind.cls: place for place, kind in found}
    lines: list[str] = []
    for place, kind in found:
        fields = kind.fields if place or top else [field for field in kind.fields if not _is_section(field.type)]
        if fields:
            lines += [f"### {_heading(place)}", "", python_inspect.cleandoc(kind.cls.__doc__ or ""), ""]
            lines += ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
            lines += [_row(field, places) for field in fields]
            lines += [""]
    return "\n".join(lines)


def example(value: Struct) -> str:
    """A configuration as YAML, as it would be written by hand."""
    return "\n".join(_yaml(value, ""))


def _structs(root: inspect.StructType) -> list[tuple[str, inspect.StructType]]:
    """(place, struct) of every section, in the order of the file; a struct used twice is at its first place."""
    found: list[tuple[str, inspect.StructType]] = []
    waiting = [("", root)]
    while waiting:
        place, struct = waiting.pop(0)
        if struct.cls in {known.cls for _, known in found}:
            continue
        found.append((place, struct))
        below = [(_below(place, field), types.struct_of(field.type)) for field in struct.fields]
        waiting = [(inner, kind) for inner, kind in below if kind is not None] + waiting
    return found


def _below(place: str, field: inspect.Field) -> str:
    name = f"{place}.{field.encode_name}" if place else field.encode_name
    for option in types.options(field.type):
        if isinstance(option, types.LISTS):
            return f"{name}[]"
        if isinstance(option, inspect.DictType):
            return f"{name}.<name>"
    return name


def _is_section(info: inspect.Type) -> bool:
    return isinstance(types.bare(info), inspect.StructType)


def _heading(place: str) -> str:
    return f"`{place}`" if place else "Top level"


def _anchor(place: str) -> str:
    return re.sub(r"[^\w -]", "", _heading(place).lower()).replace(" ", "-")


def _row(field: inspect.Field, places: dict[type, str]) -> str:
    kind = types.struct_of(field.type)
    shown = _type(field.type)
    if kind is not None and kind.cls in places:
        shown += f", see [{places[kind.cls] or 'top level'}](#{_anchor(places[kind.cls])})"
    limits = [*_limits(field.type)]
    shown = "; ".join([shown, *limits])
    meaning = types.annotation(field.type, "description")
    cells = (f"`{field.encode_name}`", shown, _default(field), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _type(info: inspect.Type) -> str:
    """A type for a table: `number of seconds`, `list of text`, `` `a`, `b` or `c` ``."""
    form = types.annotation(info, "form")
    unit = types.annotation(info, "unit")
    words = " or ".join(_type_one(option) for option in types.options(info))
    return form or (f"{words} of {unit}" if unit else words)


def _type_one(info: inspect.Type) -> str:
    few = [f"`{choice}`" for choice in types.choices(info)]
    if few:
        return f"{', '.join(few[:-1])} or {few[-1]}" if len(few) > 1 else few[0]
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return "list" if types.struct_of(info) else f"list of {_type(info.item_type)}"
    if isinstance(info, inspect.DictType):
        return "mapping" if types.struct_of(info) else f"mapping of {_type(info.key_type)} to {_type(info.value_type)}"
    return types.wanted(info).removeprefix("a whole ").removeprefix("a ") if types.wanted(info) else ""


def _limits(info: inspect.Type) -> Iterator[str]:
    for option in types.options(info):
        yield from (limit for limit in types.limits(option) if not limit.startswith("matches"))


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    value = types.default_of(field)
    return "" if isinstance(value, Struct) else f"`{_flow(value)}`"


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and re.fullmatch(r"[\w./-][\w./:@-]*", value) and isinstance(resolve(value), str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _yaml(value: Struct, indent: str) -> Iterator[str]:
    for name, shown in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        inner = getattr(value, name)
        if isinstance(inner, Struct):
            yield f"{indent}{shown}:"
            yield from _yaml(inner, indent + "  ")
        else:
            yield f"{indent}{shown}: {_flow(inner)}"
