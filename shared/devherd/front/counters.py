"""What a front counts since its start; `status` shows it and the exporter makes metrics of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.5)
"""Upper bounds of the latency histogram in seconds; the budget for an Allocate is 5 ms."""


class Latency:
    """A histogram of durations in seconds, in the buckets above and one without a bound."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._counts = [0] * len(BUCKETS)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.count += 1
        self.sum += seconds
        for index, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self._counts[index] += 1
                break

    def as_json(self) -> dict[str, Any]:
        """Count, sum, and how many took at most each bound (each bucket holds the ones before)."""
        total, buckets = 0, []
        for bound, count in zip(BUCKETS, self._counts, strict=True):
            total += count
            buckets.append([bound, total])
        return {"count": self.count, "seconds": self.sum, "buckets": buckets}


@dataclass
class ResourceCounters:
    """One resource's. `allocations` are containers, `allocated` the devices they got."""

    allocations: int = 0
    allocated: int = 0
    refusals: int = 0
    released: int = 0
    streams_lost: int = 0
    taken: int = 0


@dataclass
class Counters:
    """A front's. `kubelets` are kubelet lives seen; `probe_hangs` are deadlines missed, `probe_ends` ends unasked."""

    kubelets: int = 0
    scans: int = 0
    scan_failures: int = 0
    checks: int = 0
    check_failures: int = 0
    probe_hangs: int = 0
    probe_ends: int = 0
    prepares: int = 0
    prepare_failures: int = 0
    configurations_refused: int = 0
    allocate: Latency = field(default_factory=Latency)
    resources: dict[str, ResourceCounters] = field(default_factory=lambda: defaultdict(ResourceCounters))

    def as_json(self) -> dict[str, Any]:
        """The front's own figures; those of resources are shown with their resource."""
        figures = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        return {**figures, "allocate": self.allocate.as_json()}

    def of(self, resource: str) -> dict[str, int]:
        """One resource's figures."""
        return asdict(self.resources[resource])
