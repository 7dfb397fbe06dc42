"""containerd with private folders, and what is asked of it beside the kubelet's back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from e2e import images, sandbox
from e2e.programs import Program, wait

# containerd 1.x reads version 2 with `io.containerd.grpc.v1.cri`; containerd 2 has version 3 and split the plugin.
_CONFIG_1 = """version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{cni}"
"""
_CONFIG_2 = """version = 3
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "/run/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    conf_dir = "{cni}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
"""


class Containerd:
    """One containerd. `programs` is the folder of a containerd 2 built here; None: the distribution's."""

    def __init__(self, folder: Path, programs: Path | None = None) -> None:
        self._folder = folder
        self._programs = programs
        self._images = folder / "images.tar"
        self.socket = f"/run/e2e-{folder.name}/containerd.sock"
        self.program = Program("containerd", folder)

    @property
    def knows_cdi(self) -> bool:
        """Whether it hands CDI devices to containers (since 1.7; Debian 12 has 1.6)."""
        return self._programs is not None

    def start(self) -> None:
        """Start it, and have the images there."""
        config = self._folder / "containerd.toml"
        text = _CONFIG_2 if self._programs else _CONFIG_1
        values = {
            "root": self._folder / "containerd",
            "state": os.path.dirname(self.socket),
            "socket": self.socket,
            "pause": images.PAUSE,
            "cni": self._cni(),
        }
        config.write_text(text.format(**values))
        self.program.start([self._path("containerd"), "-c", str(config)], self._environment(), fresh_log=False)
        wait(self._answers, 60, f"containerd answers\n{self.program.tail()}")
        if not self._images.exists():
            busybox = sandbox.busybox()
            assert busybox is not None
            images.archive(busybox, self._images)
        if images.BUSYBOX not in self.ctr("images", "ls", "-q").split():
            self.ctr("images", "import", str(self._images))

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop it; containers go on without it."""
        self.program.stop(number)

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """containerd's own tool, in the kubelet's namespace."""
        done = self._ctr(arguments)
        if check and done.returncode:
            raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def containers_gone(self) -> None:
        """As a reboot leaves it: no process, no container, no sandbox."""
        for task in self.ctr("tasks", "ls", "-q").split():
            self.ctr("tasks", "kill", "-s", "SIGKILL", task, check=False)
        for task in self.ctr("tasks", "ls", "-q").split():
            wait(lambda task=task: self._ended(task), 20, f"container {task} ends")  # type: ignore[misc]
            self.ctr("tasks", "rm", "-f", task, check=False)
        for one in self.ctr("containers", "ls", "-q").split():
            self.ctr("containers", "rm", one, check=False)

    def execute(self, container: str, *command: str) -> str:
        """Run a program inside a container and return what it printed."""
        name = f"look-{os.urandom(4).hex()}"
        return self.ctr("tasks", "exec", "--exec-id", name, container, *command)

    def _cni(self) -> Path:
        """A network that no pod is ever attached to: all of them use the host's. Without one the node is not ready."""
        folder = self._folder / "cni"
        folder.mkdir(exist_ok=True)
        (folder / "none.conf").write_text('{"cniVersion": "0.4.0", "name": "none", "type": "none"}\n')
        return folder

    def _ended(self, task: str) -> bool:
        rows = [line.split() for line in self.ctr("tasks", "ls").splitlines()]
        return all(row[2] == "STOPPED" for row in rows if row and row[0] == task)

    def _answers(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return os.path.exists(self.socket) and self._ctr(["version"]).returncode == 0
        return False

    def _ctr(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [self._path("ctr"), "-a", self.socket, "-n", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    def _path(self, name: str) -> str:
        return str(self._programs / name) if self._programs else name

    def _environment(self) -> dict[str, str]:
        """containerd finds its shim on the PATH."""
        if not self._programs:
            return {}
        return {"PATH": f"{self._programs}:{os.environ['PATH']}"}
