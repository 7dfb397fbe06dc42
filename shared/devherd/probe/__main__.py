"""`python -I -m devherd.probe --plugin NAME --manifest MODULE:ATTRIBUTE --fd N`, started by a front."""

from __future__ import annotations

import argparse
import sys

from devherd.probe.isolate import isolate


def main(arguments: list[str]) -> int:
    """Run a probe until its front has no more use for it."""
    parser = argparse.ArgumentParser(prog="devherd.probe", description="touches hardware for a front; not for people")
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--manifest", required=True, metavar="MODULE:ATTRIBUTE")
    parser.add_argument("--fd", required=True, type=int, help="this end of the front's socketpair")
    options = parser.parse_args(arguments)
    sock = isolate(options.fd)
    # Only now, so that nothing heavy runs before the ties are cut.
    from devherd.probe.start import run

    return run(sock, options.plugin, options.manifest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
