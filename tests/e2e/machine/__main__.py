"""`python -m e2e.machine [--boots N] [--build] [pytest's arguments]`: makes the machine's disk, then runs the cases.

It needs no network apart from the first build, and nothing of this machine but qemu. DEVHERD_E2E_KEEP keeps the folder
with the console's log.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from e2e import binaries
from e2e.machine import image
from e2e.machine.conftest import FOLDER

BOOTS = "DEVHERD_E2E_BOOTS"
_UNUSABLE = 2


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.machine", description=__doc__)
    parser.add_argument("--boots", type=int, default=20, help="cold boots (default: 20)")
    parser.add_argument("--build", action="store_true", help="make the disk and stop")
    given, rest = parser.parse_known_args()
    if lacks := image.missing():
        print("A machine cannot be made here. Missing:", *lacks, sep="\n  ", file=sys.stderr)
        return _UNUSABLE
    try:
        print(f"the machine's disk: {image.made().disk}", flush=True)
    except (image.Unavailable, binaries.BuildError) as problem:
        print(problem, file=sys.stderr)
        return _UNUSABLE
    return 0 if given.build else _run(given.boots, rest)


def _run(boots: int, rest: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="devherd-machine-", dir="/var/tmp"))
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent / "test_machine.py"), "-s", *rest]
    try:
        return subprocess.run(
            command, env={**os.environ, FOLDER: str(folder), BOOTS: str(boots)}, check=False
        ).returncode
    finally:
        print(f"== {time.monotonic() - began:.0f} s", flush=True)
        if os.environ.get("DEVHERD_E2E_KEEP"):
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
