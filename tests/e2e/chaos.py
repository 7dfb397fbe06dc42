"""`make chaos SECONDS=N SEED=S`: everything happens to a real kubelet's node, in an order that the seed decides.

Fails when a pod loses its device, gets a wrong one or none, when the kubelet does not know the truth within seconds of
calm, when two fronts fight, or when something is left behind or grows; then the history, the logs' ends and the folder
with all of them are shown.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e import sandbox
from e2e.binaries import NEWEST, built, kubernetes
from e2e.chaos_events import Chaos
from e2e.chaos_memory import MemoryGroup
from e2e.chaos_scene import scene
from e2e.chaos_site import ChaosSuite, Hardware, KeptKubelet, stopped

MODULE = "e2e.chaos"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--kubelet", type=Path, help="a kubelet by path ($DEVHERD_E2E_KUBELET; default: the newest)")
    parser.add_argument("--topology", default="single-numa-node", help="the kubelet's topology manager policy")
    parser.add_argument(
        "--busy", type=int, default=0, help="1: others use this machine; give it thrice the time, and count pods lost"
    )
    parser.add_argument("--only", default="", help="names of what may happen, with commas between; default: everything")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if sandbox.inside():
        return chaos(given)
    if given.folder is not None:
        arguments = [word for pair in _arguments(given) for word in pair]
        try:
            sandbox.enter(MODULE, arguments, given.folder)
        except sandbox.Unusable as problem:
            print(f"chaos needs a sandbox: {problem}", file=sys.stderr)
            return 1
    given.kubelet = given.kubelet or os.environ.get("DEVHERD_E2E_KUBELET") or _newest()
    given.folder = Path(tempfile.mkdtemp(prefix="dhchaos", dir="/tmp"))
    words = [word for pair in _arguments(given) for word in pair]
    code = subprocess.run([sys.executable, "-m", MODULE, *words], check=False).returncode
    if code == 0:
        shutil.rmtree(given.folder, ignore_errors=True)
    return code


def _arguments(given: argparse.Namespace) -> list[tuple[str, str]]:
    names = ("seconds", "seed", "kubelet", "topology", "busy", "only", "folder")
    return [(f"--{name}", str(getattr(given, name))) for name in names]


def _newest() -> Path:
    return built(kubernetes(NEWEST, "kubelet"))["kubelet"]


def chaos(given: argparse.Namespace) -> int:
    """Inside the sandbox: one run. 0 when all held."""
    os.environ["XDG_RUNTIME_DIR"] = "/run"
    seconds, seed, folder = given.seconds, given.seed, given.folder
    again = f"make chaos SECONDS={seconds:g} SEED={seed}"
    layout = random.Random(seed).choice(("auto", "subfolder", "top"))
    print(
        f"{again} on {given.kubelet.parent.name}, topology policy {given.topology}, sockets {layout}; logs: {folder}",
        flush=True,
    )
    memory = _memory()
    node = KeptKubelet(folder / "node", given.kubelet, topology=given.topology)
    hardware = Hardware()
    suite = ChaosSuite(layout, memory)
    code = 1
    try:
        with stopped(suite, node):
            suite.start()
            node.up()
            run = Chaos(suite, node, hardware, seed, busy=bool(given.busy))
            run.only = given.only.split(",") if given.only else ()
            run.diary = folder / "history.txt"
            try:
                run.start()
                run.run(seconds)
                run.finish()
                code = 0
            except BaseException:
                _keep(run, folder)
                print(f"again: {again}", flush=True)
                raise
            finally:
                print(report(run), flush=True)
    finally:
        if memory is not None:
            memory.close()
    return code


def _memory() -> MemoryGroup | None:
    try:
        return MemoryGroup()
    except OSError as problem:
        print(f"without memory pressure: no memory group can be made here ({problem})")
        return None


def _keep(run: Chaos, folder: Path) -> None:
    """What a person needs to find the cause; devherd's own folder goes with the sandbox."""
    (folder / "scene.txt").write_text("\n".join(scene(run.node, run.kubelet)) + "\n")
    shutil.copytree(run.node.layout.log, folder / "devherd-log", dirs_exist_ok=True)
    said = run.kubelet.log().text.splitlines()
    print(run.story(), "kubelet:", *[line for line in said if "httplog" not in line][-60:], sep="\n")


def report(run: Chaos) -> str:
    """Figures."""
    calms = sorted(seconds for seconds, _ in run.calms) or [0.0]
    slowest = sorted(run.calms, reverse=True)[:3]
    outcomes = ", ".join(f"{count} {what}" for what, count in run.pods.outcomes.items())
    return "\n".join(
        [
            run.summary(),
            f"{run.kubelet.lives} kubelet lives, {run.registers} registrations; pods that came meanwhile: {outcomes}",
            f"from calm to the truth, {len(calms)} times: median {calms[len(calms) // 2]:.2f} s, "
            f"99th percentile {calms[int(len(calms) * 0.99)]:.2f} s, longest {calms[-1]:.2f} s",
            *(f"  {seconds:.2f} s after {what}" for seconds, what in slowest),
            f"most that a process grew after its first seconds: {run.census.grown} (private in KiB)",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
