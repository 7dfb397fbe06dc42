"""`python -m devherd.front`: one plugin's front. Its probe is started before anything heavy is imported.

A start has to beat the kubelet's first pod, and the probe needs as long to load as the front does.
"""

from __future__ import annotations

import sys

from devherd.process import adopt_lock

USAGE = "usage: devherd.front --plugin NAME --manifest MODULE:ATTRIBUTE [--config FILE]"
CONFIG = "/etc/devherd/devherd.yaml"


def main(arguments: list[str]) -> int:
    """Start the probe, then load the rest and serve. No argparse: it would stay in memory."""
    options = {"--config": CONFIG, **dict(zip(arguments[::2], arguments[1::2], strict=False))}
    if len(arguments) % 2 or set(options) != {"--plugin", "--manifest", "--config"}:
        print(USAGE, file=sys.stderr)
        return 2
    plugin, reference = options["--plugin"], options["--manifest"]
    adopt_lock()
    from devherd.front.spawn import early_probe

    probe = early_probe(plugin, reference)
    _without_tls()
    from devherd.front.start import run

    return run(plugin, reference, options["--config"], probe)


def _without_tls() -> None:
    """Load asyncio without TLS: nothing here speaks it, and OpenSSL costs each front 10 ms and a megabyte."""
    if "asyncio" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
