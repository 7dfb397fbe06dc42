"""One pod's worker: creates its containers in order, with cached answers, and tries again what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from devherd.sim.allocator import AllocationError, Allocator
from devherd.sim.devices import Crash, DeviceManager
from devherd.sim.eventlog import EventLog
from devherd.sim.options import Options
from devherd.sim.places import CreateError, RunError
from devherd.sim.plugin import PluginError
from devherd.sim.pods import Container, Entry, Kind, PodStore, Status
from devherd.sim.runtime import Runtime
from devherd.sim.tasks import spawn


class ConfigError(Exception):
    """CreateContainerConfigError: the device manager had no answer for the container."""


class PodWorker:
    """Runs beside the sync loop. `waiting` says, by container, what it waits for and why."""

    def __init__(
        self,
        entry: Entry,
        store: PodStore,
        devices: DeviceManager,
        allocator: Allocator,
        runtime: Runtime,
        options: Callable[[], Options],
        log: EventLog,
        crash: Callable[[str], None],
    ) -> None:
        self._entry = entry
        self._store = store
        self._devices = devices
        self._allocator = allocator
        self._runtime = runtime
        self._options = options
        self._log = log
        self._crash = crash
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.active: Callable[[], bool] = lambda: True
        self.waiting: dict[str, tuple[str, str]] = {}

    def start(self) -> None:
        """Begin."""
        self._task = spawn(self._run())

    def stop(self) -> None:
        """End the worker; containers are the runtime's."""
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """Something about the containers changed (one died)."""
        self._wake.set()

    async def _run(self) -> None:
        uid = self._entry.pod.uid
        while True:
            self._wake.clear()
            try:
                complete = await self._sync()
            except Crash as panic:
                self._crash(str(panic))
                return
            if complete:
                self._store.set_status(uid, Status("Running"))
                self._log("pod-running", pod=self._entry.pod.name, uid=uid)
                await self._wake.wait()
            else:
                try:
                    await asyncio.wait_for(self._wake.wait(), self._options().retry_ms / 1000)
                except asyncio.TimeoutError:
                    continue

    async def _sync(self) -> bool:
        """Bring up what is missing, in order; whether all is up."""
        pod = self._entry.pod
        regular = [c for c in pod.containers if c.kind is Kind.MAIN]
        initialised = any(self._runtime.get(pod.uid, c.name) for c in regular)
        for container in pod.containers:
            record = self._runtime.get(pod.uid, container.name)
            if record is not None and record.state == "running":
                continue
            if container.kind is Kind.INIT and (record is not None or initialised):
                continue
            if not await self._create(container):
                if container.kind is not Kind.MAIN:
                    return False
                continue
            if container.kind is Kind.INIT:
                self._runtime.exit(pod.uid, container.name)
        return not self.waiting

    async def _create(self, container: Container) -> bool:
        uid = self._entry.pod.uid
        name = container.name
        try:
            await self._prepare(container)
            held = self._devices.pods.get(uid, {}).get(name, {})
            self._runtime.create(
                uid,
                name,
                {resource: of.answer for resource, of in self._allocator.any_order(held)},
                {resource: sorted(of.ids) for resource, of in held.items()},
                self._options().cdi_dirs,
            )
        except ConfigError as error:
            return self._failed(name, "CreateContainerConfigError", str(error))
        except CreateError as error:
            return self._failed(name, "CreateContainerError", str(error))
        except RunError as error:
            self._store.set_status(uid, Status("Running"))
            return self._failed(name, "RunContainerError", str(error))
        self.waiting.pop(name, None)
        record = self._runtime.get(uid, name)
        for text in record.conflicts if record else ():
            self._log("answer-conflict", pod=self._entry.pod.name, container=name, error=text)
        self._log("container-started", pod=self._entry.pod.name, uid=uid, container=name)
        return True

    def _failed(self, container: str, reason: str, message: str) -> bool:
        if self.waiting.get(container) != (reason, message):
            self._log("container-waiting", pod=self._entry.pod.name, container=container, reason=reason, error=message)
        self.waiting[container] = (reason, message)
        return False

    async def _prepare(self, container: Container) -> None:
        """PreStartContainer where asked for, and allocation of what has no cached answer."""
        pod = self._entry.pod
        missing = False
        for resource, count in container.requests.items():
            if not self._devices.is_device_resource(resource) or count == 0:
                continue
            await self._pre_start(container.name, resource)
            if self.active() and self._devices.held(pod.uid, container.name, resource) is None:
                missing = True
        if missing:
            try:
                await self._allocator.late(pod, container)
            except AllocationError as error:
                raise ConfigError(str(error)) from error

    async def _pre_start(self, container: str, resource: str) -> None:
        endpoint = self._devices.endpoints.get(resource)
        if endpoint is None:
            raise ConfigError(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.pre_start_required or endpoint.client is None:
            return
        uid = self._entry.pod.uid
        ids = self._devices.held(uid, container, resource)
        if ids is None:
            raise ConfigError(
                f"no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
            )
        self._log("pre-start", resource=resource, ids=sorted(ids), pod=self._entry.pod.name, container=container)
        try:
            await endpoint.client.pre_start(sorted(ids), self._options().prestart_timeout)
        except PluginError as error:
            raise ConfigError(f"device plugin PreStartContainer rpc failed with err: {error}") from error
