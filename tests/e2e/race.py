"""`make bench-race`: who comes first after a kubelet's start, the devices or the first pod, and how many pods are lost.

Simulated reboots (kubelet, containers and devherd gone; devherd up before the kubelet) and kubelet restarts, for
several numbers of plugins, idle and disturbed. A table, and with `--out` a JSON document with every trial and a plot.
The exit status is 1 when a pod was lost anywhere but under the stress of nine plugins.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import binaries, sandbox
from e2e.chaos_memory import MemoryGroup
from e2e.node import RealNode
from e2e.race_plot import plot
from e2e.race_report import Result, document, machine, table
from e2e.race_site import FOUR, NINE, ONE, Hogs, Site
from e2e.race_trials import Trial, reboot, restart

MODULE = "e2e.race"
REBOOT, RESTART = "reboot", "kubelet restart"


@dataclass(frozen=True)
class Cell:
    """One row of the table. `trials` at scale 1; `others` is how many pods without devices there are."""

    name: str
    what: str
    setup: str
    trials: int
    condition: str = "idle"
    pods: str = "static"
    others: int = 0


CELLS = (
    Cell("four", REBOOT, FOUR, 100),
    Cell("four-restart", RESTART, FOUR, 100, pods="every state"),
    Cell("one", REBOOT, ONE, 40),
    Cell("nine", REBOOT, NINE, 20),
    Cell("one-load", REBOOT, ONE, 20, "loaded"),
    Cell("four-load", REBOOT, FOUR, 40, "loaded"),
    Cell("nine-load", REBOOT, NINE, 10, "loaded"),
    Cell("four-restart-load", RESTART, FOUR, 20, "loaded", "every state"),
    Cell("nine-restart", RESTART, NINE, 20, pods="every state"),
    Cell("four-memory", REBOOT, FOUR, 20, "memory"),
    Cell("four-110", RESTART, FOUR, 10, pods="every state", others=106),
    Cell("four-api", REBOOT, FOUR, 20, pods="API"),
    Cell("nine-api", REBOOT, NINE, 10, pods="API"),
)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make bench-race ARGS=", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="CELL", choices=[cell.name for cell in CELLS])
    parser.add_argument("--scale", type=float, default=1.0, help="times as many trials (default: 100 reboots, ...)")
    parser.add_argument("--out", type=Path, help="where race.json and race.svg go")
    parser.add_argument("--kubelet", type=Path, help="a kubelet by path ($DEVHERD_E2E_KUBELET; default: the newest)")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    cells = [cell for cell in CELLS if not given.only or cell.name in given.only]
    if not sandbox.inside():
        return _outside(given, cells)
    return race(cells, given)


def _outside(given: argparse.Namespace, cells: list[Cell]) -> int:
    """Build what is needed while there is a network, then run again in the sandbox."""
    if given.folder is not None:
        try:
            sandbox.enter(MODULE, sys.argv[1:], given.folder)
        except sandbox.Unusable as problem:
            print(f"the race needs a sandbox: {problem}", file=sys.stderr)
        return 2
    kubelet = given.kubelet or os.environ.get("DEVHERD_E2E_KUBELET") or _built(cells)
    folder = Path(tempfile.mkdtemp(prefix="devherd-race-", dir="/var/tmp"))
    words = [*sys.argv[1:], "--kubelet", str(kubelet), "--folder", str(folder)]
    try:
        return subprocess.run([sys.executable, "-m", MODULE, *words], check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _built(cells: list[Cell]) -> Path:
    if any(cell.pods == "API" for cell in cells):
        _control_plane()
    return binaries.built(binaries.kubernetes(binaries.NEWEST, "kubelet"))["kubelet"]


def _control_plane() -> dict[str, Path]:
    recipe = binaries.kubernetes(binaries.NEWEST, "kube-apiserver", "kube-scheduler", "kubectl")
    return {**binaries.built(recipe), **binaries.built(binaries.etcd())}


def race(cells: list[Cell], given: argparse.Namespace) -> int:
    """Inside the sandbox: every cell, then the report."""
    results: list[Result] = []
    about: dict[str, Any] = {}
    start = time.monotonic()
    for kind in ("alone", "cluster"):
        mine = [cell for cell in cells if (cell.pods == "API") == (kind == "cluster")]
        if mine:
            node = RealNode(given.folder / kind, given.kubelet, cluster=_control_plane() if kind == "cluster" else None)
            try:
                for cell in mine:
                    results.append(_run(node, cell, max(1, round(cell.trials * given.scale))))
                    # After each, so that a run that is broken off leaves what it has.
                    about = machine(given.kubelet, time.monotonic() - start)
                    _keep(results, about, given.out)
            finally:
                node.down()
    print(table(results, about), flush=True)
    return 1 if any(result.lost for result in results if result.setup != NINE) else 0


def _keep(results: list[Result], about: dict[str, Any], folder: Path | None) -> None:
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "race.json").write_text(json.dumps(document(results, about), indent=1) + "\n")
        (folder / "race.svg").write_text(plot(results))


def _run(node: RealNode, cell: Cell, trials: int) -> Result:
    one: Callable[[Site, int, Callable[[], object]], Trial] = reboot if cell.what == REBOOT else restart
    done: list[Trial] = []
    print(f"{cell.name}: {trials} x {cell.what}, {cell.setup}, {cell.condition}, pods: {cell.pods}", file=sys.stderr)
    with _memory(cell.condition) as memory, Site(node, cell.setup, memory) as site:
        if cell.pods == "every state":
            site.pods_in_every_state()
        else:
            site.pod_on_each(api=cell.pods == "API")
        if cell.others:
            site.bystanders(cell.others)
        with Hogs() if cell.condition == "loaded" else contextlib.nullcontext():
            for number in range(trials):
                trial = one(site, number, site.squeeze if memory else lambda: None)
                done.append(trial)
                said = f"known {trial.known:.1f}, margin {trial.margin:+.1f} ms, others {trial.others:.0%}"
                print(f"  {number + 1}: {said}", *trial.lost, sep="; ", file=sys.stderr, flush=True)
    return Result(cell.name, cell.what, cell.setup, cell.condition, cell.pods, cell.others, done)


@contextlib.contextmanager
def _memory(condition: str) -> Iterator[MemoryGroup | None]:
    if condition != "memory":
        yield None
        return
    group = MemoryGroup()
    try:
        yield group
    finally:
        group.close()


if __name__ == "__main__":
    sys.exit(main())
