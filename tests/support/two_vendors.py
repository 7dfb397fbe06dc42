"""A private instance with the generic plugin and, beside it, a vendor that misbehaves when told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devherd.control import ask
from devherd.run.instance import Instance, Wish

SUPPORT = str(Path(__file__).parent)
MEMORY = 400
"""MiB the launcher allows each of the vendor's processes."""
PROGRAM = """
[program:naughty]
command = {python} -I -m devherd.launcher --name naughty --lock {run}/naughty.lock --memory {memory}
  -- {python} -m devherd.front --plugin naughty --manifest naughty_vendor:MANIFEST --config {config}
environment = NOTIFY_SOCKET="",PYTHONPATH="{support}:{support}/clock",TEST_CLOCK="{clock}"
startsecs = 1
startretries = 1000
autorestart = unexpected
exitcodes = 69
stopwaitsecs = 5
stopasgroup = true
killasgroup = true
redirect_stderr = true
stdout_logfile = {log}/naughty.log
"""


class WithNaughty(Instance):
    """The second vendor beside whatever else an instance has. `mood` sets what it does from its next scan on.

    Its settings must allow the vendor: `vendors: [naughty]`.
    """

    def _prepare(self) -> None:
        super()._prepare()
        layout = self.layout
        self.mood("good")
        Path(layout.at("etc", "plugins.d", "naughty.yaml")).write_text(json.dumps({"mood": self._mood_file}))
        program = PROGRAM.format(
            python=sys.executable,
            run=layout.run,
            memory=MEMORY,
            config=layout.config,
            support=SUPPORT,
            clock=self._clock_file,
            log=layout.log,
        )
        Path(layout.at("etc", "supervisord.d", "naughty.conf")).write_text(program)

    @property
    def _mood_file(self) -> str:
        return self.layout.at("mood")

    @property
    def _clock_file(self) -> str:
        return self.layout.at("clock")

    def move_clock(self, seconds: float) -> None:
        """For the second vendor's processes (tests/support/clock), from now on."""
        Path(self._clock_file).write_text(str(seconds), encoding="utf-8")

    def mood(self, mood: str) -> None:
        """good, crash, hang, memory or kill."""
        Path(self._mood_file).write_text(mood, encoding="utf-8")

    def front(self, plugin: str = "generic") -> dict[str, Any]:
        """A front's status. Raises ControlError."""
        return ask(self.layout.at("run", f"{plugin}.control.sock"), {"op": "status"})


class TwoVendors(WithNaughty):
    """A simulated node with the generic plugin and the second vendor."""

    def __init__(self, name: str, settings: Mapping[str, Any] | None = None, **wish: Any) -> None:
        merged = {
            "vendors": ["naughty"],
            "probe": {"scan_interval": 0.3, "deadline": 0.7, "restart_max": 1.0},
            **(settings or {}),
        }
        super().__init__(Wish(settings=merged, **wish), name)

    def __enter__(self) -> TwoVendors:
        self.start()
        return self


class SmallDisks(WithNaughty):
    """With file systems of its own for /run and /var, where that is possible; `disks` says whether it was."""

    disks = False

    def _prepare(self) -> None:
        super()._prepare()
        places = [self.layout.state, self.layout.run]
        self.disks = os.geteuid() == 0 and all(self._mount(place) for place in places)

    @staticmethod
    def _mount(place: str) -> bool:
        options = ["-t", "tmpfs", "-o", "size=4m,mode=0755", "none", place]
        return subprocess.run(["mount", *options], check=False, capture_output=True).returncode == 0

    def unmount(self) -> None:
        """Let go of them; whoever stops the instance removes the folders."""
        for place in (self.layout.state, self.layout.run):
            while subprocess.run(["umount", "-l", place], check=False, capture_output=True).returncode == 0:
                pass
