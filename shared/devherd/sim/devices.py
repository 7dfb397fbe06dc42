"""The device manager's state: who registered what, what is healthy, who holds what. No RPC in here.

Everything is keyed by resource name, as in the kubelet; since 1.37 it knows the sockets of a resource as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.sim import checkpoint
from devherd.sim.checkpoint import Held
from devherd.sim.eventlog import EventLog
from devherd.sim.options import Options
from devherd.sim.plugin import PluginClient, PluginError

HEALTHY = "Healthy"
NO_TOPOLOGY = -1


class Seen(Struct, frozen=True):
    """One device of the last list. `nodes` is None for unset topology; empty means set, but without nodes.

    They are as the plugin said, known to the machine or not: only topology hints leave unknown ones out.
    """

    health: str
    nodes: tuple[int, ...] | None


class Endpoint:
    """The newest registration of a resource. Without client it is what a checkpoint left: stopped, options unknown."""

    def __init__(self, client: PluginClient | None, options: pb.DevicePluginOptions | None) -> None:
        self.client = client
        self.options = options
        self.stopped: float | None = None if client else time.monotonic()

    def expired(self, grace: float) -> bool:
        """Whether it has been stopped for longer than the grace time (seconds)."""
        return self.stopped is not None and time.monotonic() - self.stopped > grace


class Crash(Exception):
    """The real kubelet would have dereferenced nil here and died."""


class DeviceManager:
    """Sets and maps as the kubelet keeps them; every change is an event."""

    def __init__(self, folder: str, options: Callable[[], Options], log: EventLog) -> None:
        self.folder = folder
        self.options = options
        self.log = log
        self.endpoints: dict[str, Endpoint] = {}
        self._by_socket: dict[str, dict[str, Endpoint]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.all: dict[str, dict[str, Seen]] = {}
        self.allocated: dict[str, set[str]] = {}
        self.pods: checkpoint.PodDevices = {}
        self.active: Callable[[], Iterable[str]] = lambda: ()
        self.sources_ready = False

    # Start and checkpoint

    def load(self) -> None:
        """Take over the checkpoint: every registered resource exists, empty and stopped; allocations hold."""
        try:
            self.pods, resources = checkpoint.read(self.folder)
        except ValueError as error:
            self.log("checkpoint-unreadable", error=str(error))
            return
        for resource in resources:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()
            self.endpoints[resource] = Endpoint(None, None)
        self.recount()

    def write(self) -> None:
        """Write the checkpoint. Raises OSError."""
        checkpoint.write(self.folder, self.pods, self.healthy, disk_full=self.options().disk_full)

    def try_write(self) -> None:
        """Write the checkpoint; a failure is only logged."""
        try:
            self.write()
        except OSError as error:
            self.log("checkpoint-failed", error=str(error))

    # What plugins do

    def connected(self, resource: str, client: PluginClient, options: pb.DevicePluginOptions) -> None:
        """A plugin was dialled and told its options. The device sets of its predecessor stay until it sends a list.

        Raises PluginError where the kubelet refuses: a socket that is connected already (since 1.37).
        """
        endpoint = Endpoint(client, options)
        if self.options().fixed_disconnect:
            sockets = self._by_socket.setdefault(resource, {})
            if client.path in sockets:
                raise PluginError(f"device plugin already connected: {client.path}")
            sockets[client.path] = endpoint
        self.endpoints[resource] = endpoint
        self.log("registered", resource=resource, endpoint=client.endpoint)

    def listed(self, resource: str, devices: Iterable[pb.Device]) -> None:
        """A full list arrived, from whichever stream."""
        known = set(self.options().numa_nodes)
        healthy: set[str] = set()
        unhealthy: set[str] = set()
        seen: dict[str, Seen] = {}
        for device in devices:
            nodes: tuple[int, ...] | None = None
            if device.HasField("topology"):
                nodes = tuple(node.ID for node in device.topology.nodes)
                if not known.issuperset(nodes):
                    self.log("numa-unknown", resource=resource, id=device.ID, nodes=list(nodes))
            seen[device.ID] = Seen(device.health, nodes)
            (healthy if device.health == HEALTHY else unhealthy).add(device.ID)
        self.healthy[resource] = healthy
        self.unhealthy[resource] = unhealthy
        self.all[resource] = seen
        self.log("list", resource=resource, healthy=len(healthy), unhealthy=len(unhealthy))
        self.try_write()

    def disconnected(self, resource: str, path: str) -> None:
        """A stream ended: all of the resource is unhealthy now, capacity stays for the grace time.

        Since 1.37 only when no other socket of the resource is connected; else one of those serves from now on.
        """
        endpoint = self.endpoints.get(resource)
        if self.options().fixed_disconnect:
            sockets = self._by_socket.get(resource, {})
            endpoint = sockets.pop(path, None)
            if endpoint is not None and sockets:
                endpoint.stopped = time.monotonic()
                self.endpoints[resource] = next(iter(sockets.values()))
                self.log("promoted", resource=resource)
                return
        if endpoint is None:
            return
        gone = self.healthy.get(resource, set())
        if resource in self.healthy:
            self.healthy[resource] = set()
        self.unhealthy[resource] = self.unhealthy.get(resource, set()) | gone
        endpoint.stopped = time.monotonic()
        self.log("disconnected", resource=resource)

    # What the kubelet asks

    def capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        """Capacity and allocatable by resource. Resources whose grace time is over are forgotten here, only here."""
        capacity: dict[str, int] = {}
        allocatable: dict[str, int] = {}
        forgotten: set[str] = set()
        grace = self.options().grace
        for sets, counted in ((self.healthy, True), (self.unhealthy, False)):
            for resource in list(sets):
                endpoint = self.endpoints.get(resource)
                if endpoint is None or endpoint.expired(grace):
                    self.endpoints.pop(resource, None)
                    del sets[resource]
                    forgotten.add(resource)
                    continue
                capacity[resource] = capacity.get(resource, 0) + len(sets[resource])
                allocatable.setdefault(resource, 0)
                if counted:
                    allocatable[resource] = len(sets[resource])
        if forgotten:
            for resource in sorted(forgotten):
                self.log("forgotten", resource=resource)
            self.try_write()
        return capacity, allocatable

    def is_device_resource(self, resource: str) -> bool:
        """Whether the manager feels responsible: registered now, or allocated before."""
        return resource in self.healthy or resource in self.allocated

    def held(self, uid: str, container: str, resource: str) -> set[str] | None:
        """Ids a container holds; None when it holds nothing of the resource."""
        found = self.pods.get(uid, {}).get(container, {}).get(resource)
        return None if found is None else found.ids

    def owners(self) -> Mapping[str, dict[str, tuple[str, str]]]:
        """Resource -> id -> (pod UID, container) of everything allocated."""
        owners: dict[str, dict[str, tuple[str, str]]] = {}
        for uid, containers in self.pods.items():
            for container, resources in containers.items():
                for resource, held in resources.items():
                    for device in held.ids:
                        owners.setdefault(resource, {})[device] = (uid, container)
        return owners

    def recount(self) -> None:
        """Set the allocated ids to what containers really hold."""
        self.allocated = {}
        for containers in self.pods.values():
            for resources in containers.values():
                for resource, held in resources.items():
                    self.allocated.setdefault(resource, set()).update(held.ids)

    def collect(self, admitting: str = "") -> None:
        """Free the devices of pods that are no longer active; only once all sources have spoken."""
        if not self.sources_ready:
            return
        gone = set(self.pods) - set(self.active()) - {admitting}
        if not gone:
            return
        for uid in gone:
            for container, resources in self.pods.pop(uid).items():
                for resource, held in resources.items():
                    self.log("released", resource=resource, ids=sorted(held.ids), uid=uid, container=container)
        self.recount()

    def insert(self, uid: str, container: str, resource: str, ids: Iterable[str], answer: Any) -> None:
        """Note an allocation under the NUMA nodes the devices have now. Raises Crash when an id has left the list."""
        by_node: dict[int, list[str]] = {}
        listed = self.all.get(resource, {})
        for device in ids:
            seen = listed.get(device)
            if seen is None:
                self.vanished(resource, device)
            for node in (seen.nodes if seen else None) or (NO_TOPOLOGY,):
                by_node.setdefault(node, []).append(device)
        self.pods.setdefault(uid, {}).setdefault(container, {})[resource] = Held(by_node, answer)

    def vanished(self, resource: str, device: str) -> None:
        """An id in use is not in the list where the kubelet reads its topology without looking first."""
        if self.options().crash_on_vanish:
            raise Crash(f"{resource} {device} is allocated and has left the list")

    def health_of(self, resource: str, device: str) -> str:
        """What pod status says: the last list's health, and Healthy for an id that is not in it."""
        seen = self.all.get(resource, {}).get(device)
        return HEALTHY if seen is None or seen.health == HEALTHY else "Unhealthy"
