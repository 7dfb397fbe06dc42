"""Resets a GPU that needs it, by the driver's own tool, when nothing on the node has it open.

The library asks only while no pod holds the GPU. A process outside of pods (a monitoring agent, somebody's shell) may
still have it open, and a reset would take it away under its feet; so its nodes are looked for in every process first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from devherd.trust import changeable

from devherd_gpu.nvidia.gpus import Gpu
from devherd_gpu.nvidia.nvml import Driver

if TYPE_CHECKING:
    from devherd.host import Host

logger = logging.getLogger("devherd_gpu.nvidia.repair")

SECONDS = 90.0
"""How long the tool may take."""
TOOL = "/usr/bin/nvidia-smi"
_LETS_GO = "nvidia-persistenced"[:15]
"""The program, as the kernel writes its name, that has the nodes open and that the driver deals with at a reset."""


def reset(host: Host, driver: Driver, gpu: Gpu) -> str:
    """Reset the GPU. Empty: done; else why not. Lets go of the driver first: our own handles count as users too."""
    users = sorted(set(_users(host, gpu)))
    if users:
        return f"not reset: in use by {', '.join(users[:5])}"
    root = driver.root
    tool = host.path(os.path.join(root, TOOL.lstrip("/")))
    if not os.path.exists(tool):
        return f"not reset: there is no {TOOL} below {root}"
    if os.geteuid() == 0 and (why := changeable(tool)):
        return f"not reset: {why}"
    driver.close()
    return _run(_command(host, root, tool, gpu))


def _command(host: Host, root: str, tool: str, gpu: Gpu) -> list[str]:
    asked = ["--gpu-reset", "-i", gpu.pci]
    if root == "/":
        return [tool, *asked]
    # A containerised driver's tool needs the libraries beside it.
    return ["/usr/sbin/chroot", host.path(root), TOOL, *asked]


def _run(command: list[str]) -> str:
    import subprocess  # only a probe that resets pays for it

    logger.warning("resetting a GPU: %s", " ".join(command))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"the reset did not end within {SECONDS:g} s"
    except OSError as error:
        return f"not reset: {command[0]}: {error.strerror}"
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    logger.warning("%s ended with %d: %s", os.path.basename(command[0]), done.returncode, said)
    return "" if done.returncode == 0 else f"the reset failed: {said[-300:] or f'exit status {done.returncode}'}"


def _users(host: Host, gpu: Gpu) -> Iterator[str]:
    """Processes that have the GPU's node open, but for ourselves. Those that we may not look into are passed over."""
    if gpu.minor < 0:
        return
    node, own = f"/dev/nvidia{gpu.minor}", str(os.getpid())
    for pid in _names(host.path("/proc")):
        if not pid.isdecimal() or pid == own:
            continue
        folder = host.path(f"/proc/{pid}/fd")
        if any(_link(os.path.join(folder, fd)) in (node, host.path(node)) for fd in _names(folder)):
            name = _text(host.path(f"/proc/{pid}/comm")).strip()
            if name != _LETS_GO:
                yield f"{name or 'process'} ({pid})"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
