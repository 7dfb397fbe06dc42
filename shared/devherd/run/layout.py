"""Where a private instance is, and what lies where in it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

LONGEST_FOLDER = 107 - len("/kubelet/device-plugins/devherd/.12345678.4194304.1000")
"""Bytes of an instance's folder that leave room for its longest socket path (unix(7))."""
RUN_SOCKET = "run.control.sock"
"""Control socket of an instance's runner, in its run folder."""


class InUse(Exception):
    """The instance's name or folder cannot be had; the text says why and what to do."""


def instances_folder() -> str:
    """Where this user's private instances live: `${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/devherd-<uid>`.

    Nothing is tried out there: an instance must be found on a full disk too.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"
    return os.path.join(os.path.abspath(base), f"devherd-{os.getuid()}")


def claim_folder(path: str) -> None:
    """Make a folder that only this user can enter, or check that an existing one is. Raises InUse.

    In /tmp anybody may have made one of that name before us.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise InUse(f"{path} exists and is not a folder of yours alone; remove it or set XDG_RUNTIME_DIR") from None


@dataclass(frozen=True)
class Layout:
    """An instance's folder. Short names, because socket paths must stay below 108 bytes."""

    folder: str

    @classmethod
    def named(cls, name: str) -> Layout:
        """The place of an instance. Raises ValueError for a name that is no plain word, or too long for sockets."""
        if not name or not all(c.isalnum() or c in "-_" for c in name):
            raise ValueError(f"{name!r} is no instance name; use letters, digits, - and _")
        folder = os.path.join(instances_folder(), name)
        over = len(os.fsencode(folder)) - LONGEST_FOLDER
        if over > 0:
            raise ValueError(
                f"{folder}: {over} bytes too long for the sockets in it; "
                "use a shorter name, or point XDG_RUNTIME_DIR to a shorter path"
            )
        return cls(folder)

    @property
    def name(self) -> str:
        """The instance's name."""
        return os.path.basename(self.folder)

    @property
    def lock(self) -> str:
        """The runner's lock, beside the folder, because the folder comes and goes."""
        return self.folder + ".lock"

    def at(self, *parts: str) -> str:
        """A path below the folder."""
        return os.path.join(self.folder, *parts)

    @property
    def etc(self) -> str:
        """Configuration."""
        return self.at("etc")

    @property
    def run(self) -> str:
        """Sockets, locks, claims: what a reboot clears."""
        return self.at("run")

    @property
    def state(self) -> str:
        """What survives a reboot."""
        return self.at("state")

    @property
    def log(self) -> str:
        """Log files."""
        return self.at("log")

    @property
    def cache(self) -> str:
        """What can be made again."""
        return self.at("cache")

    @property
    def kubelet(self) -> str:
        """The simulated kubelet's folder, as /var/lib/kubelet."""
        return self.at("kubelet")

    @property
    def node(self) -> str:
        """The simulated node's root."""
        return self.at("node")

    @property
    def config(self) -> str:
        """The instance's devherd.yaml."""
        return self.at("etc", "devherd.yaml")

    @property
    def supervisor_config(self) -> str:
        """supervisord's configuration."""
        return self.at("etc", "supervisord.conf")

    @property
    def supervisor_socket(self) -> str:
        """supervisord's XML-RPC socket."""
        return self.at("run", "supervisor.sock")

    @property
    def control(self) -> str:
        """The runner's control socket."""
        return self.at("run", RUN_SOCKET)

    @property
    def device_plugins(self) -> str:
        """The simulated kubelet's device plugin folder."""
        return self.at("kubelet", "device-plugins")

    @property
    def pod_resources(self) -> str:
        """The simulated kubelet's PodResources socket."""
        return self.at("kubelet", "pod-resources", "kubelet.sock")

    @property
    def kubelet_state(self) -> str:
        """Pods, containers and options of the simulated kubelet."""
        return self.at("kubelet", "state")

    @property
    def kubelet_control(self) -> str:
        """The simulated kubelet's control socket."""
        return self.at("kubelet", "sim.sock")

    def make(self) -> None:
        """Make the folders."""
        claim_folder(self.folder)
        for path in (self.at("etc", "supervisord.d"), self.at("etc", "plugins.d"), self.run, self.state, self.log):
            os.makedirs(path, mode=0o700, exist_ok=True)
        for path in (self.cache, self.kubelet, self.node):
            os.makedirs(path, mode=0o700, exist_ok=True)
