"""What the schema cannot say about gpu-intel.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devherd_gpu.common import naming, selectors
from devherd_gpu.intel.config import Config

_DEVICE = re.compile(r"0x[0-9a-fA-F]{4}")
Problem = tuple[tuple[str | int, ...], str]


def validate(config: Config) -> list[Problem]:
    """Key path and message of each mistake."""
    found: list[Problem] = []
    domain = naming.problem(f"{config.domain}/i915")
    if domain:
        found.append((("domain",), domain))
    if config.allow and config.deny:
        found.append((("deny",), "allow and deny exclude each other: a list of the allowed denies all others"))
    for key, texts in (("allow", config.allow), ("deny", config.deny)):
        wrong = [(n, text) for n, text in enumerate(texts) if not _DEVICE.fullmatch(text)]
        found += [((key, n), f"{text!r} is no PCI device id: write it like 0x56c0") for n, text in wrong]
    for place, texts in _selectors(config):
        problems = ((n, selectors.problem(text)) for n, text in enumerate(texts))
        found += [((*place, n), text) for n, text in problems if text]
    for n, rule in enumerate(config.resources):
        name = naming.problem(naming.full(rule.name, config.domain)) if not domain else ""
        if name:
            found.append((("resources", n, "name"), name))
    return found


def _selectors(config: Config) -> Iterator[tuple[tuple[str | int, ...], tuple[str, ...]]]:
    yield ("include",), config.include
    yield ("exclude",), config.exclude
    for n, named in enumerate(config.resources):
        yield ("resources", n, "select"), named.select
