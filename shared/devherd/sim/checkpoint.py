"""The device manager's checkpoint file, in the real shape, so that plugins can read it as on a node.

Layout: `{"Data": {"PodDeviceEntries": [...], "RegisteredDevices": {...}}, "Checksum": n}`; the checksum of the
real one (a hash over a Go dump) cannot be had here, so it is a CRC of our own JSON.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import secrets
import zlib
from typing import Any

from devherd.api import deviceplugin_v1beta1_pb2 as pb

FILE = "kubelet_internal_checkpoint"


class Held:
    """What one container got of one resource: ids by NUMA node (-1: no topology) and the plugin's answer."""

    __slots__ = ("answer", "by_node")

    def __init__(self, by_node: dict[int, list[str]], answer: pb.ContainerAllocateResponse) -> None:
        self.by_node = by_node
        self.answer = answer

    @property
    def ids(self) -> set[str]:
        """All ids, each once."""
        return {i for ids in self.by_node.values() for i in ids}


PodDevices = dict[str, dict[str, dict[str, Held]]]
"""Pod UID -> container name -> resource -> Held."""


def checksum(data: Any) -> int:
    """CRC-32 of the canonical JSON."""
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def write(folder: str, pods: PodDevices, registered: dict[str, set[str]], *, disk_full: bool = False) -> None:
    """Write to `.<random>` and rename, as the real one does: plugins that watch the folder see both.

    Not fsynced: only a power cut would show it. Raises OSError.
    """
    entries = [
        {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {str(node): ids for node, ids in held.by_node.items()},
            "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
        }
        for uid, containers in pods.items()
        for container, resources in containers.items()
        for resource, held in resources.items()
    ]
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": {k: list(v) for k, v in registered.items()}}
    temp = os.path.join(folder, "." + str(secrets.randbelow(10**9)))
    if disk_full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temp)
    with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"Data": data, "Checksum": checksum(data)}, file)
    os.rename(temp, os.path.join(folder, FILE))


def read(folder: str) -> tuple[PodDevices, set[str]]:
    """Allocations and registered resource names. A missing file is nothing; raises ValueError for a corrupt one."""
    try:
        with open(os.path.join(folder, FILE), encoding="utf-8") as file:
            document = json.load(file)
        data = document["Data"]
        if document["Checksum"] != checksum(data):
            raise ValueError("checkpoint is corrupted")
        pods: PodDevices = {}
        for entry in data["PodDeviceEntries"] or []:
            by_node = {int(node): list(ids) for node, ids in entry["DeviceIDs"].items()}
            answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            of_pod = pods.setdefault(entry["PodUID"], {})
            of_pod.setdefault(entry["ContainerName"], {})[entry["ResourceName"]] = Held(by_node, answer)
        return pods, set(data["RegisteredDevices"] or {})
    except FileNotFoundError:
        return {}, set()
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"checkpoint is corrupted: {error!r}") from error
