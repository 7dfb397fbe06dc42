"""docs/simulation.md, made from the scenarios, so that the page cannot claim what nothing checks.

`python -m e2e.compare.docs` writes it, `--check` only says whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.compare.scenarios import every

PAGE = Path(__file__).parents[3] / "docs" / "simulation.md"

BEHAVIOURS = {
    1: "the folder appears before the socket",
    2: "a start removes sockets directly in the folder",
    3: "checkpoint, files and subfolders survive a start",
    4: "between bind and listen a connection is refused",
    5: "an ended kubelet leaves a socket that refuses",
    6: "other API versions are refused",
    7: "names that are no extended resources are refused",
    8: "an endpoint is joined to the folder and cleaned",
    9: "dialling back blocks Register, ten seconds at most",
    10: "the plugin is dialled with the authority `localhost`",
    11: "options are asked for inside Register; the request's do not count",
    12: "an error in the options fails Register, and no list is asked for",
    13: "Register is answered before the stream opens",
    14: "the stream is opened once, without deadline, and never again",
    15: "a list over 4 MiB ends the stream",
    16: "each list is complete",
    17: "how capacity and allocatable are counted, duplicates included",
    18: "a stream's end: unhealthy at once, forgotten after five minutes",
    19: "a second connection for a resource, before 1.37 and since",
    20: "a second connection that fails",
    21: "after a restart a resource is known with nothing until it registers",
    22: "why pods are refused, in exact words",
    23: "running containers pass until all sources have spoken",
    24: "cached answers are used again; no Allocate on a restart",
    25: "Allocate: one container, no order, no deadline, one at a time",
    26: "GetPreferredAllocation: what is offered, and what its answer means",
    27: "answers with no or several container responses",
    28: "PreStartContainer: before each creation, 30 seconds, not while options are unknown",
    29: "init containers pass their devices on, sidecars do not",
    30: "answers of several resources are merged",
    31: "a pod can be refused after Allocate",
    32: "a hung Allocate stops everything",
    33: "the checkpoint: content, and a new file for each list",
    34: "PodResources: v1, v1alpha1, NUMA nodes, what is left out, the rate limit",
    35: "device health in pod status",
    36: "registration through plugins_registry",
    37: "streams are cut when the kubelet ends",
    38: "a frozen kubelet accepts and answers nothing",
    39: "dynamic resource allocation",
    40: "ids in use that leave the list: called healthy, or the end of the kubelet",
}

UNCHECKED = {
    4: "simulated (`listen_delay_ms`); microseconds in a real kubelet, which nothing can stretch",
    39: "not simulated",
}

_HEAD = """\
# The simulated kubelet, and how far it is the real one

Tests run on a simulated kubelet (`shared/devherd/sim`): it starts in milliseconds, needs no root, and does on demand
what a real one does once a year. That is worth as much as the simulation is true. So one set of scenarios runs on both,
with a plugin that records every call and misbehaves on demand, and all that can be seen must be the same: the calls
that the plugin gets, with their order, arguments and deadlines; capacity and allocatable; what becomes of pods, reason
and message to the letter; what is in the containers; the checkpoint; the answers of PodResources.

`make e2e` runs them on the newest kubelet (as root; builds it once), `make e2e-skew` on every line. One alone, with all
that was seen:

    PYTHONPATH=tests .venv/bin/python -m e2e.compare reboot-in-time --show

This page is generated from the scenarios (`make docs`); do not edit it.

## Behaviours

| # | The kubelet's behaviour | Checked by |
|---|---|---|
"""
_SCENARIOS = """
## Scenarios

Static pods on a kubelet without API server, on a machine that shows two NUMA nodes.

| Scenario | Shows | Remarks |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    covered: dict[int, list[str]] = {number: [] for number in BEHAVIOURS}
    rows = []
    for one in sorted(every(), key=lambda one: one.name):
        for number in one.items:
            covered[number].append(f"`{one.name}`")
        remarks = [f"policy {one.options['topology_policy']}"] if "topology_policy" in one.options else []
        if one.since > (1, 34):
            remarks.append(f"since {one.since[0]}.{one.since[1]}")
        if one.long:
            remarks.append(f"{one.long} s on a real kubelet, beside the others; scaled in the simulation")
        rows.append(f"| `{one.name}` | {one.shows} | {', '.join(remarks)} |")
    lines = []
    for number, text in BEHAVIOURS.items():
        lines.append(f"| {number} | {text} | {', '.join(covered[number]) or UNCHECKED[number]} |")
    return _HEAD + "\n".join(lines) + "\n" + _SCENARIOS + "\n".join(rows) + "\n"


def main() -> int:
    """Write the page, or check it."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/simulation.md is not up to date; run make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
