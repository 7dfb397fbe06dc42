"""The vendor of gpu-nvidia. Runs in the probe."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from devherd.host.events import EventSource, Watched, tree_events, udev_events
from devherd.host.nfd import feature_file
from devherd.values import Device, Evidence, HostFile, Inventory, Preference, Resource, Skipped
from msgspec.structs import replace

from devherd_gpu.nvidia import driverfiles, features, mpsready, preference, repair, resources
from devherd_gpu.nvidia.cdispec import Specifications
from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.discovery import Discovery
from devherd_gpu.nvidia.driverfiles import DriverFiles
from devherd_gpu.nvidia.gpus import Found
from devherd_gpu.nvidia.health import Monitor
from devherd_gpu.nvidia.imex import Readiness
from devherd_gpu.nvidia.nodes import CAPS, IMEX_FOLDER, UVM, Nodes, dev_root
from devherd_gpu.nvidia.nvml import ROOTS, Driver, DriverProblem, NvmlError
from devherd_gpu.nvidia.resources import MPS, Plan, Unit
from devherd_gpu.nvidia.responses import BY_RUNTIME, DRIVER_MOUNT, NO_FILES, Responses
from devherd_gpu.nvidia.standinstate import STATE_FILE
from devherd_gpu.nvidia.topology import Matrix, Topology
from devherd_gpu.nvidia.validate import GPU

if TYPE_CHECKING:
    from devherd.host import Host

logger = logging.getLogger("devherd_gpu.nvidia")

GONE, NODE, IMEX = "gone", "node", "imex"
"""Kinds of evidence that a scan gives, beside the monitor's."""


class Vendor:
    """NVIDIA GPUs. `found` and `plan` are the last scan's, for checks and repairs."""

    def __init__(self, config: Config, host: Host) -> None:
        self.config = config
        self.host = host
        self.driver = Driver(host, config.driver.root)
        self.found = Found()
        self.plan = Plan()
        self.monitor = Monitor(
            # Without an open NVML nobody could be told.
            replace(config.health, events=config.health.events and config.driver.hold),
            {"imex-domain": Readiness(host, self.driver)} if config.imex.channels else {},
        )
        self.driver.before_close = self.monitor.release
        self._discovery = Discovery(host, self.driver, config.driver.discovery)
        self._rules = resources.compile_rules(config)
        self._topology = Topology()
        self._files = driverfiles.Cache()
        self._theirs = features.Theirs(host)

    def scan(self) -> Inventory:
        """Find every GPU and MIG device. A look at /sys and /proc comes first: without a card NVML is not touched."""
        try:
            return self._scanned(self._discovery.look())
        finally:
            self._let_go()

    def check(self, devices: Sequence[Device]) -> Iterable[Evidence]:
        """What events and readings say about the GPUs of the last scan."""
        try:
            return self.monitor.check(self.driver.again())
        except NvmlError as error:
            self.driver.failed(error)
        except DriverProblem:
            pass  # the next scan says so
        finally:
            self._let_go()
        return self.monitor.known()

    def sources(self) -> Sequence[EventSource]:
        """Nodes that come and go, cards that bind, MIG devices that are made, a driver that arrives."""
        events = self.monitor.sources() if self.config.driver.hold else ()
        return [*tree_events(self._folders, "dev"), *udev_events(("pci",)), *events]

    def _scanned(self, found: Found) -> Inventory:
        self.found = found
        if found.absent:
            return Inventory(skipped=found.skipped, absent=found.absent)
        if found.problem:
            return self._without_driver(found)
        chosen = self.plan = resources.plan(found, self._rules, self.config.mig)
        self._monitor(chosen)
        nodes = Nodes(self.host.view(), dev_root(self.config, self.host, self.driver.root))
        files = self._driver_files(found)
        responses = Responses(self.config, nodes, files, self.driver.root)
        return Inventory(
            resources=resources.resources(chosen, responses, self._preference, empty=GPU),
            evidence=(*self.monitor.faults(), *self._unusable(chosen, nodes, responses)),
            skipped=(*found.skipped, *chosen.skipped, *self._left_out(nodes, responses), *_files_problem(files)),
            files=tuple(self._wanted_files(found, chosen, nodes, files)),
        )

    def _driver_files(self, found: Found) -> DriverFiles:
        """The driver's own files, where answers or specifications name them."""
        if not any(strategy.startswith("cdi-") or strategy == DRIVER_MOUNT for strategy in self.config.device_list):
            return NO_FILES
        return self._files.find(self.host.view(), self.driver.root, found.driver)

    def _wanted_files(self, found: Found, chosen: Plan, nodes: Nodes, files: DriverFiles) -> Iterator[HostFile]:
        if any(strategy.startswith("cdi-") for strategy in self.config.device_list):
            yield from Specifications(self.host, self.config, nodes, files, self.driver.root).files(found)
        if self.config.features == "on" or (self.config.features == "auto" and not self._theirs.active()):
            words = features.labels(self.host, self.config, found, chosen)
            yield feature_file(self.host.paths, "devherd-gpu-nvidia", words, time.time())

    def _monitor(self, chosen: Plan) -> None:
        """Have the GPUs that are offered watched."""
        gpus = {unit.target.gpu.uuid: unit.target.gpu for unit in chosen.units if unit.target.gpu.pci}
        if not gpus:
            return
        things = {unit.target.thing for unit in chosen.units}
        try:
            self.monitor.looked(self.driver.again(), tuple(gpus.values()), things, self.driver.generation)
        except NvmlError as error:
            self.driver.failed(error)
        except DriverProblem as problem:
            logger.warning("the driver went away during a scan: %s", problem)

    def _let_go(self) -> None:
        if not self.config.driver.hold:
            self.driver.close()

    def _folders(self) -> list[Watched]:
        dev = re.compile(r"nvidia.*|gdrdrv|dxg")
        path = self.host.path
        watched = [Watched(path("/dev"), dev), Watched(path(CAPS)), Watched(path(IMEX_FOLDER))]
        # A containerised driver mounts its root below /run/nvidia when it is ready.
        watched += [Watched(path(os.path.dirname(root)), re.compile("driver")) for root in ROOTS if root != "/"]
        if self.host.paths.root != "/":
            folder, name = os.path.split(path(f"/{STATE_FILE}"))
            watched.append(Watched(folder, re.compile(re.escape(name)), content=True))
        if self.host.paths.rdev_table:
            folder, name = os.path.split(self.host.paths.rdev_table)
            watched.append(Watched(folder, re.compile(re.escape(name)), content=True))
        return watched

    def _preference(self, units: Sequence[Unit]) -> Preference:
        return preference.preference(units, self.config.shares, self._matrix())

    def _matrix(self) -> Matrix:
        """How near GPUs are; empty while the driver does not say."""
        try:
            return self._topology.matrix(self.driver.again(), self.driver.generation, self.found)
        except NvmlError as error:
            self.driver.failed(error)
        except DriverProblem:
            pass  # the next scan says so
        return {}

    def _without_driver(self, found: Found) -> Inventory:
        """No device, but the cards are there: the resource stays, and its devices are gone for this reason."""
        gone = (Evidence(f"pci:{pci}", GONE, bad=True, reason=found.problem) for pci in found.cards)
        names = sorted({unit.name for unit in self.plan.units} or {GPU})
        return Inventory(
            resources=tuple(Resource(name, ()) for name in names),
            evidence=tuple(gone),
            skipped=found.skipped,
        )

    def _unusable(self, chosen: Plan, nodes: Nodes, responses: Responses) -> list[Evidence]:
        """Evidence against what could not be given as the configuration wants it given."""
        found: dict[str, Evidence] = {}
        missing = sorted(set(self.config.imex.channels) - set(responses.channels))
        by_node = _gives_nodes(self.config)
        for unit in chosen.units:
            target = unit.target
            if target.gpu.lost or not target.gpu.pci:
                continue
            thing = target.thing
            served = unit.share is None or unit.share.mode != MPS
            if not served and (
                why := mpsready.problem(self.host.path(self.config.mps_root), unit.name, self.host.paths.proc)
            ):
                found.setdefault(thing, Evidence(thing, MPS, bad=True, reason=why))
            elif by_node and (why := nodes.problem(target.gpu, target.mig)):
                found.setdefault(thing, Evidence(thing, NODE, bad=True, reason=why))
            elif missing and self.config.imex.required:
                why = f"IMEX channel {missing[0]} is required and has no node in {IMEX_FOLDER}"
                found.setdefault(thing, Evidence(thing, IMEX, bad=True, reason=why))
        return list(found.values())

    def _left_out(self, nodes: Nodes, responses: Responses) -> list[Skipped]:
        """What answers lack although the configuration asks for it."""
        skipped = [
            Skipped(f"IMEX channel {channel}", "imex", f"has no node in {IMEX_FOLDER}: containers get none")
            for channel in sorted(set(self.config.imex.channels) - set(responses.channels))
            if not self.config.imex.required
        ]
        skipped += [
            Skipped(extra, extra, "none of its device nodes is there: containers get none")
            for extra in responses.extras
            if not nodes.extra(extra)
        ]
        if _gives_nodes(self.config) and UVM not in {node.container_path for node in nodes.control()}:
            why = "is missing, and without it CUDA does not work in a container: nvidia-modprobe -u -c 0 makes it"
            skipped.append(Skipped(UVM, "node", why))
        return skipped


def _gives_nodes(config: Config) -> bool:
    """Whether answers or CDI specifications name nodes: NVIDIA's runtime finds them by itself, and makes them."""
    return config.pass_device_specs or not set(config.device_list) <= BY_RUNTIME


class ResettingVendor(Vendor):
    """The same where GPUs may be reset."""

    def repair(self, thing: str, attempt: int) -> str:
        """Reset the GPU that needs it. The library asks while nobody holds it."""
        gpu = self.monitor.gpu(thing)
        if gpu is None:
            return "the GPU is not there"
        if thing != gpu.thing:
            return f"a MIG instance is reset with its GPU {gpu.pci} only"
        failed = repair.reset(self.host, self.driver, gpu)
        if not failed:
            self.monitor.was_reset(gpu)
        return failed


def _files_problem(files: DriverFiles) -> tuple[Skipped, ...]:
    return (Skipped("driver files", "device_list", files.problem),) if files.problem else ()


def make(config: Config, host: Host) -> Vendor:
    """The manifest's factory."""
    return (ResettingVendor if config.health.reset else Vendor)(config, host)
