"""Put a front together from what is on disk: settings, memory of the past, the kubelet's checkpoint."""

from __future__ import annotations

import asyncio
import sys
import time

from devherd.audit import Audit, events_folder
from devherd.config import load_settings
from devherd.front.app import Front
from devherd.front.journal import Journal
from devherd.front.model import Model
from devherd.front.probelink import ProbeLink
from devherd.front.reload import Configuration, ConfigurationFile
from devherd.front.saved import LastInventory, Memory, Saved
from devherd.front.spawn import Spawned
from devherd.health.engine import HealthEngine
from devherd.kubelet.checkpoint import Held, read_checkpoint
from devherd.ledger import Ledger
from devherd.log import setup
from devherd.settings import Settings
from devherd.state import boot_id
from devherd.tenancy import Tenancy
from devherd.trust import ours, refuse_vendor
from devherd.vendor import Manifest, load_object


def run(plugin: str, reference: str, path: str, probe: Spawned | None) -> int:
    """Read the settings at `path` and serve; the exit code. A foreign vendor is loaded only if they allow it."""
    if not ours(reference):
        refused = refuse_vendor(plugin, reference, load_settings(path).value or Settings())
        if refused:
            print(f"devherd.front: {refused}", file=sys.stderr)
            return 1
    manifest: Manifest = load_object(reference)
    if manifest.name != plugin:
        # Its configuration, sockets and state go by the manifest's name: under another one it would be somebody else.
        print(
            f"devherd.front: {reference} is the plugin {manifest.name!r}, not {plugin!r}: name it so", file=sys.stderr
        )
        return 2
    file = ConfigurationFile(path, manifest)
    configuration = file.read(None)
    setup(configuration.settings.log, plugin)
    return asyncio.run(_serve(reference, manifest, file, configuration, probe))


async def _serve(
    reference: str, manifest: Manifest, file: ConfigurationFile, configuration: Configuration, probe: Spawned | None
) -> int:
    return await assemble(reference, manifest, file, configuration, probe).run()


def assemble(
    reference: str,
    manifest: Manifest,
    file: ConfigurationFile,
    configuration: Configuration,
    probe: Spawned | None,
) -> Front:
    """A front ready to run. Reads a few small local files; touches no hardware."""
    settings = configuration.settings
    boot = boot_id(settings.paths)
    saved = Saved(settings.paths, manifest.name, boot)
    memory = saved.load()
    model = _recall(configuration, memory, boot)
    journal = Journal(Audit(events_folder(settings.paths.log), manifest.name), settings.paths.proc)
    front: Front
    link = ProbeLink(
        manifest.name, reference, settings, configuration.encoded, lambda source: front.hinted(source), journal, probe
    )
    front = Front(manifest, file, configuration, link, saved, model, memory, journal)
    return front


def _recall(configuration: Configuration, memory: Memory, boot: str) -> Model:
    settings, now, wall = configuration.settings, time.monotonic(), time.time()
    health = HealthEngine(settings.health, boot, now, memory.health)
    ledger = Ledger(memory.ledger)
    tenancy = Tenancy(now)
    model = Model(settings, health, ledger, tenancy, boot)
    held = read_checkpoint(settings.paths.device_plugins)
    if memory.inventory is not None:
        model.recall(memory.inventory.inventory, memory.inventory.boot_id == boot, wall)
        _complete(ledger, memory.inventory, held, wall)
    ours = {resource: ids for resource, ids in held.owners.items() if resource in model.boards}
    tenancy.checkpoint(ours, now)
    model.recall_held(ours, wall)
    for name in model.boards:
        tenancy.suspected(name, ledger.ids(name), now)
    return model


def _complete(ledger: Ledger, last: LastInventory, held: Held, wall: float) -> None:
    """The ledger is written behind Allocate: what a crash kept from it follows from the last inventory."""
    known = {resource.name: {device.id: device for device in resource.devices} for resource in last.inventory.resources}
    for resource, ids in held.owners.items():
        for id in ids:
            device = known.get(resource, {}).get(id)
            if device is not None and ledger.answer(resource, id) is None:
                ledger.record(resource, id, device.parts, last.boot_id, wall)
