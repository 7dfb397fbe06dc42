"""NUMA nodes from sysfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from devherd.host.shortage import raise_if_short

if TYPE_CHECKING:
    from devherd.host.access import Host

UNKNOWN = -1
HIGHEST = 63  # the kubelet's topology manager keeps nodes in a 64-bit mask


def node_of_folder(host: Host, folder: str, cache: dict[str, int]) -> int:
    """The NUMA node of a device folder below sysfs (`/devices/...`), or of the nearest parent that knows one.

    Only buses such as PCI have a `numa_node` file (Documentation/ABI/testing/sysfs-bus-pci); the kernel hands a
    parent's node down, so the nearest file decides. -1: unknown, also for a number that no mask can hold.
    """
    walked: list[str] = []
    node = UNKNOWN
    while folder not in ("", "/", "/devices"):
        if folder in cache:
            node = cache[folder]
            break
        walked.append(folder)
        read = _read(f"{host.paths.sys}{folder}/numa_node")
        if read is not None:
            node = read
            break
        folder = folder.rpartition("/")[0]
    cache.update(dict.fromkeys(walked, node))
    return node


def _read(path: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a fifth of open()'s time, ten thousand times
    except OSError as error:
        raise_if_short(error)
        return None
    try:
        node = int(os.read(descriptor, 32))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    return node if 0 <= node <= HIGHEST else UNKNOWN
