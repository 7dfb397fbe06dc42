"""`python -m devherd.front`: one plugin's front. Its probe is started before anything heavy is imported.

The order of imports is the order in which things are needed: a start has to beat the kubelet's first pod.
"""

from __future__ import annotations

import sys

from devherd.process import adopt_lock

USAGE = "usage: devherd.front --plugin NAME --manifest MODULE:ATTRIBUTE [--config FILE]"
CONFIG = "/etc/devherd/devherd.yaml"


def main(arguments: list[str]) -> int:
    """Start the probe, then read the configuration, load the rest and serve. No argparse: it would stay in memory."""
    options = {"--config": CONFIG, **dict(zip(arguments[::2], arguments[1::2], strict=False))}
    if len(arguments) % 2 or set(options) != {"--plugin", "--manifest", "--config"}:
        print(USAGE, file=sys.stderr)
        return 2
    adopt_lock()
    from devherd.front.early import Start

    start = Start(options["--plugin"], options["--manifest"], options["--config"])
    # Our own vendor's probe loads while we do; a foreign one waits until the settings have allowed it.
    start.probe_if_ours()
    _without_tls()
    import asyncio

    from devherd.front.reload import ConfigurationFile

    refused = start.refused()
    if refused:
        print(f"devherd.front: {refused}", file=sys.stderr)
        return 1
    start.probe()
    file = ConfigurationFile(start.config, start.load_manifest())
    configuration = file.read(None)
    from devherd.front.start import serve

    return asyncio.run(serve(start, file, configuration))


def _without_tls() -> None:
    """Have asyncio do without TLS: nothing here speaks it, and OpenSSL costs each front a megabyte and 9 ms."""
    if "asyncio" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]
        import asyncio

        assert asyncio
        del sys.modules["ssl"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
