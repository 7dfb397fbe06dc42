"""Cuts an answer to at most 500 series, the least important detail first, always in the same order.

Resources are kept by name, not by state: what is merged today is merged tomorrow, and no counter jumps because
something else became unhealthy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from devherd_exporter.catalog import BY_NAME, CATALOG, LIMIT, PODS, RESOURCE
from devherd_exporter.figures import OTHER
from devherd_exporter.series import Histogram, Labels, Series, Value

CUTS = ("buckets", "families", "pods", "reasons", "resources")
OVERHEAD = len(CUTS) + 1
"""Series that tell of the cut itself: devherd_series_cut and devherd_series."""
_MERGES: dict[str, Callable[[Any, Any], float]] = {"sum": operator.add, "min": min, "max": max}
ANY = "any"
"""Stands for every reason once reasons are merged."""


def cut(series: Series, limit: int = LIMIT) -> Series:
    """The same samples within `limit`; devherd_series_cut says what was merged or left out."""
    room = limit - OVERHEAD
    done = dict.fromkeys(CUTS, 0)
    done["pods"] = _pods(series, PODS)
    if series.size > room and "devherd_pod_devices" in series.families:
        done["pods"] += _pods(series, 0)
    if series.size > room:
        done["buckets"] = _buckets(series)
    if series.size > room:
        done["reasons"] = _reasons(series)
    if series.size > room:
        done["resources"] = _resources(series, room)
    for metric in reversed(CATALOG):
        if series.size <= room:
            break
        done["families"] += series.families.pop(metric.name, None) is not None
    for what, count in done.items():
        series.add("devherd_series_cut", (what,), count)
    series.add("devherd_series", (), series.size + 1)
    return series


def _pods(series: Series, most: int) -> int:
    """Keep the first `most` pods by name, and one sample for the others of each resource. Returns how many merged."""
    family = series.families.get("devherd_pod_devices", {})
    pods = sorted({labels[1:] for labels in family} - {(OTHER, OTHER)})
    kept = set(pods[:most])
    if len(pods) > len(kept):
        _relabel(series, "devherd_pod_devices", lambda one: one if one[1:] in kept else (one[0], OTHER, OTHER))
    return len(pods) - len(kept)


def _buckets(series: Series) -> int:
    for family in series.families.values():
        for labels, value in family.items():
            if isinstance(value, Histogram):
                family[labels] = value._replace(buckets=())
    return 1


def _reasons(series: Series) -> int:
    """One sample for all reasons. Returns how many were merged away."""
    before = series.size
    _relabel(series, "devherd_skipped_devices", lambda one: (one[0], ANY))
    _relabel(series, "devherd_devices", lambda one: (*one[:3], ANY) if one[2] == "unhealthy" else one)
    return before - series.size


def _resources(series: Series, room: int) -> int:
    """Keep the first resources by plugin and name, merge the others into one. Returns how many were merged."""
    families = [metric.name for metric in CATALOG if metric.labels[:2] == RESOURCE]
    resources = sorted({labels[:2] for name in families for labels in series.families.get(name, {})})
    others = series.size - sum(len(series.families.get(name, {})) for name in families)
    # Healthy and unhealthy are two, and each resource counts with all it may ever have: so the same ones stay.
    each = len(families) + 1
    states = {labels[2:] for labels in series.families.get("devherd_registration_state", {})}
    fitting = max(0, (room - others - each - len(states)) // each)
    kept = set(resources[:fitting])
    for name in families:
        _relabel(series, name, lambda one: one if one[:2] in kept else (OTHER, OTHER, *one[2:]))
    return len(resources) - len(kept)


def _relabel(series: Series, name: str, change: Callable[[Labels], Labels]) -> None:
    merge = _MERGES[BY_NAME[name].merge]
    merged: dict[Labels, Value] = {}
    for labels, value in series.families.get(name, {}).items():
        target = change(labels)
        before = merged.get(target)
        both = isinstance(before, float) and isinstance(value, float)
        merged[target] = merge(before, value) if both else value
    if merged:
        series.families[name] = merged
