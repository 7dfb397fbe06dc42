"""The immutable, numbered list a kubelet was sent."""

from __future__ import annotations

from msgspec import Struct


class Member(Struct, frozen=True, omit_defaults=True):
    """One device as the kubelet sees it. `numa` empty: unset. `reason` explains an unhealthy one."""

    id: str
    healthy: bool
    numa: tuple[int, ...] = ()
    reason: str = ""
    kind: str = ""


class Snapshot(Struct, frozen=True, omit_defaults=True):
    """A resource's full list, ordered by id. Equal `members` are equal lists, whatever the number.

    `left_out` names ids that would not fit the kubelet's 4 MiB receive limit.
    """

    resource: str
    number: int
    members: tuple[Member, ...]
    left_out: tuple[str, ...] = ()
