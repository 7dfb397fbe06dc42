"""`python -m e2e`: builds the programs once, then runs the tests on a real kubelet in sandboxes of their own.

`python -m e2e [--line 1.36]... [pytest's arguments]`. Without a line: the newest kubelet. Cases that wait out the
kubelet's five minutes of grace (marked `grace`) run beside the others, in a second sandbox.
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

from e2e import binaries, sandbox

HERE = Path(__file__).parent
LINE = "DEVHERD_E2E_LINE"
KUBELET = "DEVHERD_E2E_KUBELET"
_UNUSABLE = 2
_PLACE, _PREFIX, _KEPT = "/var/tmp", "devherd-e2e-", "kept"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e", description=__doc__)
    parser.add_argument("--line", action="append", help="kubelet line, as 1.36; more than once (default: the newest)")
    parser.add_argument("--all-lines", action="store_true", help="one run for each line that this suite knows")
    parser.add_argument("--in-sandbox", action="store_true", help=argparse.SUPPRESS)
    given, rest = parser.parse_known_args()
    if lacks := sandbox.missing():
        print("The tests on a real kubelet cannot run here. Missing:", *lacks, sep="\n  ", file=sys.stderr)
        return _UNUSABLE
    lines = list(binaries.KUBERNETES_VERSIONS) if given.all_lines else given.line or [binaries.NEWEST]
    if given.in_sandbox:
        return _enter(lines[0], rest)
    try:
        _build(lines)
    except binaries.BuildError as problem:
        print(problem, file=sys.stderr)
        return _UNUSABLE
    return max(_run(line, rest) for line in lines)


def _build(lines: list[str]) -> None:
    if not os.environ.get(KUBELET):
        for line in lines:
            binaries.built(binaries.kubernetes(line, "kubelet"))
    binaries.built(binaries.kubernetes(binaries.NEWEST, "kube-apiserver", "kube-scheduler", "kubectl"))
    binaries.built(binaries.etcd())
    binaries.built(binaries.containerd())


def _run(line: str, rest: list[str]) -> int:
    """One kubelet: a sandbox for the long waits, one for all else. A selection of one's own is run as it is."""
    print(f"== kubelet {os.environ.get(KUBELET) or binaries.KUBERNETES_VERSIONS.get(line, line)}", flush=True)
    command = [sys.executable, "-m", "e2e", "--in-sandbox", "--line", line]
    if any(word == "-m" or word == "-k" or word.endswith(".py") or "::" in word for word in rest):
        return subprocess.run([*command, *rest], check=False).returncode
    start = time.monotonic()
    with tempfile.TemporaryFile() as said:
        waits = subprocess.Popen([*command, "-m", "grace", *rest], stdout=said, stderr=said)
        try:
            others = subprocess.run([*command, "-m", "not grace", *rest], check=False).returncode
            code = max(others, waits.wait())
        finally:
            waits.kill()  # unshare takes no notice of SIGTERM
            waits.wait()
        said.seek(0)
        print(said.read().decode(errors="replace"))
    print(f"== {time.monotonic() - start:.0f} s", flush=True)
    return code


def _enter(line: str, rest: list[str]) -> int:
    os.environ[LINE] = line
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_PLACE))
    if os.environ.get("DEVHERD_E2E_KEEP"):
        (folder / _KEPT).touch()
    tests = [] if any(".py" in word for word in rest) else [str(HERE)]
    try:
        sandbox.enter("pytest", [*tests, *rest], folder, remove=True)
    except sandbox.Unusable as problem:
        print(f"no sandbox: {problem}", file=sys.stderr)
    return _UNUSABLE


def _sweep() -> None:
    """Remove the folders of runs that were killed; one whose process lives, or that was kept on purpose, stays."""
    for folder in Path(_PLACE).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists() and not (folder / _KEPT).exists():
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
