"""What the schema cannot say about gpu-amd.yaml."""

from __future__ import annotations

import re

from devherd_gpu.amd.config import Config

# A DNS subdomain, as the kubelet wants before the slash of a resource name.
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
Problem = tuple[tuple[str | int, ...], str]


def validate(config: Config) -> list[Problem]:
    """Key path and message of each mistake."""
    found: list[Problem] = []
    if not _DOMAIN.fullmatch(config.domain) or "kubernetes.io" in config.domain:
        found.append((("domain",), f"{config.domain!r} is no domain that the kubelet takes before a resource name"))
    for key, patterns in (("include", config.include), ("exclude", config.exclude)):
        found += [((key, n), "an empty pattern means nothing") for n, text in enumerate(patterns) if not text.strip()]
    both = sorted(set(config.include) & set(config.exclude))
    found += [(("exclude",), f"{text!r} is included and excluded") for text in both]
    everything = [n for n, rule in enumerate(config.sharing) if not rule.select]
    for n in everything[:1]:
        if n + 1 < len(config.sharing):
            found.append((("sharing", n), "takes every GPU, so the rules after it never count: put it last"))
    return found
