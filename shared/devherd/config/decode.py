"""Turns a YAML tree into a msgspec struct and reports everything that is wrong, not only the first thing.

Types are strict, with one exception: a text field takes a bare scalar exactly as it was written, so that
`product: 2838`, `address: 0000:03:00.0` and `state: on` mean what they show.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

from devherd.config import leaf, types
from devherd.config.nearest import listing, plain_form, suggestion
from devherd.config.problems import KeyPath, Mark, Report
from devherd.config.scalars import resolve
from devherd.config.yaml12 import Broken, Mapping, Node, Scalar, Sequence

BAD = leaf.BAD


def decode(node: Node, kind: Any, report: Report) -> Any:
    """The value of type `kind` (a msgspec struct), or BAD when the report got a problem.

    Raises TypeError for a `kind` that configurations do not support (a programming error).
    """
    info = inspect.type_info(kind)
    return _Decoder(report, info).value(node, info, ())


class _Decoder:
    def __init__(self, report: Report, root: inspect.Type) -> None:
        self._report = report
        self._homes = _homes(root)
        self._readers: dict[type[inspect.Type], Callable[[Any, Any, KeyPath], Any]] = {
            inspect.StructType: self._struct,
            inspect.DictType: self._dict,
            inspect.TupleType: self._tuple,
            inspect.AnyType: self._any,
            **dict.fromkeys((inspect.ListType, inspect.VarTupleType), self._list),
            **dict.fromkeys((inspect.SetType, inspect.FrozenSetType), self._set),
        }

    def value(self, node: Node, info: inspect.Type, path: KeyPath) -> Any:
        """One value of any type."""
        if isinstance(node, Broken):
            return BAD
        chosen = self._choose(node, info, path)
        if chosen is None:
            return BAD
        reader = self._readers.get(type(chosen))
        if reader is not None:
            return reader(node, chosen, path)
        if not isinstance(node, Scalar):
            return self._wrong(node, info, path)
        return leaf.read(node, chosen, path, self._report, info)

    def _choose(self, node: Node, info: inspect.Type, path: KeyPath) -> inspect.Type | None:
        """The alternative of a union that this node can only mean; None if there is none (reported)."""
        choices = types.options(info)
        fitting: list[inspect.Type]
        if len(choices) == 1:
            return choices[0]
        if isinstance(node, Mapping):
            fitting = [choice for choice in choices if isinstance(choice, inspect.StructType | inspect.DictType)]
            if len(fitting) > 1:
                return self._tagged(node, fitting, path)
        elif isinstance(node, Sequence):
            fitting = [choice for choice in choices if isinstance(choice, types.LISTS)]
        else:
            assert isinstance(node, Scalar)
            fitting = leaf.fitting(node, choices)
        rest = [choice for choice in choices if not isinstance(choice, inspect.NoneType)]
        if fitting:
            return fitting[0]
        if len(rest) == 1:
            return rest[0]
        self._wrong(node, info, path)
        return None

    def _tagged(self, node: Mapping, structs: list[inspect.Type], path: KeyPath) -> inspect.Type | None:
        """The struct that a mapping's tag key names."""
        tagged = [struct for struct in structs if isinstance(struct, inspect.StructType) and struct.tag_field]
        key = tagged[0].tag_field or ""
        tags = [str(struct.tag) for struct in tagged]
        for pair in node.pairs:
            if pair.key.text == key:
                if isinstance(pair.value, Broken):
                    return None
                text = pair.value.text if isinstance(pair.value, Scalar) else ""
                if text in tags:
                    return tagged[tags.index(text)]
                message = f"must be one of {', '.join(tags)}"
                self._report.add(pair.value.mark, (*path, key), message, suggestion(text, tags, "values"))
                return None
        self._report.add(node.mark, (*path, key), f"is missing; one of {', '.join(tags)}")
        return None

    def _struct(self, node: Node, info: inspect.StructType, path: KeyPath) -> Any:
        node = _section(node)
        if not isinstance(node, Mapping):
            return self._wrong(node, info, path, _mapping_hint(node) or _inside_hint(node, info, path))
        fields = {field.encode_name: field for field in info.fields}
        given: dict[str, Any] = {}
        for pair in node.pairs:
            field = fields.get(pair.key.text)
            if field is not None:
                given[field.name] = self.value(pair.value, field.type, (*path, pair.key.text))
            elif pair.key.text == info.tag_field:
                self._check_tag(pair.value, info, (*path, pair.key.text))
            else:
                self._unknown(pair.key, tuple(fields), path)
        missing = [field for field in info.fields if field.required and field.name not in given]
        for field in missing:
            self._report.add(
                node.mark, (*path, field.encode_name), "is missing", types.annotation(field.type, "description")
            )
        if missing or any(value is BAD for value in given.values()) or len(given) < _expected(node, info):
            return BAD
        return self._build(info, given, node.mark, path)

    def _build(self, info: inspect.StructType, given: dict[str, Any], mark: Mark, path: KeyPath) -> Any:
        try:
            return info.cls(**given)
        except Exception as error:  # a struct's own __post_init__ may say no in any way
            self._report.add(mark, path, str(error) or type(error).__name__)
            return BAD

    def _check_tag(self, node: Node, info: inspect.StructType, path: KeyPath) -> None:
        if not isinstance(node, Broken) and not (isinstance(node, Scalar) and node.text == str(info.tag)):
            self._report.add(node.mark, path, f"must be {info.tag}")

    def _unknown(self, key: Scalar, valid: tuple[str, ...], path: KeyPath) -> None:
        hint = ""
        if not self._report.full:
            home = self._homes.get(key.text)
            local = any(plain_form(name) == plain_form(key.text) for name in valid)
            if home is None or local:
                hint = suggestion(key.text, valid)
            else:
                hint = f"it belongs under {home}" if home else "it belongs at the top level"
        self._report.add(key.mark, (*path, key.text), "unknown key", hint)

    def _dict(self, node: Node, info: inspect.DictType, path: KeyPath) -> Any:
        node = _section(node)
        if not isinstance(node, Mapping):
            return self._wrong(node, info, path, _mapping_hint(node))
        result: dict[Any, Any] = {}
        good = True
        for pair in node.pairs:
            key = self.value(pair.key, info.key_type, (*path, pair.key.text))
            value = self.value(pair.value, info.value_type, (*path, pair.key.text))
            if key is BAD or value is BAD:
                good = False
            elif key in result:
                self._report.add(
                    pair.key.mark, (*path, pair.key.text), "the same key is here twice, written differently"
                )
                good = False
            else:
                result[key] = value
        return result if good and self._length(node, len(node.pairs), info, path) else BAD

    def _items(self, node: Node, info: Any, path: KeyPath) -> list[Any] | None:
        """A list's values; None if any is bad."""
        node = _list(node)
        if not isinstance(node, Sequence):
            self._wrong(node, info, path, _list_hint(node))
            return None
        values = [self.value(item, info.item_type, (*path, number)) for number, item in enumerate(node.items)]
        fits = self._length(node, len(values), info, path)
        return values if fits and not any(value is BAD for value in values) else None

    def _list(self, node: Node, info: inspect.ListType | inspect.VarTupleType, path: KeyPath) -> Any:
        values = self._items(node, info, path)
        if values is None:
            return BAD
        return values if isinstance(info, inspect.ListType) else tuple(values)

    def _set(self, node: Node, info: inspect.SetType | inspect.FrozenSetType, path: KeyPath) -> Any:
        values = self._items(node, info, path)
        if values is None:
            return BAD
        seen: set[Any] = set()
        for number, value in enumerate(values):
            if value in seen and isinstance(node, Sequence):
                self._report.add(node.items[number].mark, (*path, number), "is in the list twice", "keep one of them")
            seen.add(value)
        if len(seen) < len(values):
            return BAD
        return seen if isinstance(info, inspect.SetType) else frozenset(seen)

    def _tuple(self, node: Node, info: inspect.TupleType, path: KeyPath) -> Any:
        if not isinstance(node, Sequence):
            return self._wrong(node, info, path)
        if len(node.items) != len(info.item_types):
            self._report.add(node.mark, path, f"must have {len(info.item_types)} items, has {len(node.items)}")
            return BAD
        pairs = enumerate(zip(node.items, info.item_types, strict=True))
        values = tuple(self.value(item, kind, (*path, number)) for number, (item, kind) in pairs)
        return BAD if any(value is BAD for value in values) else values

    def _any(self, node: Node, info: inspect.AnyType, path: KeyPath) -> Any:
        """Untyped data: scalars by the core schema, keys as text."""
        if isinstance(node, Scalar):
            return leaf.untyped(node, path, self._report)
        if isinstance(node, Mapping):
            found = {pair.key.text: self.value(pair.value, info, (*path, pair.key.text)) for pair in node.pairs}
            return BAD if any(value is BAD for value in found.values()) else found
        if isinstance(node, Sequence):
            values = [self.value(item, info, (*path, number)) for number, item in enumerate(node.items)]
            return BAD if any(value is BAD for value in values) else values
        return BAD

    def _length(self, node: Node, length: int, info: Any, path: KeyPath) -> bool:
        least, most = info.min_length or 0, info.max_length
        if least <= length and (most is None or length <= most):
            return True
        self._report.add(node.mark, path, f"has {length} items; must have {' and '.join(types.limits(info))}")
        return False

    def _wrong(self, node: Node, info: inspect.Type, path: KeyPath, hint: str = "") -> Any:
        self._report.add(node.mark, path, f"must be {types.wanted(info)}, not {describe(node)}", hint)
        return BAD


def describe(node: Node) -> str:
    """What a node is, in words."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    return leaf.describe(node) if isinstance(node, Scalar) else "an unreadable value"


def _expected(node: Mapping, info: inspect.StructType) -> int:
    """How many keys of a mapping are no tag; fewer decoded ones mean that some were unknown."""
    return sum(1 for pair in node.pairs if pair.key.text != info.tag_field)


def _empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.plain and resolve(node.text) is None


def _section(node: Node) -> Node:
    """A section whose lines are all commented out is an empty section."""
    return Mapping(node.mark, ()) if _empty(node) else node


def _list(node: Node) -> Node:
    return Sequence(node.mark, ()) if _empty(node) else node


def _list_hint(node: Node) -> str:
    if isinstance(node, Scalar):
        return f"write [{node.text}]" if node.plain and len(node.text) <= 48 else "put it in [ ]"
    return "begin each item with `- `"


def _mapping_hint(node: Node) -> str:
    glued = isinstance(node, Scalar) and node.plain and re.match(r"[\w.-]+:\S", node.text)
    return "write a space after the colon" if glued else ""


def _inside_hint(node: Node, info: inspect.StructType, path: KeyPath) -> str:
    """For a value written where a section belongs: the one key whose value it can only be, or all keys."""
    section = path[-1] if path else ""
    if not isinstance(section, str) or not section:
        return ""
    if isinstance(node, Scalar):
        meant = [field.encode_name for field in info.fields if node.text in types.choices(field.type)]
        if len(meant) == 1:
            return f"write {section}: {{{meant[0]}: {node.text}}}"
    return f"its keys, one a line below it: {listing([field.encode_name for field in info.fields], 8)}"


def _homes(root: inspect.Type) -> dict[str, str]:
    """Key -> the place it belongs to, for keys written one level too high or too low; the outermost place wins."""
    found: dict[str, str] = {}
    seen: set[type] = set()
    waiting = [("", types.struct_of(root))]
    while waiting:
        place, struct = waiting.pop(0)
        if struct is None or struct.cls in seen:
            continue
        seen.add(struct.cls)
        for field in struct.fields:
            found.setdefault(field.encode_name, place)
            waiting.append((types.below(place, field), types.struct_of(field.type)))
    return found


def no_value(value: Any) -> bool:
    """Whether decode gave no value."""
    return value is BAD or value is msgspec.UNSET
