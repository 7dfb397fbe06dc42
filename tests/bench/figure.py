"""A measured figure, its budget and whether it is met."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One row. `name` is for programs, `text` the figure for people, `values` the same as numbers (unit in the key).

    `budget` is empty and `met` None where DESIGN names no budget: such a row is there to be compared.
    """

    name: str
    what: str
    text: str
    values: Mapping[str, float]
    method: str
    budget: str = ""
    met: bool | None = None
    case: str = field(default="", compare=False)


def percentile(samples: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest sample that at least `share` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and maximum in milliseconds, and how many samples there were."""
    marks = {"p50_ms": percentile(seconds, 0.5), "p99_ms": percentile(seconds, 0.99), "max_ms": max(seconds)}
    return {**{key: round(value * 1000, 3) for key, value in marks.items()}, "samples": len(seconds)}


def latency(
    name: str,
    what: str,
    seconds: Sequence[float],
    method: str,
    limits: Mapping[str, float] | None = None,
) -> Figure:
    """A figure of durations. `limits`: milliseconds for `p50`, `p99` or `max`, each of which must hold."""
    values = spread(seconds)
    text = (
        f"p50 {_ms(values['p50_ms'])}, p99 {_ms(values['p99_ms'])}, max {_ms(values['max_ms'])} ms (n={len(seconds)})"
    )
    if not limits:
        return Figure(name, what, text, values, method)
    budget = ", ".join(f"{mark} ≤ {limit:g} ms" for mark, limit in limits.items())
    met = all(values[f"{mark}_ms"] <= limit for mark, limit in limits.items())
    return Figure(name, what, text, values, method, budget, met)


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def megabytes(count: float) -> float:
    """Bytes in MB of 10**6, as the budgets count them."""
    return round(count / 1e6, 1)
