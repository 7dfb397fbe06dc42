"""One resource at the kubelet: its server, socket and registration; and all of a plugin's together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from devherd.front.journal import Journal
from devherd.kubelet.endpoint import Endpoint, sweep
from devherd.kubelet.identity import Identity
from devherd.kubelet.layout import Layout
from devherd.kubelet.link import KubeletLink
from devherd.kubelet.podresources import PodResources
from devherd.kubelet.registration import Registration
from devherd.kubelet.regstatus import REGISTERED, UNVERIFIED
from devherd.kubelet.server import Handler, ResourceServer
from devherd.kubelet.verify import Verifier
from devherd.kubelet.watch import KubeletWatch
from devherd.settings import Settings
from devherd.values import Snapshot

EMPTY_FOR = 2.0
"""Seconds an emptied list is served before its resource is closed, so that the kubelet has taken it."""


class Station:
    """One resource's server and registration."""

    def __init__(self, server: ResourceServer, registration: Registration) -> None:
        self._server = server
        self.registration = registration
        self.empty_since: float | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Send a new list to whoever listens."""
        self._server.feed.publish(snapshot)
        if snapshot.members:
            self.empty_since = None
        elif self.empty_since is None:
            self.empty_since = time.monotonic()

    def status(self) -> dict[str, Any]:
        """What `status` shows of the registration. Times in Unix seconds, durations in seconds and milliseconds."""
        status = self.registration.status
        return {
            "socket": status.endpoint,
            "state": status.state,
            "error": status.error,
            "others": [msgspec.structs.asdict(rival) for rival in status.rivals],
            "registered_at": status.registered_at or None,
            "registered_ms": status.duration_ms,
            "registrations": status.count,
            "stream_seconds": time.monotonic() - status.stream_opened if status.stream_since else None,
        }

    async def close(self) -> None:
        """End the stream and remove the socket; running calls may finish."""
        await self.registration.stop(grace=1.0)


class LayoutMemory(Struct, frozen=True):
    """The socket layout that a kubelet build made this node fall back to, and why."""

    kubelet: str
    layout: str
    reason: str


def kubelet_build(pid: int, proc: str) -> str:
    """What tells one kubelet version from another without asking it: its program file, by path, size and time."""
    try:
        path = os.readlink(f"{proc}/{pid}/exe")
        status = os.stat(f"{proc}/{pid}/exe")
    except OSError:
        return ""
    return f"{path} {status.st_size} {status.st_mtime_ns}"


class Stations:
    """All resources of one plugin, and the one watch on the kubelet they share."""

    def __init__(
        self,
        settings: Settings,
        plugin: str,
        journal: Journal,
        memory: LayoutMemory | None,
        keep_layout: Callable[[LayoutMemory], None],
        on_kubelet: Callable[[Identity], None],
    ) -> None:
        self._settings = settings
        self._plugin = plugin
        self._journal = journal
        self._memory = memory
        self._keep_layout = keep_layout
        self._layout = Layout(
            settings.kubelet.layout, remembered=memory.layout if memory else "", on_fall_back=self._fell_back
        )
        self._stations: dict[str, Station] = {}
        self._watch = KubeletWatch(settings.paths.device_plugins, poll=settings.kubelet.poll)
        self._link = KubeletLink(self._watch.socket_path)
        verify = settings.kubelet.verify
        self._verifier = Verifier(PodResources(settings.paths.pod_resources)) if verify else None
        self._watch.on_kubelet(self._kubelet_seen)
        self._watch.on_kubelet(on_kubelet)

    @property
    def layout(self) -> str:
        """Where the sockets are."""
        return self._layout.current

    def start(self) -> None:
        """Begin to look for the kubelet, with the dead sockets of earlier lives out of the way."""
        sweep(self._settings.paths.device_plugins)
        self._watch.start()

    def hint(self) -> None:
        """SIGUSR1: the kubelet may have come back; look now, unless we saw it come ourselves a moment ago."""
        if not self._watch.knows():
            self.poke()

    def poke(self) -> None:
        """The kubelet may have come back, or an operator wants a look: look now."""
        self._watch.poke()
        for station in self._stations.values():
            station.registration.retry()

    def get(self, resource: str) -> Station | None:
        """The station of a resource, if it is open."""
        return self._stations.get(resource)

    def open(self, resource: str, handler: Handler, snapshot: Snapshot) -> Station:
        """Serve a resource, with its first list known, and keep it registered."""
        server = ResourceServer(resource, handler)
        registration = Registration(
            server,
            Endpoint(self._settings.paths.device_plugins, self._plugin, resource),
            self._watch,
            self._link,
            self._layout,
            verifier=self._verifier,
            poll=self._settings.kubelet.poll,
            refused_retry=self._settings.kubelet.refused_retry,
            on_change=self._journal.following(resource),
        )
        station = self._stations[resource] = Station(server, registration)
        station.publish(snapshot)
        registration.start()
        return station

    async def close_drained(self, resource: str) -> bool:
        """Close a withdrawn resource once its empty list has been served for a while. True: it is gone."""
        station = self._stations.get(resource)
        if station is None:
            return True
        if station.empty_since is None or time.monotonic() - station.empty_since < EMPTY_FOR:
            return False
        del self._stations[resource]
        await station.close()
        return True

    def served(self) -> frozenset[str]:
        """Resources whose list the kubelet has."""
        states = {name: station.registration.status.state for name, station in self._stations.items()}
        return frozenset(name for name, state in states.items() if state in (REGISTERED, UNVERIFIED))

    def kubelet(self) -> dict[str, Any]:
        """What `status` shows of the kubelet."""
        current = self._watch.current
        return {
            "state": "up" if self._watch.up else "away",
            "pid": current.pid if current and self._watch.up else None,
            "start_time": current.start_time if current and self._watch.up else None,
            "socket": self._watch.socket_path,
            "error": self._watch.error,
        }

    def _build(self) -> str:
        current = self._watch.current
        return kubelet_build(current.pid, self._settings.paths.proc) if current else ""

    def _fell_back(self, layout: str, reason: str) -> None:
        self._memory = LayoutMemory(self._build(), layout, reason)
        self._journal.note("layout-changed", layout=layout, reason=reason)
        self._keep_layout(self._memory)

    def _kubelet_seen(self, identity: Identity) -> None:
        """A fallback holds for the kubelet version that made it necessary."""
        self._journal.kubelet_seen(identity)
        if self._memory is not None and self._memory.kubelet != self._build():
            self._memory = None
            self._layout.reset()

    async def close(self) -> None:
        """End everything; sockets are removed."""
        stations = list(self._stations.values())
        self._stations.clear()
        for station in stations:
            await station.close()
        await self._watch.close()
        await self._link.close()
