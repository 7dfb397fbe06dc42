"""Where one simulated kubelet and its node keep their files, and what a device node there really is."""

from __future__ import annotations

import os
import stat

from msgspec import Struct

CONTAINERS = "containers.json"
OPTIONS = "options.json"


class CreateError(Exception):
    """The runtime could not create the container; the kubelet tries again."""


class RunError(Exception):
    """The container was created and could not be started; the kubelet tries again, and calls the pod running."""


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


class Places(Struct, frozen=True):
    """Folders and sockets of one simulated kubelet."""

    device_plugins: str
    pod_resources: str
    state: str
    control: str
    node: NodeRoot = NodeRoot()
