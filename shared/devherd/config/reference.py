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


def sections(root: inspect.Type, page: str, *, whole: bool = True) -> str:
    """A table of the file's own keys, then one for each struct below; `page` keeps the anchors of files apart.

    With `whole` false the first table leaves out what is only a section, described in a table of its own.
    """
    struct = types.bare(root)
    assert isinstance(struct, inspect.StructType)
    found = _structs(struct)
    anchors = {kind.cls: (place, _anchor(page, place)) for place, kind in found}
    lines: list[str] = []
    for place, kind in found:
        fields = kind.fields if place or whole else [field for field in kind.fields if not _is_section(field.type)]
        if place:
            lines += [f'<a id="{_anchor(page, place)}"></a>', "", f"### `{place}`", ""]
            lines += [python_inspect.cleandoc(kind.cls.__doc__ or ""), ""]
        if fields:
            lines += ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
            lines += [_row(field, anchors) for field in fields]
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
        below = [(types.below(place, field), types.struct_of(field.type)) for field in struct.fields]
        waiting = [(inner, kind) for inner, kind in below if kind is not None] + waiting
    return found


def _is_section(info: inspect.Type) -> bool:
    return isinstance(types.bare(info), inspect.StructType)


def _anchor(page: str, place: str) -> str:
    return "-".join([page, *re.findall(r"\w+", place)])


def _row(field: inspect.Field, anchors: dict[type, tuple[str, str]]) -> str:
    kind = types.struct_of(field.type)
    shown = _type(field.type)
    if kind is not None and kind.cls in anchors:
        place, anchor = anchors[kind.cls]
        shown += f": [{place or 'this file'}](#{anchor})"
    shown = ", ".join([shown, *_limits(field.type)])
    cells = (f"`{field.encode_name}`", shown, _default(field), _prose(types.annotation(field.type, "description")))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _prose(text: str) -> str:
    """A description is plain text: what Markdown or HTML would take for its own is escaped."""
    return text if "`" in text else text.replace("*", "\\*").replace("<", "&lt;")


def _type(info: inspect.Type) -> str:
    """A type for a table: `number of seconds`, `list of text`, `` `a`, `b` or `c` ``."""
    form = types.annotation(info, "form")
    unit = types.annotation(info, "unit")
    words = " or ".join(_type_one(option) for option in types.options(info)).replace(" or null", ", or null")
    words = words.replace("number", f"number of {unit}") if unit else words
    return form.removeprefix("an ").removeprefix("a ") or words


def _type_one(info: inspect.Type) -> str:
    few = [f"`{choice}`" for choice in types.choices(info)]
    if few:
        return f"{', '.join(few[:-1])} or {few[-1]}" if len(few) > 1 else few[0]
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return "list" if types.struct_of(info) else f"list of {_type(info.item_type)}"
    if isinstance(info, inspect.DictType):
        return "mapping" if types.struct_of(info) else f"mapping of {_type(info.key_type)} to {_type(info.value_type)}"
    return types.wanted(info).removeprefix("a ")


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
