"""The control socket's operations: what people and tests can ask of a running simulated kubelet."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from devherd.sim.options import changed
from devherd.sim.pods import TERMINAL, Entry, Kind, Status, pod_from

if TYPE_CHECKING:
    from devherd.sim.core import Kubelet

Reply = dict[str, Any]


class RequestError(Exception):
    """The request cannot be fulfilled; the text says what to do."""


class Operations:
    """`{"op": name, ...}` in, a JSON object out; errors are `{"error": text}`."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet

    async def handle(self, request: Reply) -> Reply:
        """Answer one request; never raises."""
        op = str(request.get("op", ""))
        method = getattr(self, "op_" + op.replace("-", "_"), None)
        if method is None:
            known = sorted(n[3:].replace("_", "-") for n in dir(self) if n.startswith("op_"))
            return {"error": f"unknown op {op!r}; known: {', '.join(known)}"}
        try:
            reply = method(request)
            return dict(await reply if asyncio.iscoroutine(reply) else reply)
        except (RequestError, ValueError) as error:
            return {"error": str(error)}
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            return {"error": f"{op}: missing or malformed field: {error}"}

    def op_ping(self, request: Reply) -> Reply:
        """Whether the process answers."""
        return {"pid": os.getpid()}

    def op_node(self, request: Reply) -> Reply:
        """Resources as this kubelet sees them now, and the state of its loop."""
        kubelet = self._kubelet
        devices = kubelet.devices
        capacity, allocatable = devices.capacity()
        owners = devices.owners()
        resources = {}
        for resource in sorted(capacity):
            endpoint = devices.endpoints.get(resource)
            client = endpoint.client if endpoint else None
            resources[resource] = {
                "capacity": capacity[resource],
                "allocatable": allocatable[resource],
                "healthy": sorted(devices.healthy.get(resource, ())),
                "unhealthy": sorted(devices.unhealthy.get(resource, ())),
                "allocated": len(devices.allocated.get(resource, ())),
                "held": {i: self._owner(*owner) for i, owner in sorted(owners.get(resource, {}).items())},
                "endpoint": client.endpoint if client else "",
                "stopped": endpoint is None or endpoint.stopped is not None,
                "registrations": kubelet.registrar.counts.get(resource, 0),
                "registered_ms": kubelet.milliseconds("registered", resource),
                "allocatable_ms": kubelet.milliseconds("list", resource),
            }
        loop = kubelet.loop
        return {
            "pid": os.getpid(),
            "listening": kubelet.bound_at,
            "sources_ready": devices.sources_ready,
            "frozen": kubelet.frozen,
            "resources": resources,
            "api": kubelet.api_view,
            "loop": {"doing": loop.doing, "seconds": round(loop.stuck_seconds, 3)},
            "healthz": "syncloop: failed" if loop.stuck_seconds > kubelet.options.stall else "ok",
        }

    def _owner(self, uid: str, container: str) -> str:
        entry = self._kubelet.store.get(uid)
        return f"{entry.pod.namespace}/{entry.pod.name}/{container}" if entry else f"{uid}/{container}"

    def op_pods(self, request: Reply) -> Reply:
        """All pods with status, containers, what each got, and device health as pod status shows it."""
        name = request.get("name")
        return {"pods": [self._pod(e) for e in self._kubelet.store if name in (None, e.pod.name)]}

    def _pod(self, entry: Entry) -> Reply:
        pod = entry.pod
        worker = self._kubelet.loop.worker(pod.uid)
        waiting = worker.waiting if worker else {}
        containers = []
        for container in pod.containers:
            record = self._kubelet.runtime.get(pod.uid, container.name)
            reason, message = waiting.get(container.name, ("", ""))
            held = self._kubelet.devices.pods.get(pod.uid, {}).get(container.name, {})
            health = {}
            if container.kind is Kind.MAIN:
                for resource, of in held.items():
                    health[resource] = {i: self._kubelet.devices.health_of(resource, i) for i in sorted(of.ids)}
            containers.append(
                {
                    "name": container.name,
                    "kind": container.kind.value,
                    "requests": container.requests,
                    "devices": {resource: sorted(of.ids) for resource, of in held.items()},
                    "allocated_resources_status": health,
                    "state": record.state if record else "waiting",
                    "waiting": {"reason": reason, "message": message} if reason else None,
                    "record": msgspec.to_builtins(record) if record else None,
                }
            )
        return {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "source": pod.source,
            "admitted": worker is not None,
            **msgspec.to_builtins(entry.status),
            "containers": containers,
        }

    async def op_pod_add(self, request: Reply) -> Reply:
        """Put a pod on the node. `wait`: seconds to wait until it runs or failed."""
        kubelet = self._kubelet
        pod = pod_from(request)
        entry = kubelet.store.add(pod)
        kubelet.loop.add(entry)
        kubelet.log("pod-added", pod=pod.name, uid=pod.uid)
        await self._settle(entry, float(request.get("wait", 0)))
        return self._pod(entry)

    async def _settle(self, entry: Entry, timeout: float) -> None:
        if timeout > 0:
            await self._kubelet.log.until(lambda: entry.status.phase in ("Running", *TERMINAL), timeout)

    async def op_pod_rm(self, request: Reply) -> Reply:
        """Delete a pod. `wait`: seconds to wait until the kubelet has dropped it."""
        entry = self._entry(request)
        kubelet = self._kubelet
        kubelet.store.remove(entry.pod.uid)
        kubelet.loop.remove(entry)
        if request.get("wait"):
            await kubelet.log.until(lambda: entry not in kubelet.loop.known(), float(request["wait"]))
        return {"removed": entry.pod.uid}

    def op_pod_exit(self, request: Reply) -> Reply:
        """All containers end by themselves: the pod has succeeded."""
        entry = self._entry(request)
        worker = self._kubelet.loop.worker(entry.pod.uid)
        if worker is not None:
            worker.stop()
        for container in entry.pod.containers:
            self._kubelet.runtime.exit(entry.pod.uid, container.name)
        self._kubelet.store.set_status(entry.pod.uid, Status("Succeeded"))
        self._kubelet.log("pod-succeeded", pod=entry.pod.name, uid=entry.pod.uid)
        return self._pod(entry)

    async def op_container_restart(self, request: Reply) -> Reply:
        """Kill one container (default: the first regular one); the pod's worker makes it anew."""
        entry = self._entry(request)
        pod = entry.pod
        regular = [c.name for c in pod.containers if c.kind is not Kind.INIT]
        name = str(request.get("container", regular[0]))
        old = self._kubelet.runtime.get(pod.uid, name)
        if old is None or name not in regular:
            raise RequestError(f"pod {pod.name} has no running container {name!r}")
        worker = self._kubelet.loop.worker(pod.uid)
        self._kubelet.runtime.exit(pod.uid, name)
        if worker is None:
            raise RequestError(f"pod {pod.name} is not admitted yet; its container was ended and stays so")
        worker.wake()
        timeout = float(request.get("wait", 0))
        if timeout:
            await self._kubelet.log.until(lambda: self._kubelet.runtime.get(pod.uid, name) is not old, timeout)
        return self._pod(entry)

    def _entry(self, request: Reply) -> Entry:
        name = str(request["name"])
        entry = self._kubelet.store.named(name, str(request.get("namespace", "default")))
        if entry is None:
            raise RequestError(f"there is no pod {name!r}")
        return entry

    def op_freeze(self, request: Reply) -> Reply:
        """Accept connections and answer nothing (RPCs, lists, pods); this socket still answers."""
        self._kubelet.freeze()
        return {"frozen": True}

    def op_unfreeze(self, request: Reply) -> Reply:
        """Go on where it stopped."""
        self._kubelet.unfreeze()
        return {"frozen": False}

    def op_set(self, request: Reply) -> Reply:
        """Change options, now and for later starts (`options`: name -> value; empty: only show them)."""
        options = changed(self._kubelet.options, dict(request.get("options", {})))
        self._kubelet.set_options(options)
        return {"options": msgspec.to_builtins(options)}

    async def op_cut(self, request: Reply) -> Reply:
        """End a resource's stream from this side while the kubelet lives on."""
        if not await self._kubelet.registrar.cut(str(request["resource"])):
            raise RequestError(f"{request['resource']} is not registered")
        return {}

    def op_log(self, request: Reply) -> Reply:
        """Events after number `since`, optionally of one sort (`what`)."""
        return {"events": self._kubelet.log.since(int(request.get("since", 0)), request.get("what"))}

    async def op_wait(self, request: Reply) -> Reply:
        """Wait for a condition (see `_condition`), `timeout` seconds (default 10). `met` says whether it came true."""
        found = self._condition(request)
        result = await self._kubelet.log.until(found, float(request.get("timeout", 10)))
        return {"met": bool(result), "result": result if isinstance(result, dict) else None}

    def _condition(self, request: Reply) -> Callable[[], Any]:
        """One of: `listening`; `event` (+ any field, `since`); `pod` (+ `phase`); `resource` (+ `capacity`, ...)."""
        kubelet = self._kubelet
        if request.get("listening"):
            return lambda: kubelet.bound_at
        if "event" in request:
            skip = {"op", "event", "since", "timeout"}
            wanted = {k: v for k, v in request.items() if k not in skip}
            since = int(request.get("since", 0))

            def event() -> Any:
                for found in kubelet.log.since(since, request["event"]):
                    if all(found.get(k) == v for k, v in wanted.items()):
                        return found
                return None

            return event
        if "pod" in request:
            phase = request.get("phase", "Running")

            def pod() -> Any:
                entry = kubelet.store.named(str(request["pod"]), str(request.get("namespace", "default")))
                return self._pod(entry) if entry is not None and entry.status.phase == phase else None

            return pod
        if "resource" in request:
            wanted = {k: request[k] for k in ("capacity", "allocatable", "stopped") if k in request}

            def resource() -> Any:
                found = self.op_node({})["resources"].get(request["resource"])
                if found is None:
                    return {"gone": True} if request.get("gone") else None
                met = not request.get("gone") and all(found[k] == v for k, v in wanted.items())
                return found if met else None

            return resource
        raise RequestError("wait for what? Give listening, event, pod or resource")
