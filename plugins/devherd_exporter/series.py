"""Samples by family, before they are cut to size and written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from devherd_exporter.catalog import BY_NAME

Labels = tuple[str, ...]


class Histogram(NamedTuple):
    """Cumulative counts below each bound in seconds, the total count, and the sum of all in seconds."""

    buckets: tuple[tuple[float, float], ...]
    total: float
    seconds: float

    @property
    def size(self) -> int:
        """Lines it takes: the buckets, the one without a bound, count and sum."""
        return len(self.buckets) + 3


Value = float | Histogram


class Series:
    """All samples of one answer."""

    def __init__(self) -> None:
        self.families: dict[str, dict[Labels, Value]] = {}

    def add(self, name: str, labels: Labels, value: Any) -> None:
        """Set one sample; what is no finite number (an older program does not know it yet) is left out.

        A second sample with the same labels is added to the first: no label set may appear twice.
        """
        if len(labels) != len(BY_NAME[name].labels):
            raise ValueError(f"{name} has the labels {BY_NAME[name].labels}, not {labels}")
        number = as_number(value)
        if number is None:
            return
        family = self.families.setdefault(name, {})
        before = family.get(labels, 0.0)
        family[labels] = number + before if isinstance(before, float) else number

    def add_histogram(self, name: str, labels: Labels, value: Any) -> None:
        """Set a histogram from a front's counters; anything else is left out."""
        histogram = as_histogram(value)
        if histogram is not None:
            self.families.setdefault(name, {})[labels] = histogram

    @property
    def size(self) -> int:
        """Lines all of it takes."""
        return sum(sum(map(size_of, family.values())) for family in self.families.values())


def size_of(value: Value) -> int:
    """Lines one sample takes."""
    return value.size if isinstance(value, Histogram) else 1


def as_number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None


def as_histogram(value: Any) -> Histogram | None:
    """What a front says of its latencies, checked: counts that fall would make every client refuse the answer."""
    if not isinstance(value, Mapping):
        return None
    count, seconds = as_number(value.get("count")), as_number(value.get("seconds"))
    if count is None or seconds is None:
        return None
    buckets: list[tuple[float, float]] = []
    pairs = value.get("buckets")
    if not isinstance(pairs, list):
        return None
    for pair in pairs:
        numbers = [as_number(item) for item in pair] if isinstance(pair, list | tuple) and len(pair) == 2 else []
        if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            return None
        buckets.append((numbers[0], numbers[1]))
    counts = [0.0, *(below for _, below in buckets), count]
    bounds = [bound for bound, _ in buckets]
    if counts != sorted(counts) or bounds != sorted(set(bounds)):
        return None
    return Histogram(tuple(buckets), count, seconds)
