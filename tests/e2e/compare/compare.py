"""Runs a scenario on a side, and says what two runs show differently."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from e2e.compare.plugin import Loop
from e2e.compare.scenario import Run, Scenario
from e2e.compare.side import Side


@dataclass(frozen=True)
class Result:
    """What one side showed. `late`: values that never became the expected ones; `broken`: it did not get to its end."""

    kind: str
    notes: list[tuple[str, Any]]
    late: list[str]
    broken: str


def run(scenario: Scenario, side: Side) -> Result:
    """Run it to its end, whatever happens."""
    options = {**scenario.options, **(scenario.scaled if side.kind == "simulated" else {})}
    loop = Loop()
    broken = ""
    side.begin(options)
    run_of = Run(side, scenario.name, loop)
    try:
        scenario.work(run_of)
    except Exception:  # whatever a scenario trips over is its result
        broken = traceback.format_exc()
    finally:
        run_of.close()
        side.end()
        loop.close()
    return Result(side.kind, run_of.notes, run_of.late, broken)


def compare(scenario: Scenario, simulated: Side, real: Side) -> tuple[Result, Result, list[str]]:
    """Both results, and what differs."""
    ours, theirs = run(scenario, simulated), run(scenario, real)
    return ours, theirs, differences(ours, theirs)


def differences(simulated: Result, real: Result) -> list[str]:
    """One line for each thing that is not the same, or is not what the scenario says."""
    lines = []
    for result in (simulated, real):
        if result.broken:
            lines.append(f"{result.kind}: did not get to its end\n{result.broken}")
        lines += [f"{result.kind}: {text}" for text in result.late]
    for number in range(max(len(simulated.notes), len(real.notes))):
        ours = simulated.notes[number] if number < len(simulated.notes) else ("(nothing)", None)
        theirs = real.notes[number] if number < len(real.notes) else ("(nothing)", None)
        if ours != theirs:
            lines.append(f"{theirs[0]}\n    simulated: {ours[1]!r}\n    real:      {theirs[1]!r}")
    return lines
