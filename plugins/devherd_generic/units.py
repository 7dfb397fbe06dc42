"""How matches become units, and units become ids. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import lcm

from devherd.sha1 import sha1_hex


def zip_matches(counts: Sequence[int], limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Pair the matches of several paths: for each unit, which match (from 0) each path contributes.

    A path's sorted matches are used from the first to the last, `limit` times over; the path that runs out first ends
    the list. Once every combination had its turn the rest would repeat them, so the list ends there too.
    """
    if not counts or 0 in counts:
        return
    length = min(count * limit for count, limit in zip(counts, limits, strict=True))
    for unit in range(min(length, lcm(*counts))):
        yield tuple(unit % count for count in counts)


def device_id(copy: int, paths: Iterable[str]) -> str:
    """The id that the well-known generic plugin gives: hex SHA-1 of the copy's number and the host paths, joined.

    Stable as long as the paths are: over restarts, reboots and the coming and going of neighbours.
    """
    return sha1_hex(f"{copy}{''.join(paths)}")
