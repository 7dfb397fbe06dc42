"""The container runtime: containers that outlive the kubelet, and what each really got.

At creation every device node of the answer is looked up on the node, as runc would, and its number and the
physical thing behind it are noted: what a test compares with the id shows a container on the wrong device.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.sim.pods import write_json


class CreateError(Exception):
    """The runtime could not create the container; the kubelet tries again."""


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


class NodeRoot(Struct, frozen=True):
    """Where the node's files are; `rdev_table` names the numbers of device nodes that are plain files."""

    root: str = "/"
    dev: str = "/dev"
    sys: str = "/sys"
    rdev_table: str = ""

    def real(self, logical: str) -> str:
        """The path on this machine."""
        for prefix, where in (("/dev", self.dev), ("/sys", self.sys)):
            if logical == prefix or logical.startswith(prefix + "/"):
                return where + logical[len(prefix) :]
        return logical if self.root == "/" else self.root + logical

    def number(self, logical: str) -> str:
        """The number of a device node, `c 10:229`. Raises CreateError in the runtime's words."""
        real = self.real(logical)
        text = f'error gathering device information while adding custom device "{logical}": '
        try:
            found = os.stat(real)
        except OSError as error:
            raise CreateError(f"{text}{(error.strerror or str(error)).lower()}") from error
        if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
            return f"{kind} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        table = read_rdev_table(self.rdev_table)
        entry = table.get(logical) or table.get(self._resolved(real))
        if entry is None:
            raise CreateError(f"{text}not a device node")
        return entry

    def _resolved(self, real: str) -> str:
        target = os.path.realpath(real)
        dev = os.path.realpath(self.dev)
        return "/dev" + target[len(dev) :] if target.startswith(dev + "/") else target

    def thing(self, number: str) -> str:
        """The physical thing behind a number: `sys:/devices/...`, or `c:10:229` where sysfs knows nothing."""
        kind, _, digits = number.partition(" ")
        link = os.path.join(self.sys, "dev", "char" if kind == "c" else "block", digits)
        if not os.path.exists(link):
            return f"{kind}:{digits}"
        target = os.path.realpath(link)
        return "sys:" + target[len(os.path.realpath(self.sys)) :]


def read_rdev_table(path: str) -> dict[str, str]:
    """Logical path -> `c 240:4`, from lines `/dev/x4 c 240 4`. A missing table is empty."""
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:
        return {}
    return {row[0]: f"{row[1]} {row[2]}:{row[3]}" for row in rows if len(row) == 4}


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
        for cdi in answer.cdi_devices:
            if cdi.name not in record.cdi:
                record.cdi.append(cdi.name)
    return record


def _put(record: Record, into: dict[str, str], key: str, value: str, what: str) -> bool:
    if key not in into:
        into[key] = value
        return True
    if into[key] != value:
        record.conflicts.append(f"{what}: {key} is {into[key]!r} already, {value!r} ignored")
    return False


class Runtime:
    """`containers.json` in the state folder: pod UID -> container -> Record. A reboot deletes the file."""

    FILE = "containers.json"

    def __init__(self, folder: str, root: NodeRoot) -> None:
        self._path = os.path.join(folder, self.FILE)
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
    ) -> Record:
        """Create and start a container with these answers, merged in the given order. Raises CreateError."""
        record = merge(answers)
        for node in record.nodes:
            if not node["permissions"] or set(node["permissions"]) - set("rwm"):
                raise CreateError(f"invalid device permissions {node['permissions']!r} for {node['host_path']}")
            node["number"] = self._root.number(node["host_path"])
            node["thing"] = self._root.thing(node["number"])
        for mount in record.mounts:
            if not os.path.exists(self._root.real(mount["host_path"])):
                raise CreateError(f'failed to stat "{mount["host_path"]}": no such file or directory')
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
