"""The kubelet's sync loop: one thing at a time, so a hung Allocate stops everything. Pod workers run beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from devherd.sim import topology
from devherd.sim.allocator import AllocationError, Allocator
from devherd.sim.devices import Crash, DeviceManager
from devherd.sim.eventlog import EventLog
from devherd.sim.options import Options
from devherd.sim.pods import TERMINAL, Entry, PodStore, Status
from devherd.sim.runtime import Runtime
from devherd.sim.worker import PodWorker


class SyncLoop:
    """Admits pods in order, removes them, and knows for how long it has been stuck."""

    def __init__(
        self,
        store: PodStore,
        devices: DeviceManager,
        allocator: Allocator,
        runtime: Runtime,
        options: Callable[[], Options],
        log: EventLog,
        gate: Callable[[], Awaitable[None]],
        crash: Callable[[str], None],
    ) -> None:
        self._store = store
        self._devices = devices
        self._allocator = allocator
        self._runtime = runtime
        self._options = options
        self._log = log
        self._gate = gate
        self._crash = crash
        self._work: asyncio.Queue[tuple[str, Entry]] = asyncio.Queue()
        self._known: dict[str, Entry] = {}
        self._workers: dict[str, PodWorker] = {}
        self.doing = ""
        self.since = time.monotonic()
        devices.active = self.active

    def active(self) -> Iterable[str]:
        """UIDs of pods this kubelet was told of and that have not ended."""
        return [uid for uid, entry in self._known.items() if entry.status.phase not in TERMINAL]

    def known(self) -> list[Entry]:
        """Pods this kubelet was told of, in the order it was."""
        return list(self._known.values())

    def worker(self, uid: str) -> PodWorker | None:
        """The worker of an admitted pod."""
        return self._workers.get(uid)

    @property
    def stuck_seconds(self) -> float:
        """How long the present piece of work takes already; 0 when idle."""
        return time.monotonic() - self.since if self.doing else 0.0

    def add(self, entry: Entry) -> None:
        """A config source told of a pod."""
        self._work.put_nowait(("add", entry))

    def remove(self, entry: Entry) -> None:
        """A config source says that a pod is gone."""
        self._work.put_nowait(("remove", entry))

    async def run(self, bound: asyncio.Event) -> None:
        """Wait for the registration socket and the usual gap, take the pods that exist, then work for ever."""
        await bound.wait()
        options = self._options()
        computing = time.process_time()
        await asyncio.sleep(options.admit_gap_ms / 1000)
        # What registering plugins cost this simulator in Python, a compiled kubelet does in next to nothing.
        await asyncio.sleep(time.process_time() - computing)
        for entry in sorted(self._store, key=lambda e: e.pod.created):
            # Held until now, as with a real one: a pod removed meanwhile is not seen at all.
            await self._handle("add", entry)
        self._orphans()
        self._log("pods-known", count=len(self._known))
        if options.sources_delay_ms:
            await asyncio.sleep(options.sources_delay_ms / 1000)
        self._devices.sources_ready = True
        self._log("sources-ready")
        while True:
            what, entry = await self._work.get()
            await self._handle(what, entry)

    def _orphans(self) -> None:
        for uid in self._runtime.pods():
            if uid not in self._known:
                self._runtime.remove(uid)

    async def _handle(self, what: str, entry: Entry) -> None:
        await self._gate()
        self.doing = f"{what} {entry.pod.namespace}/{entry.pod.name}"
        self.since = time.monotonic()
        try:
            await (self._add(entry) if what == "add" else self._remove(entry))
        except Crash as panic:
            self._crash(str(panic))
        finally:
            self.doing = ""

    async def _add(self, entry: Entry) -> None:
        pod = entry.pod
        if pod.uid in self._known or self._store.get(pod.uid) is None:
            return
        self._known[pod.uid] = entry
        if entry.status.phase in TERMINAL:
            return
        status = await self._admit(entry)
        if status is not None:
            self._log("pod-rejected", pod=pod.name, uid=pod.uid, reason=status.reason, message=status.message)
            self._store.set_status(pod.uid, status)
            self._runtime.remove(pod.uid)
            return
        self._log("pod-admitted", pod=pod.name, uid=pod.uid)
        worker = PodWorker(
            entry, self._store, self._devices, self._allocator, self._runtime, self._options, self._log, self._crash
        )
        worker.active = lambda: pod.uid in self.active()
        self._workers[pod.uid] = worker
        worker.start()

    async def _admit(self, entry: Entry) -> Status | None:
        pod = entry.pod
        try:
            await self._allocator.admit(pod)
        except AllocationError as error:
            message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
            return Status("Failed", "UnexpectedAdmissionError", message)
        except topology.AffinityError:
            text = "Pod was rejected: Resources cannot be allocated with Topology locality"
            return Status("Failed", "TopologyAffinityError", text)
        if pod.late_reject:
            return Status("Failed", pod.late_reject, _predicate_failed(pod.late_reject))
        return self._fits(entry)

    def _fits(self, entry: Entry) -> Status | None:
        """The resource predicate: a name the node does not have is ignored, held devices raise what there is."""
        pod = entry.pod
        _, allocatable = self._devices.capacity()
        if pod.uid in self._devices.pods:
            for resource, ids in self._devices.allocated.items():
                allocatable[resource] = max(allocatable.get(resource, 0), len(ids))
        others = [e.pod for e in self._known.values() if e is not entry and e.status.phase not in TERMINAL]
        for resource in sorted({r for c in pod.containers for r in c.requests}):
            wanted = pod.total(resource)
            if resource not in allocatable or not wanted:
                continue
            used = sum(other.total(resource) for other in others)
            if used + wanted > allocatable[resource]:
                return Status(
                    "Failed",
                    f"OutOf{resource}",
                    f"Pod was rejected: Node didn't have enough resource: {resource}, "
                    f"requested: {wanted}, used: {used}, capacity: {allocatable[resource]}",
                )
        return None

    async def _remove(self, entry: Entry) -> None:
        uid = entry.pod.uid
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.stop()
        self._known.pop(uid, None)
        self._allocator.forget(uid)
        delay = self._options().stop_ms / 1000
        if delay:
            asyncio.get_running_loop().call_later(delay, self._runtime.remove, uid)
        else:
            self._runtime.remove(uid)
        self._log("pod-removed", pod=entry.pod.name, uid=uid)


def _predicate_failed(name: str) -> str:
    """What the kubelet says of a predicate that has nothing to do with devices."""
    why = {"NodeAffinity": "node(s) didn't match Pod's node affinity/selector"}.get(name, f"{name} says no")
    return f"Pod was rejected: Predicate {name} failed: {why}"
