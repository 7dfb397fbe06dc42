"""Whether the node's IMEX domain works: what nvidia-imex-ctl says, where channels are given and the tool is there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from devherd_gpu.nvidia import tools
from devherd_gpu.nvidia.nvml import Driver

if TYPE_CHECKING:
    from devherd.host import Host

TOOL = "/usr/bin/nvidia-imex-ctl"
SECONDS = 5.0
"""How long the tool may take."""
EVERY = 30.0
"""Seconds that an answer is good for."""
READY = "READY"


class Readiness:
    """Asks seldom. Call it for what is wrong; empty: nothing, or nobody knows."""

    def __init__(self, host: Host, driver: Driver) -> None:
        self._host = host
        self._driver = driver
        self._asked = float("-inf")
        self._problem = ""

    def __call__(self) -> str:
        """What is wrong with the domain."""
        now = time.monotonic()
        if now - self._asked >= EVERY:
            self._asked, self._problem = now, self._ask()
        return self._problem

    def _ask(self) -> str:
        root = self._driver.root
        if tools.refused(self._host, root, TOOL):
            return ""
        ended = tools.run(tools.command(self._host, root, TOOL, "-q"), SECONDS)
        if ended.status == 0 and ended.said == READY:
            return ""
        return f"the IMEX domain is not ready: {TOOL} -q says {ended.said[-200:] or 'nothing'}"
