"""`python -m e2e.compare [NAME...]`: run scenarios on both sides, or on one, and print what they show."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from e2e import binaries, sandbox
from e2e.compare.compare import Result, compare, differences, run
from e2e.compare.real import Real
from e2e.compare.scenarios import every
from e2e.compare.simulated import Simulated


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.compare", description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios (default: all that are not long)")
    parser.add_argument("--side", choices=("both", "simulated", "real"), default="both")
    parser.add_argument("--line", default=binaries.NEWEST, help="kubelet line (default: the newest)")
    parser.add_argument("--long", action="store_true", help="the long ones as well")
    parser.add_argument("--show", action="store_true", help="print all that was noted")
    given = parser.parse_args()
    chosen = [s for s in every() if (s.name in given.names if given.names else given.long or not s.long)]
    if given.side != "simulated" and not sandbox.inside():
        binaries.built(binaries.kubernetes(given.line, "kubelet"))
        return _in_sandbox()
    simulated = Simulated(_line(given.line))
    real = None
    if given.side != "simulated":
        kubelet = os.environ.get("DEVHERD_E2E_KUBELET")
        path = Path(kubelet) if kubelet else binaries.built(binaries.kubernetes(given.line, "kubelet"))["kubelet"]
        real = Real(Path(os.environ[sandbox.FOLDER]) / "compare", path)
        simulated = Simulated(real.line)
    bad = 0
    try:
        for scenario in chosen:
            begun = time.monotonic()
            if real is None or given.side == "real":
                result = run(scenario, simulated if real is None else real)
                lines = differences(result, result)
            else:
                _, result, lines = compare(scenario, simulated, real)
            times = f"{time.monotonic() - begun:.1f} s"
            bad += bool(lines)
            print(f"{'differs' if lines else 'same'}: {scenario.name} ({times})", flush=True)
            if given.show:
                _show(result)
            for text in lines:
                print(f"  {text}", flush=True)
    finally:
        if real is not None:
            real.close()
    return 1 if bad else 0


def _in_sandbox() -> int:
    """This program again, in a sandbox of which nothing is left."""
    folder = Path(tempfile.mkdtemp(prefix="devherd-e2e-", dir="/var/tmp"))
    try:
        child = os.fork()
        if not child:
            sandbox.enter("e2e.compare", sys.argv[1:], folder)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _line(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _show(result: Result) -> None:
    for what, value in result.notes:
        print(f"    {what}: {value!r}")


if __name__ == "__main__":
    sys.exit(main())
