"""What a scenario is: a function that does things to a node and notes what it sees."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import deviceplugin_v1beta1_pb2_grpc as rpc
from devherd.api import podresources_v1_pb2 as prpb

from e2e.compare.plugin import Loop, Plugin, device
from e2e.compare.side import Ctr, PodSpec, Side, View

_LOCAL = [("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost")]
Work = Callable[["Run"], None]


@dataclass(frozen=True)
class Scenario:
    """`items` are numbers of the checklist (docs/simulation.md); `shows` is one sentence for people.

    `options` are the kubelet's for the whole scenario; `scaled` only the simulation's, which shorten long waits.
    `long`: seconds it takes on a real kubelet, when that is too long for every run.
    `since`: older kubelets do not do this, or not unless told to.
    """

    name: str
    shows: str
    items: tuple[int, ...]
    work: Work
    options: Mapping[str, Any] = field(default_factory=dict)
    scaled: Mapping[str, Any] = field(default_factory=dict)
    long: int = 0
    since: tuple[int, int] = (1, 34)


ALL: dict[str, Scenario] = {}


def scenario(shows: str, *items: int, **more: Any) -> Callable[[Work], Work]:
    """Register a scenario under its function's name."""

    def register(work: Work) -> Work:
        name = work.__name__.replace("_", "-")
        ALL[name] = Scenario(name, shows, items, work, **more)
        return work

    return register


class Run:
    """One scenario on one side. Everything noted must be the same on both."""

    def __init__(self, side: Side, name: str, loop: Loop) -> None:
        self.side = side
        self.notes: list[tuple[str, Any]] = []
        self.late: list[str] = []
        self._loop = loop
        self._name = name
        self._plugins: list[Plugin] = []
        self._uids: dict[str, str] = {}

    def note(self, what: str, value: Any) -> None:
        """Note one thing that was seen."""
        self.notes.append((what, self.plain(value)))

    def until(self, what: str, look: Callable[[], Any], wanted: Any, timeout: float = 20.0) -> Any:
        """Note a value as soon as it is the wanted one, or what it is when time is up."""
        end = time.monotonic() + timeout
        while (value := self.plain(look())) != wanted and time.monotonic() < end:
            time.sleep(0.02)
        self.notes.append((what, value))
        if value != wanted:
            self.late.append(f"{what}: is {value!r}, expected {wanted!r}")
        return value

    def plain(self, value: Any) -> Any:
        """Without what differs by nature: folders, UIDs, addresses in memory in a text, tuples or lists."""
        text = re.sub(
            r"endpoint \S[^\"]* has been stopped", "endpoint <...> has been stopped", json.dumps(value, sort_keys=True)
        )
        for uid, name in self._uids.items():
            text = text.replace(uid, f"<uid of {name}>")
        return json.loads(text.replace(self.side.device_plugins, "<device-plugins>"))

    @property
    def by_socket(self) -> bool:
        """Whether this kubelet tells a resource's connections apart (since 1.37)."""
        return self.side.line >= (1, 37)

    # Plugins

    def resource(self, name: str = "dev") -> str:
        """A resource name that no other scenario uses."""
        return f"{self._name}.example.com/{name}"

    def plugin(
        self, count: int = 2, *, name: str = "dev", devices: Sequence[pb.Device] | None = None, socket: str = ""
    ) -> Plugin:
        """A plugin that serves, and is not registered yet. Its devices are a0, a1, ... if none are given."""
        there = [device(f"a{n}") for n in range(count)] if devices is None else devices
        endpoint = socket or f"compare/{self._name[:30]}-{name}-{len(self._plugins)}.sock"
        made = Plugin(self._loop, self.side.device_plugins, self.resource(name), there, endpoint)
        self._plugins.append(made)
        made.serve()
        return made

    def registered(self, count: int = 2, **more: Any) -> Plugin:
        """A plugin that is registered, and whose first list the kubelet has taken in."""
        made = self.plugin(count, **more)
        assert self.register(made) == "OK"
        self.known(made)
        return made

    def known(self, plugin: Plugin) -> None:
        """Wait until the kubelet's PodResources have the plugin's healthy devices."""
        wanted = {one.ID for one in plugin.devices if one.health == "Healthy"}
        end = time.monotonic() + 20
        while set(self.allocatable(plugin.resource)) != wanted:
            assert time.monotonic() < end, f"{plugin.resource} is not known"
            time.sleep(0.02)

    def register(self, plugin: Plugin, timeout: float = 30.0, **fields: Any) -> str:
        """Call Register; `OK`, or code and text."""
        request = {"version": "v1beta1", "endpoint": plugin.endpoint, "resource_name": plugin.resource, **fields}

        async def call() -> str:
            target = f"unix:{self.side.device_plugins}/kubelet.sock"
            async with grpc.aio.insecure_channel(target, options=_LOCAL) as channel:
                try:
                    await rpc.RegistrationStub(channel).Register(pb.RegisterRequest(**request), timeout=timeout)
                except grpc.aio.AioRpcError as error:
                    return f"{error.code().name}: {error.details()}"
                return "OK"

        return self._loop.run(call())

    def boot(self, plugin: Plugin) -> None:
        """The node boots, and the kubelet gets its pods once the plugin is registered and its list is taken in."""
        self.side.stop()
        self.side.lose_containers()

        def register() -> None:
            end = time.monotonic() + 60
            while (answer := self.register(plugin)) != "OK":
                assert time.monotonic() < end, answer
                time.sleep(0.01)
            self.known(plugin)

        self.side.start_with_pods_late(register)

    def close(self) -> None:
        """Stop the plugins."""
        for plugin in self._plugins:
            plugin.stop()

    # Pods

    def pod(self, name: str, requests: Mapping[str, int] | None = None, **more: Any) -> str:
        """A static pod with one container `c`, or with `containers=` and `init=`; returns its full name."""
        full = f"{self._name[:40]}-{name}"
        self.side.add(PodSpec(full, more.pop("containers", None) or [Ctr("c", requests or {})], **more))
        return full

    def settled(self, pod: str, timeout: float = 60.0) -> View:
        """The pod when it runs, has failed, or waits for something with a reason."""
        end = time.monotonic() + timeout
        while True:
            view = self.side.view(pod)
            if view is not None and self._is_settled(view):
                return view
            assert time.monotonic() < end, f"{pod} is {view}"
            time.sleep(0.05)

    def _is_settled(self, view: View) -> bool:
        self._uids[view.uid] = "pod"
        if view.phase in ("Failed", "Succeeded"):
            return True
        states = view.containers.values()
        running = all(one["state"] in ("running", "exited") for one in states) and bool(states)
        odd = [one for one in states if one["reason"] not in ("", "ContainerCreating", "PodInitializing")]
        return (view.phase == "Running" and running) or bool(odd)

    def outcome(self, pod: str) -> list[str]:
        """Phase, reason and message of a settled pod."""
        view = self.settled(pod)
        return [view.phase, view.reason, view.message]

    def held(self) -> dict[str, Any]:
        """Checkpoint: "pod/container/resource" -> {NUMA node: ids}, of this scenario's resources."""
        return {key: entry["DeviceIDs"] for key, entry in self._entries().items()}

    def answers(self) -> dict[str, Any]:
        """Checkpoint: "container/resource" -> the answer's environment."""
        found = {}
        for key, entry in self._entries().items():
            answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            found[key] = dict(answer.envs)
        return found

    def _entries(self) -> dict[str, Any]:
        data = self._checkpoint()
        mine = [e for e in data["PodDeviceEntries"] or [] if e["ResourceName"].startswith(f"{self._name}.")]
        return {
            f"{e['ContainerName']}/{e['ResourceName'].partition('/')[2]}": {
                **e,
                "DeviceIDs": {node: sorted(ids) for node, ids in e["DeviceIDs"].items()},
            }
            for e in mine
        }

    def registered_ids(self) -> dict[str, list[str]]:
        """Checkpoint: resource -> healthy ids."""
        found = self._checkpoint()["RegisteredDevices"] or {}
        return {k.partition("/")[2]: sorted(v) for k, v in found.items() if k.startswith(f"{self._name}.")}

    def _checkpoint(self) -> dict[str, Any]:
        with open(os.path.join(self.side.device_plugins, "kubelet_internal_checkpoint"), encoding="utf-8") as file:
            return dict(json.load(file)["Data"])

    def counts(self, name: str = "dev") -> list[int] | None:
        """[capacity, allocatable] of a resource; None when the node does not have it."""
        found = self.side.counts().get(self.resource(name))
        return None if found is None else list(found)

    # PodResources

    def ask(self, method: str, request: Any, reply: Any, version: str = "v1") -> Any:
        """One PodResources call; the reply, or `CODE: text`."""

        async def call() -> Any:
            async with grpc.aio.insecure_channel(f"unix:{self.side.pod_resources}", options=_LOCAL) as channel:
                path = f"/{version}.PodResourcesLister/{method}"
                stub = channel.unary_unary(
                    path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
                )
                try:
                    return await stub(request, timeout=10)
                except grpc.aio.AioRpcError as error:
                    return f"{error.code().name}: {error.details()}"

        return self._loop.run(call())

    def _patient(self, method: str, request: Any, reply: Any, version: str = "v1") -> Any:
        """As `ask`, but the rate limit is waited for."""
        while isinstance(found := self.ask(method, request, reply, version), str):
            if "rate limit" not in found:
                return found
            time.sleep(0.05)
        return found

    def allocatable(self, resource: str) -> dict[str, list[int]]:
        """GetAllocatableResources: id -> NUMA nodes, of one resource."""
        reply = self._patient(
            "GetAllocatableResources", prpb.AllocatableResourcesRequest(), prpb.AllocatableResourcesResponse
        )
        return _by_id([d for d in getattr(reply, "devices", ()) if d.resource_name == resource])

    def listed(self, version: str = "v1") -> dict[str, Any]:
        """List: pod -> container -> resource -> id -> NUMA nodes, of this scenario's pods."""
        reply = self._patient("List", prpb.ListPodResourcesRequest(), prpb.ListPodResourcesResponse, version)
        mine = [pod for pod in reply.pod_resources if pod.name.startswith(f"{self._name[:40]}-")]
        return {_short(pod.name): _containers(pod) for pod in mine}

    def one(self, pod: str) -> Any:
        """Get: one pod as in List, or the error."""
        name = pod + ("-n1" if self.side.kind == "real" else "")
        request = prpb.GetPodResourcesRequest(pod_name=name, pod_namespace="default")
        reply = self._patient("Get", request, prpb.GetPodResourcesResponse)
        return reply.replace("-n1", "") if isinstance(reply, str) else _containers(reply.pod_resources)

    # The kubelet

    def restart(self, *, kill: bool = True) -> None:
        """Kubelet down and up, everything else goes on."""
        self.side.stop(kill=kill)
        self.side.start()


def _short(pod: str) -> str:
    return pod.removesuffix("-n1").rpartition("-")[2]


def _containers(pod: prpb.PodResources) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for container in pod.containers:
        kinds = sorted({d.resource_name for d in container.devices})
        found[container.name] = {
            kind.partition("/")[2]: _by_id([d for d in container.devices if d.resource_name == kind]) for kind in kinds
        }
    return found


def _by_id(devices: Sequence[prpb.ContainerDevices]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in devices:
        for name in one.device_ids:
            found.setdefault(name, []).extend(node.ID for node in one.topology.nodes)
    return {name: sorted(nodes) for name, nodes in found.items()}
