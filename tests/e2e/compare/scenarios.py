"""All scenarios, in the order they run: those with a policy of their own last, so that the kubelet restarts once."""

from __future__ import annotations

from e2e.compare import allocation, life, lists, observers, registration, topology
from e2e.compare.scenario import ALL, Scenario

_MODULES = (registration, lists, allocation, observers, life, topology)


def every() -> list[Scenario]:
    """Every scenario."""
    assert _MODULES
    return sorted(ALL.values(), key=lambda one: str(one.options.get("topology_policy", "")))
