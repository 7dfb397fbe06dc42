"""The node's verdict as commands give it: what it should have, put beside what the fronts say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from devherd.cli.asking import Answers
from devherd.cli.judge import Finding
from devherd.cli.place import Place
from devherd.cli.programs import Program, programs
from devherd.expected import Expectation, expectations
from devherd.fitness import ABSENT_EXIT, Fitness, Lack, judge, programs_at_rest


@dataclass(frozen=True)
class Look:
    """The verdict, and notes on what could not be used for it."""

    fitness: Fitness
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As it appears in documents."""
        missing = [lack_json(lack) for lack in self.fitness.missing]
        return {
            "fit": self.fitness.fit,
            "expected": self.fitness.expected,
            "missing": missing,
            "notes": list(self.notes),
        }


def lack_json(lack: Lack) -> dict[str, Any]:
    """One missing resource as it appears in documents."""
    return {**msgspec.to_builtins(lack), "source": "expect" if lack.configured else "last run"}


def look(place: Place, answers: Answers, settled: bool = True) -> Look:
    """Compare. `settled` false: programs that supervisord has not started may still be about to be."""
    expected, notes = expectations(place.settings)
    if not expected:
        return Look(Fitness(), tuple(notes))
    return Look(_judged(place, expected, answers, settled), tuple(notes))


def _judged(place: Place, expected: list[Expectation], answers: Answers, settled: bool) -> Fitness:
    down = {item.plugin: item.why for item in answers.down}
    silent = {one.plugin for one in expected if one.plugin} - {str(reply["plugin"]) for reply in answers.replies}
    if not silent:
        return judge(expected, answers.replies, down, {})
    listed = programs(place)
    if not listed:
        down = {**dict.fromkeys(silent, "supervisord gives no answer, devherd may not be running"), **down}
    resting = programs_at_rest([_row(one, settled) for one in listed] if listed else None, silent)
    return judge(expected, answers.replies, down, resting)


def _row(program: Program, settled: bool) -> tuple[str, str, int, bool]:
    if program.looking:
        return program.name, "EXITED", ABSENT_EXIT, True
    return program.name, program.state, program.exit_code, bool(program.started) or not settled


def findings_of(seen: Look, told: Iterable[Finding]) -> list[Finding]:
    """What to say of the verdict. `told`: problems named already; what follows from one is not said once more."""
    named = {finding.where for finding in told if finding.problem}
    found = [Finding(False, "expected", note) for note in seen.notes]
    for lack in seen.fitness.missing:
        if not lack.configured and named & {lack.resource, lack.plugin}:
            continue
        source = "devherd.yaml expects" if lack.configured else "the last run had"
        spared = f"; no boot waits for it: {lack.spared}" if lack.spared else ""
        text = f"{source} {lack.expected}, there are {lack.have}: {lack.why}{spared}"
        found.append(Finding(lack.counts, lack.resource, text, "docs/boot.md says how to expect something else."))
    return found
