"""The simulated kubelet, assembled: start sequence, frozen state, node status."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any, NoReturn

import grpc.aio
import msgspec

from devherd.api.deviceplugin_v1beta1_pb2_grpc import add_RegistrationServicer_to_server
from devherd.api.podresources_v1_pb2_grpc import add_PodResourcesListerServicer_to_server
from devherd.sim import sockets
from devherd.sim.allocator import Allocator
from devherd.sim.devices import DeviceManager
from devherd.sim.eventlog import EventLog
from devherd.sim.options import Options
from devherd.sim.places import OPTIONS, Places
from devherd.sim.podresources import PodResources
from devherd.sim.pods import PodStore, write_json
from devherd.sim.registrar import Registrar
from devherd.sim.registry import FOLDER, RegistryWatcher
from devherd.sim.runtime import Runtime
from devherd.sim.syncloop import SyncLoop
from devherd.sim.tasks import spawn

SOCKET = "kubelet.sock"


class Kubelet:
    """One life of a kubelet: what it knows dies with the process, what it wrote does not."""

    def __init__(self, places: Places, options: Options) -> None:
        self.places = places
        self.options = options
        self.log = EventLog()
        self.bound_at = 0.0
        self.api_view: dict[str, Any] = {}
        self._moving = asyncio.Event()
        self._moving.set()
        self._bound = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        rng = random.Random(options.seed or None)
        self.store = PodStore(places.state)
        self.runtime = Runtime(places.state, places.node)
        self.devices = DeviceManager(places.device_plugins, self._options, self.log)
        allocator = Allocator(self.devices, self.runtime, rng)
        self.loop = SyncLoop(
            self.store, self.devices, allocator, self.runtime, self._options, self.log, self.gate, self.crash
        )
        self.registrar = Registrar(self.devices, self._options, self.log, self.gate, self._take_skip)
        self.resources = PodResources(self.devices, self.loop.known, self._options, self.gate)
        beside = os.path.join(os.path.dirname(os.path.abspath(places.device_plugins)), FOLDER)
        self.watcher = RegistryWatcher(beside, self.registrar, self.log, self.gate)
        self._servers: list[grpc.aio.Server] = []

    def _options(self) -> Options:
        return self.options

    def _take_skip(self) -> bool:
        left = self.options.skip_streams
        if left:
            self.options = msgspec.structs.replace(self.options, skip_streams=left - 1)
        return left > 0

    def set_options(self, options: Options) -> None:
        """Use other options, and keep them for later starts."""
        self.options = options
        write_json(os.path.join(self.places.state, OPTIONS), msgspec.to_builtins(options))

    # Frozen: whatever arrives waits

    async def gate(self) -> None:
        """Wait while frozen."""
        await self._moving.wait()

    def freeze(self) -> None:
        """Answer nothing any more."""
        self._moving.clear()
        self.log("frozen")

    def unfreeze(self) -> None:
        """Go on."""
        self._moving.set()
        self.log("unfrozen")

    @property
    def frozen(self) -> bool:
        """Whether it answers nothing."""
        return not self._moving.is_set()

    def crash(self, text: str) -> NoReturn:
        """Die as a Go program does on a nil dereference."""
        message = f"panic: runtime error: invalid memory address or nil pointer dereference ({text})\n"
        os.write(2, message.encode())
        os._exit(2)

    # Start

    async def start(self) -> None:
        """The real start sequence. Raises sockets.StartError where the real one exits."""
        folder = self.places.device_plugins
        os.makedirs(folder, mode=0o755, exist_ok=True)
        self._tasks.append(spawn(self.loop.run(self._bound)))
        await self._serve_pod_resources()
        await asyncio.sleep(self.options.dir_lead_ms / 1000)
        self.devices.load()
        os.makedirs(folder, mode=0o750, exist_ok=True)
        sockets.clean(folder, self.log)
        await self._serve_registration(os.path.join(folder, SOCKET))
        self.bound_at = time.monotonic()
        self.log("listening", pid=os.getpid())
        self._bound.set()
        self._tasks.append(spawn(self.watcher.run()))
        self._tasks.append(spawn(self._status()))

    async def _serve_pod_resources(self) -> None:
        server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(self.resources, server)
        server.add_generic_rpc_handlers((self.resources.old_handlers(),))
        sockets.bind_and_rename(server, self.places.pod_resources)
        await server.start()
        self._servers.append(server)

    async def _serve_registration(self, path: str) -> None:
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(self.registrar, server)
        self._servers.append(server)
        if not self.options.listen_delay_ms:
            sockets.bind(server, path)
            await server.start()
            return
        behind = os.path.join(self.places.state, "r.sock")
        sockets.bind(server, behind)
        await server.start()
        slow = sockets.SlowListener(path, behind)
        await asyncio.sleep(self.options.listen_delay_ms / 1000)
        await slow.listen()

    async def _status(self) -> None:
        """Write node status to the API object every period: what schedulers see lags behind."""
        while True:
            capacity, allocatable = self.devices.capacity()
            for resource in self.api_view:
                capacity.setdefault(resource, 0)
                allocatable.setdefault(resource, 0)
            self.api_view = {r: {"capacity": capacity[r], "allocatable": allocatable[r]} for r in sorted(capacity)}
            await asyncio.sleep(self.options.status_period)

    def milliseconds(self, what: str, resource: str) -> float | None:
        """From listening to the first event of a sort for a resource; None if there was none."""
        at = self.log.first.get((what, resource))
        return None if at is None else round((at - self.bound_at) * 1000, 3)
