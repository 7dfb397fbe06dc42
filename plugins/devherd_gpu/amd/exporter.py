"""What AMD's metrics exporter says about GPUs, where it runs on this node.

Its service `metricssvc.MetricsService/List` answers with GPU states: field 3 is the health, field 5 the PCI address
(the device plugin's id). Only the word `unhealthy` is against a GPU; anything else, and no answer at all, is for none.
"""

from __future__ import annotations

import os

from devherd_gpu.common import protowire
from devherd_gpu.common.unary import CallError, call

METHOD = "/metricssvc.MetricsService/List"
TIMEOUT = 2.0
"""Seconds. A service that is slow must not hold up the check of everything else."""
_STATES, _HEALTH, _DEVICE = 1, 3, 5


def unhealthy(socket_path: str) -> set[str] | None:
    """PCI addresses the exporter calls unhealthy; None when there is no answer to go by."""
    if not socket_path or not os.path.exists(socket_path):
        return None
    try:
        return parse(call(socket_path, METHOD, timeout=TIMEOUT))
    except (CallError, protowire.WireError):
        return None


def parse(message: bytes) -> set[str]:
    """The same from a response. Raises WireError."""
    found: set[str] = set()
    for number, state in protowire.fields(message):
        if number != _STATES or not isinstance(state, bytes):
            continue
        values = {key: protowire.text(value) for key, value in protowire.fields(state) if isinstance(value, bytes)}
        if values.get(_HEALTH, "").lower() == "unhealthy":
            found.add(values.get(_DEVICE, "").lower())
    return found - {""}
