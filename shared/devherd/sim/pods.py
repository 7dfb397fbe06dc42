"""Pods: what was asked for, and what became of it. The store stands for the API server and outlives the kubelet."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct

TERMINAL = ("Succeeded", "Failed")


class Kind(str, Enum):
    """A plain init container ends before the next starts; a sidecar is an init container that stays."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Container(Struct, frozen=True):
    """A container and its limits, `resource -> count`."""

    name: str
    requests: dict[str, int] = {}
    kind: Kind = Kind.MAIN


class Pod(Struct, frozen=True):
    """One pod. `source` is `api` (its end is remembered) or `file` (a static pod: tried again by each kubelet).

    `late_reject` names a reason for which a later admission check refuses the pod, after Allocate.
    """

    name: str
    uid: str
    containers: tuple[Container, ...]
    namespace: str = "default"
    source: str = "api"
    late_reject: str = ""
    created: float = 0.0

    def total(self, resource: str) -> int:
        """What the scheduler counts: the larger of regular containers plus sidecars, and any init step."""
        running = 0
        peak = 0
        for container in self.containers:
            count = container.requests.get(resource, 0)
            if container.kind is Kind.INIT:
                peak = max(peak, running + count)
            else:
                running += count
        return max(running, peak)


class Status(Struct, frozen=True):
    """Phase, reason and message, as the API shows them."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""


class Entry(Struct):
    """A pod and its present status."""

    pod: Pod
    status: Status = Status()


def pod_from(request: dict[str, Any]) -> Pod:
    """Build a pod from a `pod-add` request; raises ValueError (what is wrong) for a malformed one.

    `requests` is short for one container `main`; `init` (each may be `sidecar`) and `containers` list several.
    """
    containers: list[Container] = []
    try:
        for number, raw in enumerate(request.get("init", [])):
            kind = Kind.SIDECAR if raw.get("sidecar") else Kind.INIT
            containers.append(_container(raw, f"init-{number}", kind))
        for number, raw in enumerate(request.get("containers", [])):
            containers.append(_container(raw, f"main-{number}", Kind.MAIN))
        if not request.get("containers"):
            containers.append(_container({"requests": request.get("requests", {})}, "main", Kind.MAIN))
        pod: dict[str, Any] = {k: request[k] for k in ("name", "namespace", "source", "late_reject") if k in request}
        made = msgspec.convert(
            {**pod, "uid": str(uuid.uuid4()), "created": time.time(), "containers": ()}, Pod, strict=True
        )
    except (msgspec.ValidationError, AttributeError, TypeError) as error:
        raise ValueError(f"pod: {error}") from error
    names = [c.name for c in containers]
    if len(set(names)) != len(names):
        raise ValueError(f"pod {made.name}: two containers have the same name")
    return msgspec.structs.replace(made, containers=tuple(containers))


def _container(raw: dict[str, Any], default: str, kind: Kind) -> Container:
    counts = msgspec.convert(raw.get("requests", {}), dict[str, int])
    if any(count < 0 for count in counts.values()):
        raise ValueError("a request is negative")
    return Container(name=str(raw.get("name", default)), requests=counts, kind=kind)


class PodStore:
    """`pods.json` in the state folder, written at each change."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "pods.json")
        self._entries: dict[str, Entry] = {}
        try:
            with open(self._path, "rb") as file:
                entries = msgspec.json.decode(file.read(), type=list[Entry])
            self._entries = {entry.pod.uid: entry for entry in entries}
        except FileNotFoundError:
            pass

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, uid: str) -> Entry | None:
        """The entry of one pod."""
        return self._entries.get(uid)

    def named(self, name: str, namespace: str = "default") -> Entry | None:
        """The entry of the pod with this name."""
        for entry in self._entries.values():
            if entry.pod.name == name and entry.pod.namespace == namespace:
                return entry
        return None

    def add(self, pod: Pod) -> Entry:
        """Take a new pod; raises ValueError when the name is in use."""
        if self.named(pod.name, pod.namespace) is not None:
            raise ValueError(f"pod {pod.namespace}/{pod.name} exists already; remove it first")
        entry = Entry(pod)
        self._entries[pod.uid] = entry
        self.save()
        return entry

    def remove(self, uid: str) -> None:
        """Forget a pod."""
        self._entries.pop(uid, None)
        self.save()

    def set_status(self, uid: str, status: Status) -> None:
        """Write a new status."""
        entry = self._entries.get(uid)
        if entry is not None and entry.status != status:
            entry.status = status
            self.save()

    def save(self) -> None:
        """Write the file; static pods' status is not kept, because a kubelet without API server keeps none."""
        entries = [Entry(e.pod) if e.pod.source == "file" else e for e in self._entries.values()]
        write_json(self._path, msgspec.to_builtins(entries))


def write_json(path: str, value: Any) -> None:
    """Replace a file in one step."""
    temp = f"{path}.{os.getpid()}"
    with open(temp, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(temp, path)
