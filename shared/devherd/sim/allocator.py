"""Who gets which devices: the allocation path of the device manager, with the real one's order and error texts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from devherd.sim import topology
from devherd.sim.checkpoint import Held
from devherd.sim.devices import DeviceManager
from devherd.sim.plugin import PluginError
from devherd.sim.pods import Container, Kind, Pod
from devherd.sim.runtime import Runtime


class AllocationError(Exception):
    """Admission fails with this text."""


class Allocator:
    """Serial by contract: the sync loop calls `admit`; a pod worker may call `late` beside it, as in the kubelet."""

    def __init__(self, devices: DeviceManager, runtime: Runtime, rng: random.Random) -> None:
        self._devices = devices
        self._runtime = runtime
        self._rng = rng
        self._reuse: dict[str, dict[str, set[str]]] = {}
        self._affinity: dict[tuple[str, str], topology.Mask | None] = {}

    async def admit(self, pod: Pod) -> None:
        """Allocate for every container in order. Raises AllocationError or topology.AffinityError."""
        options = self._devices.options()
        self._reuse = {pod.uid: self._reuse.get(pod.uid, {})}
        reuse = self._reuse[pod.uid]
        for container in pod.containers:
            mask = None
            if options.topology_policy != "none":
                hints = topology.hints_for(self._devices, pod, container, reuse)
                mask = topology.merge(options.topology_policy, hints, options.numa_nodes)
            self._affinity[pod.uid, container.name] = mask
            await self._allocate(pod, container)
            held = self._devices.pods.get(pod.uid, {}).get(container.name, {})
            for resource, of_resource in held.items():
                if container.kind is Kind.INIT:
                    reuse.setdefault(resource, set()).update(of_resource.ids)
                else:
                    reuse.get(resource, set()).difference_update(of_resource.ids)

    async def late(self, pod: Pod, container: Container) -> None:
        """Allocate at container creation what admission did not (resource unknown then, or container was running)."""
        await self._allocate(pod, container)

    def any_order(self, held: Mapping[str, Held]) -> list[tuple[str, Held]]:
        """Resources of a container in random order, as Go walks a map: who wins a conflict is nobody's promise."""
        order = list(held.items())
        self._rng.shuffle(order)
        return order

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a pod."""
        for key in [k for k in self._affinity if k[0] == uid]:
            del self._affinity[key]

    async def _allocate(self, pod: Pod, container: Container) -> None:
        devices = self._devices
        needs_write = False
        collected = False
        requests = list(container.requests.items())
        self._rng.shuffle(requests)
        for resource, count in requests:
            if not devices.is_device_resource(resource):
                continue
            if not collected:
                devices.collect(admitting=pod.uid)
                collected = True
            ids = await self._choose(pod, container.name, resource, count)
            if not ids:
                continue
            needs_write = True
            await self._ask(pod, container.name, resource, ids)
        if needs_write:
            try:
                devices.write()
            except OSError as error:
                path = str(error.filename)
                text = f"failed to write checkpoint file {_go_quote('kubelet_internal_checkpoint')}: "
                raise AllocationError(f"{text}write {path}: no space left on device") from error

    async def _ask(self, pod: Pod, container: str, resource: str, ids: set[str]) -> None:
        devices = self._devices
        endpoint = devices.endpoints.get(resource)
        if endpoint is None or endpoint.client is None:
            devices.recount()
            raise AllocationError(f"unknown Device Plugin {resource}")
        order = self._shuffled(ids)
        devices.log("allocate", resource=resource, ids=order, uid=pod.uid, pod=pod.name, container=container)
        try:
            answer = await endpoint.client.allocate(order)
        except PluginError as error:
            devices.recount()
            devices.log("allocate-failed", resource=resource, ids=order, error=str(error))
            raise AllocationError(str(error)) from error
        if not answer.container_responses:
            # The ids stay marked as used until some other pod's devices are collected.
            raise AllocationError(f"no containers return in allocation response {answer!s}")
        devices.insert(pod.uid, container, resource, order, answer.container_responses[0])
        devices.log("allocated", resource=resource, ids=order, uid=pod.uid, pod=pod.name, container=container)

    async def _choose(self, pod: Pod, container: str, resource: str, required: int) -> set[str]:
        devices = self._devices
        held = devices.held(pod.uid, container, resource)
        needed = required
        if held is not None:
            needed -= len(held)
            if needed != 0:
                raise AllocationError(
                    f"pod {_go_quote(pod.uid)} container {_go_quote(container)} changed request for resource "
                    f"{_go_quote(resource)} from {len(held)} to {required}"
                )
        if not devices.sources_ready and self._runtime.was_running(pod.uid, container):
            devices.log("running-bypass", resource=resource, uid=pod.uid, container=container)
            return set()
        healthy = devices.healthy.get(resource)
        if healthy is None:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not healthy >= (held or set()):
            raise AllocationError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        if needed == 0:
            return set()
        return await self._take(pod, container, resource, required)

    async def _take(self, pod: Pod, container: str, resource: str, required: int) -> set[str]:
        devices = self._devices
        taken: set[str] = set()

        def take(ids: Iterable[str]) -> bool:
            in_use = devices.allocated.setdefault(resource, set())
            for device in self._shuffled(set(ids) - taken):
                if len(taken) >= required:
                    break
                in_use.add(device)
                taken.add(device)
            return len(taken) >= required

        if take(self._reuse.get(pod.uid, {}).get(resource, set())):
            return taken
        needed = required - len(taken)
        available = devices.healthy.get(resource, set()) - devices.allocated.get(resource, set())
        if len(available) < needed:
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        mask = self._affinity.get((pod.uid, container))
        aligned, unaligned, without = topology.split(devices, resource, available, mask)
        if needed < len(aligned):
            preferred = await self._preferred(resource, aligned | taken, taken, required)
            if take(preferred & aligned) or take(aligned):
                return taken
        else:
            if take(aligned):
                return taken
            preferred = await self._preferred(resource, available | taken, taken, required)
            if take(preferred & available) or take(unaligned) or take(without):
                return taken
        raise AllocationError(
            f"unexpectedly allocated less resources than required. Requested: {required}, Got: {len(taken)}"
        )

    async def _preferred(self, resource: str, available: set[str], must: set[str], size: int) -> set[str]:
        endpoint = self._devices.endpoints.get(resource)
        if endpoint is None:
            raise AllocationError(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.client is None or endpoint.options is None:
            return set()
        if not endpoint.options.get_preferred_allocation_available:
            return set()
        self._devices.log("preferred", resource=resource, available=len(available), must=sorted(must), size=size)
        try:
            answer = await endpoint.client.preferred(self._shuffled(available), self._shuffled(must), size)
        except PluginError as error:
            raise AllocationError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        if not answer.container_responses:
            return set()
        return set(answer.container_responses[0].deviceIDs)

    def _shuffled(self, ids: Iterable[str]) -> list[str]:
        order = sorted(ids)
        self._rng.shuffle(order)
        return order


def _go_quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
