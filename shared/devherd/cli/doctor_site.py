"""What the doctor's checks look at, and what they say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any

from devherd.cli.asking import Answers, ask_fronts
from devherd.cli.kubelet_view import KubeletView, kubelet_view
from devherd.cli.place import Place
from devherd.cli.programs import Program, programs
from devherd.host import Host

Json = dict[str, Any]
OK_, NOTE, PROBLEM, LEFT_OUT = "ok", "note", "problem", "left out"
"""Verdicts: fine; worth knowing; something does not work, or will not; does not apply or could not be looked at."""
PATIENCE = 10.0
"""Seconds one check may take. A driver or a file system that hangs is a finding, not the doctor's end."""


@dataclass(frozen=True)
class Check:
    """One verdict: what was looked at, what was found, and what to do about it."""

    name: str
    verdict: str
    text: str
    remedy: str = ""

    def as_json(self) -> Json:
        """The verdict as it appears in documents."""
        return asdict(self)


@dataclass
class Site:
    """The devherd under examination. What costs something is asked once, when a check first needs it."""

    place: Place
    statuses: Answers
    devices: Answers
    proc: str = "/proc"
    """Where the processes are: those of this machine, also when the node's files are simulated."""
    host: Host = field(init=False)

    def __post_init__(self) -> None:
        self.paths = self.place.settings.paths
        self.host = Host(self.paths)

    @classmethod
    def visit(cls, place: Place) -> Site:
        """Ask everybody."""
        return cls(place, ask_fronts(place, {"op": "status"}), ask_fronts(place, {"op": "devices"}, timeout=10.0))

    @property
    def simulated(self) -> bool:
        """Whether the node's files are not this machine's."""
        return self.paths.root != "/"

    @property
    def private(self) -> bool:
        """Whether it is a private instance: an ordinary user's, not the node's service."""
        return self.place.instance is not None

    @cached_property
    def programs(self) -> list[Program]:
        """supervisord's view."""
        return programs(self.place)

    @cached_property
    def kubelet_view(self) -> KubeletView:
        """What the kubelet can allocate."""
        return kubelet_view(self.place)

    @property
    def device_plugins(self) -> Path:
        """The kubelet's device plugin folder."""
        return Path(self.paths.device_plugins)

    def resources(self) -> Iterator[Json]:
        """Status of each resource."""
        for reply in self.statuses.replies:
            yield from reply.get("resources", ())

    def all_devices(self) -> Iterator[Json]:
        """Each device of each resource."""
        for reply in self.devices.replies:
            yield from reply.get("devices", ())

    def our_pids(self) -> dict[int, str]:
        """Pid of each front -> its plugin."""
        return {int(reply.get("pid") or 0): str(reply["plugin"]) for reply in self.statuses.replies}

    def command(self, pid: int) -> str:
        """A process's name for people."""
        try:
            with open(f"{self.proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return "unknown"

    def real(self, logical: str) -> Path:
        """Where one of the node's paths is."""
        return Path(self.host.path(logical))

    def read(self, logical: str) -> str | None:
        """A small file of the node; None when it is not there."""
        try:
            with open(self.real(logical), encoding="utf-8", errors="replace") as file:
                return file.read(256 * 1024)
        except OSError:
            return None


Examine = Callable[[Site], Iterable[Check]]


def examine(site: Site, checks: Iterable[tuple[str, Examine]], patience: float = PATIENCE) -> list[Check]:
    """Run all checks at once and collect their verdicts in order. One that hangs or fails never hides the others."""
    found: dict[str, list[Check]] = {}

    def run(name: str, check: Examine) -> None:
        try:
            found[name] = list(check(site))
        except Exception as error:  # whatever a broken node may throw at a check
            found[name] = [Check(name, NOTE, f"could not be looked at: {type(error).__name__}: {error}")]

    # Daemons: a thread that the kernel holds must not hold the command.
    threads = [(name, Thread(target=run, args=(name, check), daemon=True)) for name, check in checks]
    for _, thread in threads:
        thread.start()
    deadline = time.monotonic() + patience
    verdicts: list[Check] = []
    for name, thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        hung = Check(name, PROBLEM, f"gave no answer within {patience:g} s: a driver or a file system hangs")
        verdicts += [hung] if thread.is_alive() else _told(found[name])
    return verdicts


def _told(verdicts: list[Check]) -> list[Check]:
    """What is fine beside a problem of the same check is not worth a line."""
    bad = any(item.verdict == PROBLEM for item in verdicts)
    return [item for item in verdicts if not (bad and item.verdict == OK_)]


def access_words(path: Path) -> str:
    """Owner and mode of a path, like `root 0755`."""
    status = os.stat(path)
    owner = "root" if status.st_uid == 0 else f"user {status.st_uid}"
    return f"{owner} {status.st_mode & 0o7777:04o}"
