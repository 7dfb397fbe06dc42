"""`python -I -m devherd.probe --plugin NAME --manifest MODULE:ATTRIBUTE --fd N`, started by a front."""

from __future__ import annotations

import os
import sys

from devherd.probe.isolate import isolate

USAGE = "usage: devherd.probe --plugin NAME --manifest MODULE:ATTRIBUTE --fd N (started by a front, not for people)"


def main(arguments: list[str]) -> int:
    """Run a probe until its front has no more use for it. No argparse: it would stay in memory."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if set(options) != {"--plugin", "--manifest", "--fd"} or len(arguments) != 6 or not options["--fd"].isdigit():
        print(USAGE, file=sys.stderr)
        return 2
    # A front that awaits its kubelet goes before all others (kubelet/urgency.py); its probe need not.
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    sock = isolate(int(options["--fd"]))
    # Only now, so that nothing heavy runs before the ties are cut.
    from devherd.probe.start import run

    return run(sock, options["--plugin"], options["--manifest"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
