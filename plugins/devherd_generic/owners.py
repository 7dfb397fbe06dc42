"""Which of this plugin's devices offers a physical thing. First come, in the order of the rules, keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from devherd.values import Claim


class Owner(NamedTuple):
    """Who offers a thing already."""

    rule: str
    resource: str
    paths: tuple[str, ...]
    shared: bool


class Owners:
    """The things offered so far in one scan."""

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}

    def taken(self, claims: Iterable[Claim], resource: str, paths: tuple[str, ...]) -> str:
        """Why the unit's things are not free, in words; empty when they are. A unit is not in its own way."""
        for claim in claims:
            owner = self._owners.get(claim.thing)
            if owner is None or (owner.shared and claim.mode == "shared"):
                continue
            if (owner.resource, owner.paths) != (resource, paths):
                return (
                    f"its device is already offered as {' + '.join(owner.paths)} ({owner.resource}, "
                    f"rule {owner.rule}): say shared: true in both rules if two may use it at once"
                )
        return ""

    def take(self, claims: Iterable[Claim], rule: str, resource: str, paths: tuple[str, ...]) -> None:
        """Note the unit as the owner of its things, where they have none."""
        for claim in claims:
            self._owners.setdefault(claim.thing, Owner(rule, resource, paths, claim.mode == "shared"))
