"""`python -m devherd.front`: one plugin's front. Its probe is started before anything heavy is imported.

A start has to beat the kubelet's first pod, and the probe needs as long to load as the front does.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import NoReturn

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
    _never_wait_for_the_log()
    _tune_grpc()
    from devherd.front.spawn import early_probe

    probe = early_probe(plugin, reference)
    _without_tls()
    from devherd.front.start import run

    return run(plugin, reference, options["--config"], probe)


def _never_wait_for_the_log() -> None:
    """A supervisord that hangs reads its pipe no more: lose log lines then, rather than stop serving."""
    if stat.S_ISFIFO(os.fstat(2).st_mode):
        os.set_blocking(2, False)


def _tune_grpc() -> None:
    """Before grpc is imported; an operator's own settings win.

    Its older poller answers the kubelet's dial back sooner than the event engine: with four resources on a real
    kubelet the last list was known some milliseconds earlier. And its core would log each connection that ends.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # For channels that nobody polls; a thread of ours always does.
    os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "0")


def _without_tls() -> None:
    """Load asyncio without TLS: nothing here speaks it, and OpenSSL costs each front 10 ms and a megabyte."""
    if "asyncio" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]


def _leave(code: int) -> NoReturn:
    """End at once: everything is closed, and Python would tidy its memory up for 60 ms while pods wait for devices.

    It would also wait for a thread that is stuck in the disk.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
