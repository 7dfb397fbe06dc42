"""`python -I -m devherd_watcher --config DEVHERD_YAML`, started by supervisord as an event listener."""

from __future__ import annotations

import argparse
import sys

from devherd_watcher.app import start


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="devherd_watcher", description="supervisord event listener; not for people")
    parser.add_argument("--config", required=True, metavar="FILE")
    return start(parser.parse_args().config)


if __name__ == "__main__":
    sys.exit(main())
