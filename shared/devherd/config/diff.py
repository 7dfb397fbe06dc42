"""Which settings differ: after SIGHUP only what changed is applied again."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


def changed_keys(old: Any, new: Any) -> tuple[str, ...]:
    """Dotted keys whose values differ (`kubelet.poll`); lists and mappings count as one value.

    An empty tuple means the same configuration; ("",) that the two are of different kinds.
    """
    if not isinstance(old, Struct) or type(old) is not type(new):
        return () if type(old) is type(new) and old == new else ("",)
    keys: list[str] = []
    for name, shown in zip(old.__struct_fields__, old.__struct_encode_fields__, strict=True):
        keys += [f"{shown}.{key}" if key else shown for key in changed_keys(getattr(old, name), getattr(new, name))]
    return tuple(keys)
