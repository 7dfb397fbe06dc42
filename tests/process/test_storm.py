"""Everything at once: a random sequence of all that can happen to a node, with what must hold checked throughout.

`make storm SECONDS=600 SEED=7` runs it longer, and again: the seed decides what happens in which order.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from support.rival import SOCKET
from support.storm import Storm
from support.two_vendors import SmallDisks, TwoVendors

SECONDS = float(os.environ.get("DEVHERD_STORM_SECONDS") or 60)
SEED = int(os.environ.get("DEVHERD_STORM_SEED") or random.randrange(1_000_000))
ADMIT_GAP = 400.0
"""Milliseconds. This is about what is right; how soon it is right on a machine of one's own, test_soak tells."""
SETTINGS: dict[str, Any] = {
    "kubelet": {"poll": 1.0},
    "health": {"recover": 0.1, "debounce": 0.2, "hold_off_max": 2.0},
    "probe": {"scan_interval": 1.0, "deadline": 2.0, "restart_max": 1.0},
    "snapshots": {"grace": 600.0},
}


class Node(SmallDisks, TwoVendors):
    """What the storm happens to."""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    running = Node("s", SETTINGS, kubelet_options={"admit_gap_ms": ADMIT_GAP}, exec_gap=1.5)
    try:
        running.start()
        yield running
    finally:
        left = running.stop()
        running.unmount()
        shutil.rmtree(folder, ignore_errors=True)
    # What a rival left, and the simulator's own of a kubelet that was slow to listen, are not ours.
    sockets = [path for path in left.sockets if not path.endswith(("/r.sock", SOCKET))]
    assert (list(left.processes), sockets) == ([], [])


@pytest.mark.timeout(SECONDS + 240)
def test_storm(node: Node) -> None:
    print(f"storm: SECONDS={SECONDS:g} SEED={SEED} small disks: {node.disks}")
    storm = Storm(node, SEED, node.disks)
    try:
        storm.start()
        storm.run(SECONDS)
        storm.finish()
    except BaseException:
        print(storm.story())
        print(f"again: make storm SECONDS={SECONDS:g} SEED={SEED}")
        raise
    print(f"{storm.summary()}; {storm.pods} pods")
