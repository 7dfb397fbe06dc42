"""Names as people type them: without the domain, or nearly right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from devherd.cli.exits import USAGE, Fault
from devherd.cli.words import listing

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def full_name(name: str, known: Iterable[str]) -> str:
    """The resource that is meant: the name itself, or the only one that has it after its domain; empty: unknown."""
    names = set(known)
    if name in names or "/" in name:
        return name if name in names else ""
    found = [full for full in names if full.rpartition("/")[2] == name]
    return found[0] if len(found) == 1 else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean X? ` for a mistyped name, else empty. Domains are alike too often to be compared."""
    short = {full.rpartition("/")[2]: full for full in sorted(known)}
    near = difflib.get_close_matches(name.rpartition("/")[2], short, 1)
    return f"Did you mean {short[near[0]]}? " if near else ""


def choices(name: str, known: Iterable[str], none: str = "No plugin offers any resource.") -> str:
    """A hint for an unknown resource: the nearest one, and what there is."""
    names = sorted(known)
    return f"{nearest(name, names)}There are: {listing(names, 12)}." if names else none


def check_pod_name(name: str, namespace: str) -> None:
    """Raises Fault for a name that the API server would refuse (DNS subdomain, and label for the namespace)."""
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Fault(f"{name!r} is no pod name", "Use lower case letters, digits, - and . (as in my-pod.1).", code=USAGE)
    if not _LABEL.fullmatch(namespace):
        raise Fault(f"{namespace!r} is no namespace", "Use lower case letters, digits and -.", code=USAGE)
