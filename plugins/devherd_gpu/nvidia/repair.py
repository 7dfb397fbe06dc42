"""Resets a GPU that needs it, by the driver's own tool, when nothing on the node has it open.

The library asks only while no pod holds the GPU. A process outside of pods (a monitoring agent, somebody's shell) may
still have it open, and a reset would take it away under its feet; so its nodes are looked for in every process first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from devherd_gpu.nvidia import tools
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
    why = tools.refused(host, root, TOOL)
    if why:
        return f"not reset: {why}"
    driver.close()
    words = tools.command(host, root, TOOL, "--gpu-reset", "-i", gpu.pci)
    logger.warning("resetting a GPU: %s", " ".join(words))
    ended = tools.run(words, SECONDS)
    logger.warning("the reset of %s ended with %s: %s", gpu.pci, ended.status, ended.said)
    return "" if ended.status == 0 else f"the reset failed: {ended.said[-300:] or f'exit status {ended.status}'}"


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
