"""`python -m devherd.front`: one plugin's front. The probe is started before grpc is imported."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys

from devherd.config import load_settings
from devherd.front.reload import Configuration, ConfigurationFile
from devherd.front.spawn import Spawned, spawn_probe
from devherd.log import setup
from devherd.process import adopt_lock
from devherd.settings import Settings
from devherd.trust import refuse_vendor
from devherd.vendor import Manifest, load_object


def main() -> int:
    """Parse, read the configuration, start the probe, then load the rest and serve."""
    parser = argparse.ArgumentParser(prog="devherd.front", description="Serves one plugin's devices to the kubelet.")
    parser.add_argument("--plugin", required=True, help="program name, for example generic")
    parser.add_argument("--manifest", required=True, help="the plugin's manifest, MODULE:ATTRIBUTE")
    parser.add_argument("--config", default="/etc/devherd/devherd.yaml", help="the node's settings")
    options = parser.parse_args()
    adopt_lock()
    _never_wait_for_the_log()
    # gRPC's core writes lines of its own about every connection that ends; ours say it better.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    settings = load_settings(options.config).value or Settings()
    refused = refuse_vendor(options.plugin, options.manifest, settings)
    if refused:
        print(f"devherd.front: {refused}", file=sys.stderr)
        return 1
    manifest: Manifest = load_object(options.manifest)
    file = ConfigurationFile(options.config, manifest)
    configuration = file.read(None)
    setup(configuration.settings.log, options.plugin)
    try:
        probe: Spawned | None = spawn_probe(options.plugin, options.manifest)
    except OSError:
        probe = None
    return asyncio.run(_serve(options.manifest, manifest, file, configuration, probe))


async def _serve(
    reference: str, manifest: Manifest, file: ConfigurationFile, configuration: Configuration, probe: Spawned | None
) -> int:
    from devherd.front.start import assemble

    return await assemble(reference, manifest, file, configuration, probe).run()


def _never_wait_for_the_log() -> None:
    """A supervisord that hangs reads its pipe no more: lose log lines then, rather than stop serving."""
    if stat.S_ISFIFO(os.fstat(2).st_mode):
        os.set_blocking(2, False)


if __name__ == "__main__":
    sys.exit(main())
