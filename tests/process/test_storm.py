"""Everything at once: a random sequence of all that can happen to a node, with what must hold checked throughout.

`make storm SECONDS=600 SEED=7` runs it longer, and again: the seed decides what happens in which order.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rival import SOCKET
from support.storm import Storm
from support.two_vendors import TwoVendors

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


class SmallDisks(TwoVendors):
    """With file systems of its own for /run and /var, where that is possible."""

    disks = False

    def _prepare(self) -> None:
        super()._prepare()
        places = [self.layout.state, self.layout.run]
        self.disks = os.geteuid() == 0 and all(self._mount(place) for place in places)

    @staticmethod
    def _mount(place: str) -> bool:
        options = ["-t", "tmpfs", "-o", "size=4m,mode=0755", "none", place]
        return subprocess.run(["mount", *options], check=False, capture_output=True).returncode == 0

    def unmount(self) -> None:
        for place in (self.layout.state, self.layout.run):
            while subprocess.run(["umount", "-l", place], check=False, capture_output=True).returncode == 0:
                pass


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisks]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    running = SmallDisks("s", SETTINGS, kubelet_options={"admit_gap_ms": ADMIT_GAP}, exec_gap=1.5)
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
def test_storm(node: SmallDisks) -> None:
    print(f"storm: SECONDS={SECONDS:g} SEED={SEED} small disks: {node.disks}")
    storm = Storm(node, SEED, node.disks)
    try:
        storm.start()
        storm.run(SECONDS)
        storm.finish()
    except BaseException:
        print("what happened last:", *storm.history[-25:], sep="\n")
        for path in sorted(Path(node.layout.log).glob("*.log")):
            print(f"{path.name}:\n{path.read_text(errors='replace')[-5000:]}")
        print(f"again: make storm SECONDS={SECONDS:g} SEED={SEED}")
        raise
    happened = ", ".join(f"{name} {count}" for name, count in sorted(storm.counts.items()))
    print(f"{sum(storm.counts.values())} things happened to {storm.pods} pods: {happened}")
