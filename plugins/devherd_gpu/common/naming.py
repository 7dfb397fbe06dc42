"""Resource names: rules that give some GPUs a name of their own, and what the kubelet takes as a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from devherd_gpu.common.selectors import Facts, Selector, any_fits

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


class NameRule(NamedTuple):
    """GPUs that one of the selectors means are offered under this name. `label` is the rule's place in the file."""

    label: str
    selectors: tuple[Selector, ...]
    name: str


def rule_for(rules: Sequence[NameRule], facts: Facts) -> NameRule | None:
    """The first rule that means this GPU."""
    return next((rule for rule in rules if any_fits(rule.selectors, facts)), None)


def chosen(rules: Sequence[NameRule], facts: Facts, otherwise: str) -> str:
    """The name of the first rule that means this GPU."""
    rule = rule_for(rules, facts)
    return otherwise if rule is None else rule.name


def full(name: str, domain: str) -> str:
    """A name with its domain, if it has none."""
    return name if "/" in name else f"{domain}/{name}"


def problem(name: str) -> str:
    """Why this full name is no resource name; empty when it is."""
    domain, slash, short = name.partition("/")
    if not slash:
        return f"{name!r} has no domain: write it like nvidia.com/gpu"
    if not _DOMAIN.fullmatch(domain) or len(domain) > 253 - len("requests."):
        return f"{domain!r} is no domain: lower case letters, digits, - and . as in example.org"
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return f"{domain!r} belongs to Kubernetes; use another domain"
    if not _NAME.fullmatch(short):
        return f"{short!r} is no resource name: letters, digits, -, _ and . inside, a letter or digit at both ends"
    return ""
