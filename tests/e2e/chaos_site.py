"""Where the chaos happens: a real kubelet whose every life is kept, devherd with a misbehaving vendor, device nodes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from devherd.api import podresources_v1_pb2 as pb
from devherd.control import ControlError
from devherd.run.supervisor import Supervisor
from devherd_generic.units import device_id
from support import naughty_vendor
from support.two_vendors import SmallDisks

from e2e import sandbox
from e2e.chaos_memory import MemoryGroup
from e2e.node import POD_RESOURCES, RealNode
from e2e.programs import TookTooLong
from e2e.suite import GENERIC, MAJOR, Suite, rule

CARD, PORT, SHARED, EXTRA = (f"example.com/{name}" for name in ("card", "port", "shared", "extra"))
FAMILIES = {CARD: 8, PORT: 4, SHARED: 1, EXTRA: 2}
COPIES = {SHARED: 10}
RULES: tuple[Mapping[str, Any], ...] = (
    # One resource with NUMA nodes and others without: kubelets are most easily upset by what has them.
    {**rule("card", "card"), "numa": [0], "env": {"CARDS": "{path}"}},
    rule("port", "port"),
    rule("shared", "shared", count=COPIES[SHARED]),
)
EXTRA_RULE = rule("extra", "extra")
# Quick, so that seconds of calm are enough; the defaults wait longer before they believe that something is well again.
SETTINGS: dict[str, Any] = {
    "vendors": ["naughty"],
    "kubelet": {"poll": 1.0},
    "health": {"recover": 0.1, "debounce": 0.2, "hold_off_max": 1.0},
    "probe": {"scan_interval": 1.0, "deadline": 2.0, "restart_max": 1.0},
    "watcher": {"hold_first": 0.5, "hold_max": 1.0},
}
LIVES_KEPT = 12
_RENUMBERED = 1000


class Hardware:
    """Device nodes that come, go, and come back as another device: with another number under the same path."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._resource: dict[str, str] = {}
        self.path_of: dict[str, str] = {}
        self.ids: dict[str, frozenset[str]] = {naughty_vendor.RESOURCE: frozenset(f"n{n}" for n in range(4))}
        for index, (resource, count) in enumerate(sorted(FAMILIES.items())):
            family = resource.rpartition("/")[2]
            for n in range(count):
                path = f"/dev/{family}/{family}{n}"
                self._first[path], self._resource[path] = 256 * index + n, resource
                for copy in range(COPIES.get(resource, 1)):
                    self.path_of[device_id(copy, (path,))] = path
                self.plug(path)
            known = (id for id, path in self.path_of.items() if self._resource[path] == resource)
            self.ids[resource] = frozenset(known)

    def paths(self, *resources: str) -> list[str]:
        """All nodes of some resources, those that are absent too."""
        return [path for path, resource in self._resource.items() if resource in resources]

    def number(self, path: str) -> tuple[int, int] | None:
        """What is behind a path now; None: nothing."""
        try:
            found = os.stat(path).st_rdev
        except FileNotFoundError:
            return None
        return os.major(found), os.minor(found)

    def first_number(self, path: str) -> tuple[int, int]:
        """What was behind a path first of all."""
        return MAJOR, self._first[path]

    def plug(self, path: str, other: bool = False) -> None:
        """A device appears, as what it was, or as another one."""
        with contextlib.suppress(FileExistsError):
            sandbox.make_node(path, MAJOR, self._first[path] + (_RENUMBERED if other else 0))

    def pull(self, path: str) -> None:
        """A device is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class KeptKubelet(RealNode):
    """A real node that keeps the logs of the kubelet's earlier lives, the last few of them."""

    def __init__(self, base: Path, kubelet: Path, **more: Any) -> None:
        super().__init__(base, kubelet, **more)
        self.lives = 0
        self.frozen_lives: set[int] = set()

    def kubelet_start(self) -> None:
        """Start another life."""
        log = self.kubelet.log
        if log.exists():
            os.replace(log, self.life_log(self.lives))
            self.life_log(self.lives - LIVES_KEPT).unlink(missing_ok=True)
        self.lives += 1
        super().kubelet_start()

    def wait_healthy(self, timeout: float = 120.0) -> None:
        """Wait until the kubelet is well; one that ended by itself is started again, as systemd does it."""
        end = time.monotonic() + timeout
        while True:
            if not self.kubelet.running:
                self.kubelet_start()
            with contextlib.suppress(TookTooLong):
                return super().wait_healthy(1.0)
            if time.monotonic() > end:
                raise TookTooLong(f"no healthy kubelet in {timeout:g} s\n{self.kubelet.tail(15)}")

    def kubelet_freeze(self) -> None:
        """What comes while it is stopped, it sees in any order."""
        self.frozen_lives.add(self.lives)
        super().kubelet_freeze()

    def life_log(self, number: int) -> Path:
        """The log of a life that is over."""
        return self.base / f"kubelet.{number}.log"

    def allocatable(self) -> dict[str, frozenset[str]]:
        """Resource -> ids that the kubelet would give away or has given; grpc.RpcError while it does not answer."""
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        with grpc.insecure_channel(f"unix:{POD_RESOURCES}", options=options) as channel:
            ask = channel.unary_unary(
                "/v1.PodResourcesLister/GetAllocatableResources",
                request_serializer=pb.AllocatableResourcesRequest.SerializeToString,
                response_deserializer=pb.AllocatableResourcesResponse.FromString,
            )
            answer = ask(pb.AllocatableResourcesRequest(), timeout=3.0)
        found: dict[str, set[str]] = {}
        for device in answer.devices:
            found.setdefault(device.resource_name, set()).update(device.device_ids)
        return {resource: frozenset(ids) for resource, ids in found.items()}

    def held(self) -> dict[str, dict[str, frozenset[str]]]:
        """Pod's uid -> resource -> ids, from the checkpoint: what the kubelet will give that pod again."""
        found: dict[str, dict[str, frozenset[str]]] = {}
        for entry in self.checkpoint().get("PodDeviceEntries") or []:
            ids = frozenset(id for some in entry["DeviceIDs"].values() for id in some)
            found.setdefault(entry["PodUID"], {})[entry["ResourceName"]] = ids
        return found


class ChaosSuite(SmallDisks, Suite):
    """devherd with small disks, a vendor that misbehaves when told to, and memory that can be made scarce."""

    def __init__(self, layout: str, memory: MemoryGroup | None) -> None:
        settings = {**SETTINGS, "kubelet": {**SETTINGS["kubelet"], "layout": layout}}
        super().__init__({GENERIC: RULES}, settings, "chaos")
        self.memory = memory
        if memory is not None:
            self.supervisor = _Housed(self.layout, memory)

    @property
    def expected_fronts(self) -> dict[str, int]:
        """How many fronts each plugin has."""
        return {GENERIC: 1, "naughty": 1}

    def ready(self) -> bool:
        """Whether every front has its lists and its sockets: a kubelet may come."""
        with contextlib.suppress(ControlError):
            rows = [self.front(plugin)["resources"] for plugin in self.expected_fronts]
            return all(rows) and all(row["state"] != "opening" for some in rows for row in some)
        return False


class _Housed(Supervisor):
    """Started inside a memory group, with all that it starts."""

    def __init__(self, layout: Any, memory: MemoryGroup) -> None:
        super().__init__(layout)
        self._memory = memory

    def start(self, timeout: float = 30.0) -> None:
        """Start and wait for READY=1."""
        with self._memory.entered():
            super().start(timeout)


@contextlib.contextmanager
def stopped(suite: ChaosSuite, kubelet: KeptKubelet) -> Iterator[None]:
    """Whatever happens inside: both are ended after it."""
    try:
        yield
    finally:
        suite.stop()
        suite.unmount()
        kubelet.down()
