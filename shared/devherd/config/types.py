"""What a field's type says to people: its name, its values, its limits. Shared by error texts and the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_CHOICE = re.compile(r"\^\(([\w.-]+(?:\|[\w.-]+)*)\)\$")
TEXTUAL = (inspect.StrType, inspect.EnumType, inspect.LiteralType)
LISTS = (inspect.ListType, inspect.VarTupleType, inspect.TupleType, inspect.SetType, inspect.FrozenSetType)


def bare(info: inspect.Type) -> inspect.Type:
    """The type below its annotations."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    return info


def annotation(info: inspect.Type, name: str) -> str:
    """A field's `description`, or its `unit` or `form` (its pattern in words) from `Meta(extra=...)`; or empty."""
    while isinstance(info, inspect.Metadata):
        for source in (info.extra_json_schema, info.extra):
            if source and name in source:
                return str(source[name])
        info = info.type
    return ""


def options(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """The alternatives of a union; any other type is its only alternative."""
    info = bare(info)
    return tuple(bare(option) for option in info.types) if isinstance(info, inspect.UnionType) else (info,)


def choices(info: inspect.Type) -> tuple[str, ...]:
    """The few texts a field takes (enum, literal, or a pattern `^(a|b)$`), as written in YAML; empty: no such list."""
    info = bare(info)
    if isinstance(info, inspect.EnumType):
        return tuple(_written(member.value) for member in info.cls)
    if isinstance(info, inspect.LiteralType):
        return tuple(_written(value) for value in info.values)
    if isinstance(info, inspect.StrType) and info.pattern:
        found = _CHOICE.fullmatch(info.pattern)
        return tuple(found.group(1).split("|")) if found else ()
    return ()


def _written(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def wanted(info: inspect.Type) -> str:
    """What belongs here, in words: `a whole number`, `text`, `a list`."""
    return " or ".join(dict.fromkeys(_wanted_one(option) for option in options(info)))


_WORDS: dict[type[inspect.Type], str] = {
    inspect.AnyType: "any value",
    inspect.NoneType: "null",
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: "text",
    inspect.DictType: "a mapping",
    inspect.StructType: "a mapping",
}


def _wanted_one(info: inspect.Type) -> str:
    few = choices(info)
    if few:
        return "one of " + ", ".join(few) if len(few) > 1 else few[0]
    return "a list" if isinstance(info, LISTS) else _WORDS.get(type(info), type(info).__name__)


def limits(info: inspect.Type) -> Iterator[str]:
    """The limits of a field, one short phrase each: `>= 0`, `at least 1 item`, `matches ...`."""
    info = bare(info)
    for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
        bound = getattr(info, name, None)
        if bound is not None:
            yield f"{sign} {bound:g}"
    if getattr(info, "multiple_of", None) is not None:
        yield f"a multiple of {info.multiple_of:g}"  # type: ignore[attr-defined]
    noun = "character" if isinstance(info, inspect.StrType) else "item"
    for name, words in (("min_length", "at least"), ("max_length", "at most")):
        length = getattr(info, name, None)
        if length is not None:
            yield f"{words} {length} {noun}{'' if length == 1 else 's'}"
    if isinstance(info, inspect.StrType) and info.pattern and not choices(info):
        yield f"matches {info.pattern}"


def struct_of(info: inspect.Type) -> inspect.StructType | None:
    """The struct behind a field: itself, a list's or mapping's item, or the one struct of a union."""
    for option in options(info):
        if isinstance(option, inspect.StructType):
            return option
        if isinstance(option, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
            return struct_of(option.item_type)
        if isinstance(option, inspect.DictType):
            return struct_of(option.value_type)
    return None


def below(place: str, field: inspect.Field) -> str:
    """The place of what is in a field of the struct at `place`: `devices[]`, `devices[].env`, `by_name.<name>`."""
    name = f"{place}.{field.encode_name}" if place else field.encode_name
    for option in options(field.type):
        if isinstance(option, LISTS):
            return f"{name}[]"
        if isinstance(option, inspect.DictType):
            return f"{name}.<name>"
    return name


def default_of(field: inspect.Field) -> Any:
    """A field's default value; msgspec.NODEFAULT if it is required."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
