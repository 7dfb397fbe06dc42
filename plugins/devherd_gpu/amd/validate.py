"""What the schema cannot say about gpu-amd.yaml."""

from __future__ import annotations

from collections.abc import Iterator

from devherd_gpu.amd.config import Config
from devherd_gpu.common import naming, selectors

Problem = tuple[tuple[str | int, ...], str]


def validate(config: Config) -> list[Problem]:
    """Key path and message of each mistake."""
    found: list[Problem] = []
    domain = naming.problem(f"{config.domain}/gpu")
    if domain:
        found.append((("domain",), domain))
    for key, texts in _selectors(config):
        wrong = ((n, selectors.problem(text)) for n, text in enumerate(texts))
        found += [((*key, n), text) for n, text in wrong if text]
    both = sorted(set(config.include) & set(config.exclude))
    found += [(("exclude",), f"{text!r} is included and excluded") for text in both]
    for n, rule in enumerate(config.resources):
        name = naming.problem(naming.full(rule.name, config.domain)) if not domain else ""
        if name:
            found.append((("resources", n, "name"), name))
    everything = [n for n, rule in enumerate(config.sharing) if not rule.select]
    for n in everything[:1]:
        if n + 1 < len(config.sharing):
            found.append((("sharing", n), "takes every GPU, so the rules after it never count: put it last"))
    return found


def _selectors(config: Config) -> Iterator[tuple[tuple[str | int, ...], tuple[str, ...]]]:
    yield ("include",), config.include
    yield ("exclude",), config.exclude
    for n, named in enumerate(config.resources):
        yield ("resources", n, "select"), named.select
    for n, shared in enumerate(config.sharing):
        yield ("sharing", n, "select"), shared.select
