"""`python -I -m devherd_watcher --config DEVHERD_YAML`, started by supervisord as an event listener."""

from __future__ import annotations

import sys

from devherd_watcher.app import start


def main(arguments: list[str]) -> int:
    """Entry point. No argparse: it would stay in memory for as long as the node runs."""
    if len(arguments) != 2 or arguments[0] != "--config":
        print("usage: devherd_watcher --config FILE (a supervisord event listener, not for people)", file=sys.stderr)
        return 2
    return start(arguments[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
