"""The container runtime: containers that outlive the kubelet, and what each really got.

At creation every device node of the answer is looked up on the node, as runc would, and its number and the
physical thing behind it are noted: what a test compares with the id shows a container on the wrong device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.sim import cdi
from devherd.sim.places import CONTAINERS, CreateError, NodeRoot, RunError
from devherd.sim.pods import write_json


class Record(Struct):
    """One container: what it was created with. `state` is `running` or `exited`; `created` is Unix seconds."""

    state: str
    created: float
    restarts: int
    kubelet_pid: int
    resources: dict[str, list[str]]
    env: dict[str, str]
    annotations: dict[str, str]
    mounts: list[dict[str, Any]]
    nodes: list[dict[str, str]]
    cdi: list[str]
    conflicts: list[str]


def merge(answers: Mapping[str, pb.ContainerAllocateResponse]) -> Record:
    """Merge the answers of several resources as the kubelet does: in the given order, the first of a key wins."""
    record = Record("running", 0.0, 0, 0, {}, {}, {}, [], [], [], [])
    mounts: dict[str, str] = {}
    nodes: dict[str, str] = {}
    for resource, answer in answers.items():
        for key, value in answer.envs.items():
            _put(record, record.env, key, value, f"env of {resource}")
        for key, value in answer.annotations.items():
            _put(record, record.annotations, key, value, f"annotation of {resource}")
        for device in answer.devices:
            if _put(record, nodes, device.container_path, device.host_path, f"device of {resource}"):
                record.nodes.append(
                    {
                        "host_path": device.host_path,
                        "container_path": device.container_path,
                        "permissions": device.permissions,
                    }
                )
        for mount in answer.mounts:
            if _put(record, mounts, mount.container_path, mount.host_path, f"mount of {resource}"):
                record.mounts.append(
                    {
                        "host_path": mount.host_path,
                        "container_path": mount.container_path,
                        "read_only": mount.read_only,
                    }
                )
        for named in answer.cdi_devices:
            if named.name not in record.cdi:
                record.cdi.append(named.name)
    return record


def _put(record: Record, into: dict[str, str], key: str, value: str, what: str) -> bool:
    if key not in into:
        into[key] = value
        return True
    if into[key] != value:
        record.conflicts.append(f"{what}: {key} is {into[key]!r} already, {value!r} ignored")
    return False


def _inject(record: Record, edits: Sequence[cdi.Edits]) -> None:
    """Add what CDI says to what the plugin said."""
    for edit in edits:
        for item in edit.get("env") or ():
            key, _, value = str(item).partition("=")
            record.env[key] = value
        for node in edit.get("deviceNodes") or ():
            path = str(node["path"])
            if path not in {n["container_path"] for n in record.nodes}:
                host = str(node.get("hostPath") or path)
                access = str(node.get("permissions") or "rwm")
                record.nodes.append({"host_path": host, "container_path": path, "permissions": access})
        for mount in edit.get("mounts") or ():
            read_only = "ro" in (mount.get("options") or ())
            record.mounts.append(
                {"host_path": mount["hostPath"], "container_path": mount["containerPath"], "read_only": read_only}
            )


class Runtime:
    """`containers.json` in the state folder: pod UID -> container -> Record. A reboot deletes the file."""

    def __init__(self, folder: str, root: NodeRoot) -> None:
        self._path = os.path.join(folder, CONTAINERS)
        self._root = root
        self._containers: dict[str, dict[str, Record]] = {}
        try:
            with open(self._path, "rb") as file:
                self._containers = msgspec.json.decode(file.read(), type=dict[str, dict[str, Record]])
        except FileNotFoundError:
            pass
        self._at_start = {
            (uid, name)
            for uid, of_pod in self._containers.items()
            for name, r in of_pod.items()
            if r.state == "running"
        }

    def was_running(self, uid: str, name: str) -> bool:
        """Whether the runtime reported the container running when this kubelet started."""
        return (uid, name) in self._at_start

    def get(self, uid: str, name: str) -> Record | None:
        """A container's record."""
        return self._containers.get(uid, {}).get(name)

    def pods(self) -> list[str]:
        """UIDs of all pods that have containers."""
        return list(self._containers)

    def create(
        self,
        uid: str,
        name: str,
        answers: Mapping[str, pb.ContainerAllocateResponse],
        ids: Mapping[str, list[str]],
        cdi_folders: Sequence[str] = (),
    ) -> Record:
        """Create and start a container with these answers, merged in the given order. Raises CreateError, RunError."""
        record = merge(answers)
        try:
            _inject(record, cdi.edits(cdi_folders, record.cdi))
        except (KeyError, TypeError, AttributeError) as error:
            raise CreateError(f"CDI device injection failed: malformed specification: {error!r}") from error
        for node in record.nodes:
            node["number"] = self._root.number(node["host_path"])
            node["thing"] = self._root.thing(node["number"])
        for mount in record.mounts:
            if not os.path.exists(self._root.real(mount["host_path"])):
                raise CreateError(f'failed to stat "{mount["host_path"]}": no such file or directory')
        for node in record.nodes:
            if not node["permissions"] or set(node["permissions"]) - set("rwm"):
                raise RunError(f"invalid device permissions {node['permissions']!r} for {node['host_path']}")
        old = self.get(uid, name)
        record.created = time.time()
        record.restarts = old.restarts + 1 if old else 0
        record.kubelet_pid = os.getpid()
        record.resources = {resource: sorted(of) for resource, of in ids.items()}
        self._containers.setdefault(uid, {})[name] = record
        self._save()
        return record

    def exit(self, uid: str, name: str) -> None:
        """End a container; its record stays."""
        record = self.get(uid, name)
        if record is not None and record.state != "exited":
            record.state = "exited"
            self._save()

    def remove(self, uid: str) -> None:
        """Remove a pod's sandbox and containers."""
        if self._containers.pop(uid, None) is not None:
            self._save()

    def _save(self) -> None:
        write_json(self._path, msgspec.to_builtins(self._containers))
