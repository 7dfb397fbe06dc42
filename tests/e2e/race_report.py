"""The race's figures: as a table for people and a document for programs."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from e2e.race_trials import Trial


@dataclass(frozen=True)
class Result:
    """One cell's trials. `others` is how many pods without devices there were."""

    name: str
    what: str
    setup: str
    condition: str
    pods: str
    others: int
    trials: Sequence[Trial] = field(repr=False)

    @property
    def lost(self) -> int:
        """Pods lost, or with other devices than they should have."""
        return sum(len(trial.lost) for trial in self.trials)

    @property
    def known(self) -> list[float]:
        """When the last resource was known, milliseconds after the socket, ascending."""
        return sorted(trial.known for trial in self.trials)

    @property
    def margins(self) -> list[float]:
        """The first pod minus that, ascending."""
        return sorted(trial.margin for trial in self.trials)

    @property
    def title(self) -> str:
        """What was done, for people."""
        others = f", {self.others} more pods" if self.others else ""
        return f"{self.what}, {self.setup}, {self.condition}, pods: {self.pods}{others}"


def machine(kubelet: Path, seconds: float) -> dict[str, Any]:
    """Where and how long."""
    return {
        "kubelet": kubelet.parent.name,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "minutes": round(seconds / 60, 1),
    }


def rank(ordered: Sequence[float], share: float) -> float:
    """Nearest rank of ascending values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(result: Result) -> dict[str, Any]:
    """One cell in numbers."""
    known, margins = result.known, result.margins
    spent = [sum(ms for name, ms in one.cpu.items() if name not in ("watcher", "supervisord")) for one in result.trials]
    return {
        "trials": len(result.trials),
        "pods": sum(trial.pods for trial in result.trials),
        "lost": result.lost,
        "known_ms": {"p50": rank(known, 0.5), "p99": rank(known, 0.99), "max": known[-1]},
        "saved_ms": {"p50": rank(sorted(one.saved for one in result.trials), 0.5)},
        "margin_ms": {"min": margins[0], "p1": rank(margins, 0.01), "p50": rank(margins, 0.5)},
        "fronts_cpu_ms": round(median(spent), 1),
        "watcher_cpu_ms": round(median(one.cpu["watcher"] for one in result.trials), 1),
        "supervisord_cpu_ms": round(median(one.cpu["supervisord"] for one in result.trials), 1),
        "page_reads": round(median(one.faults for one in result.trials)),
        "others_share": {
            "p50": round(median(one.others for one in result.trials), 3),
            "max": max(one.others for one in result.trials),
        },
    }


def document(results: Sequence[Result], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, every trial included."""
    cells = [
        {
            **{key: getattr(result, key) for key in ("name", "what", "setup", "condition", "pods", "others")},
            "summary": summary(result),
            "trials": [asdict(trial) for trial in result.trials],
        }
        for result in results
    ]
    return {"machine": dict(about), "cells": cells}


def table(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = [
        "",
        f"{about['kubelet']}, {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}, "
        f"{about['minutes']} minutes",
        "",
        "| | n | pods lost | known after, ms: p50, p99, max | margin, ms: min, p1, p50 | fronts' CPU, ms | others |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        one = summary(result)
        known, margin = one["known_ms"], one["margin_ms"]
        lines.append(
            f"| {result.title} | {one['trials']} | {one['lost']} of {one['pods']} "
            f"| {known['p50']:.1f}, {known['p99']:.1f}, {known['max']:.1f} "
            f"| {margin['min']:+.1f}, {margin['p1']:+.1f}, {margin['p50']:+.1f} "
            f"| {one['fronts_cpu_ms']:.1f} | {one['others_share']['p50']:.0%}, {one['others_share']['max']:.0%} |"
        )
    return "\n".join(lines)
