"""What the parts of the care share: whom to ask, how to act, where to say what happened."""

from __future__ import annotations

from typing import Any, Protocol

from devherd_watcher.asking import Asker
from devherd_watcher.fronts import Fronts, Program
from devherd_watcher.settings import Settings

LAUNCHER = "devherd.launcher"


class Context(Protocol):
    """The care, as its parts see it. Times are monotonic seconds."""

    settings: Settings
    fronts: Fronts
    asker: Asker

    def note(self, kind: str, **fields: Any) -> None:
        """Write down what happened."""

    def problem(self, topic: str, text: str) -> None:
        """Something is wrong, until the same topic comes with an empty text."""

    def may_restart(self, now: float) -> bool:
        """Whether the watcher may restart anything now: one at a time."""

    def restart(self, program: Program, why: str, now: float) -> None:
        """Restart a front."""

    def serving(self) -> set[str]:
        """Programs that should have a front running, by supervisord's name."""
