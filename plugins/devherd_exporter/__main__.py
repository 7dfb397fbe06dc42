"""`python -m devherd_exporter [--config FILE]`."""

from __future__ import annotations

import sys

USAGE = "usage: devherd_exporter [--config FILE]"
CONFIG = "/etc/devherd/devherd.yaml"


def main(arguments: list[str]) -> int:
    """Read the command line and serve."""
    options = {"--config": CONFIG, **dict(zip(arguments[::2], arguments[1::2], strict=False))}
    if len(arguments) % 2 or set(options) != {"--config"}:
        print(USAGE, file=sys.stderr)
        return 2
    from devherd_exporter.app import start

    return start(options["--config"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
