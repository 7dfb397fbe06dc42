"""The steps of a walk: each is timed, shown when it ends, and kept for the document."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from devherd.cli.exits import Fault
from devherd.cli.output import BAD, GOOD, QUIET, WARN, Out
from devherd.cli.words import millis


class StepFailed(Exception):
    """What the step should have shown did not happen; the walk goes no further, but cleans up."""


@dataclass
class Step:
    """One step. `ms` is what the step measured, or its whole duration; `facts` is data for the document."""

    name: str
    ok: bool = True
    skipped: bool = False
    ms: float | None = None
    text: str = ""
    details: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The step as it appears in the document."""
        ms = None if self.ms is None else round(self.ms, 1)
        shown = {"name": self.name, "ok": self.ok, "skipped": self.skipped, "ms": ms, "text": self.text}
        return shown | {"details": self.details} | self.facts


class Steps:
    """Runs and shows steps, in order. Everything for people goes to stderr where JSON was asked for."""

    def __init__(self, out: Out) -> None:
        self._console = out.aside if out.as_json else out.console
        self._out = out
        self.done: list[Step] = []

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[Step]:
        """One step: `doing` is shown while it runs; raises StepFailed for whatever goes wrong inside."""
        step = Step(name)
        began = time.monotonic()
        try:
            if self._console.is_terminal:
                with self._console.status(Text(f"{doing} ...")):
                    yield step
            else:
                yield step
        except (Fault, StepFailed) as error:
            step.ok, step.text = False, str(error)
            raise StepFailed(str(error)) from error
        except KeyboardInterrupt:
            step.ok, step.text = False, "interrupted"
            raise
        except BaseException as error:
            step.ok, step.text = False, f"{type(error).__name__}: {error}"
            raise
        finally:
            if step.ms is None and not step.skipped:
                step.ms = (time.monotonic() - began) * 1000
            self.done.append(step)
            self._show(step)

    def head(self, text: str) -> None:
        """A heading between walks."""
        self._console.print(Text(text, style="bold"), soft_wrap=True)

    def line(self, text: str, style: str = "") -> None:
        """A line that is no step."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _show(self, step: Step) -> None:
        mark, style = ("skip", WARN) if step.skipped else ("ok", GOOD) if step.ok else ("FAILED", BAD)
        took = millis(step.ms)
        line = Text.assemble(
            "  ", (f"{mark:<6}", style), f"  {step.name:<16}", (f"{took:>10}", "bold"), f"  {step.text}"
        )
        self._console.print(line, soft_wrap=True)
        for detail in step.details:
            self._console.print(Text(" " * 38 + detail, style=QUIET), soft_wrap=True)
