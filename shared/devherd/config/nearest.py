"""Guesses what somebody meant by an unknown name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plain_form(name: str) -> str:
    """A name without case and separators: `mountPath`, `mount_path` and `mount-path` are one."""
    return "".join(char for char in name.lower() if char.isalnum())


def nearest(name: str, valid: Iterable[str]) -> str:
    """The valid name that is most like this one, or empty if none is."""
    names = list(valid)
    same = [candidate for candidate in names if plain_form(candidate) == plain_form(name)]
    if same:
        return same[0]
    if len(name) > 100:
        return ""
    # Only for somebody who mistyped: a front that has no mistake to explain does not load it.
    import difflib

    forms = {plain_form(candidate): candidate for candidate in names}
    found = difflib.get_close_matches(plain_form(name), list(forms), n=1, cutoff=0.6)
    return forms[found[0]] if found else ""


def listing(names: Sequence[str], limit: int = 24) -> str:
    """Names for a person, the first few of a long list."""
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def suggestion(name: str, valid: Sequence[str], what: str = "keys") -> str:
    """A hint for an unknown name: the nearest valid one, or all of them."""
    found = nearest(name, valid)
    if found:
        return f"did you mean {found}?"
    return f"valid {what} here: {listing(valid)}" if valid else f"no {what} are valid here"
