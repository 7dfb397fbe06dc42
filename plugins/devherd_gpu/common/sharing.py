"""Sharing: several ids for one GPU or partition, so that several containers can have it.

The ids are `<id>::<n>`, n from 0, as NVIDIA's plugin writes them. Nothing here divides memory or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from devherd_gpu.common.selectors import Facts, Selector, any_fits

MARK = "::"
SUFFIX = ".shared"
MOST = 1024


class ShareRule(NamedTuple):
    """How many ids a GPU gets that the rule means, and under which name.

    `label` is the rule's place in the file; without `selectors` it means every GPU; `resource` limits it to GPUs that
    would be offered under this name; `rename` or `name` say that the shares are offered under another one; `mode` says
    how containers share (the vendor's word); `one_each`: a container may ask for one only.
    """

    label: str
    selectors: tuple[Selector, ...]
    replicas: int
    resource: str = ""
    rename: bool = False
    name: str = ""
    mode: str = ""
    one_each: bool = False

    def offered_as(self, resource: str) -> str:
        """The shares' name."""
        return self.name or (resource + SUFFIX if self.rename else resource)


def chosen(rules: Sequence[ShareRule], resource: str, facts: Facts) -> ShareRule | None:
    """The first rule that means this GPU under this name."""
    for rule in rules:
        if rule.resource not in ("", resource):
            continue
        if not rule.selectors or any_fits(rule.selectors, facts):
            return rule
    return None


def ids(id: str, replicas: int) -> list[str]:
    """The ids of all shares of one GPU."""
    return [f"{id}{MARK}{number}" for number in range(replicas)]


def physical(id: str) -> str:
    """The GPU's own id behind a share's."""
    return id.partition(MARK)[0]
