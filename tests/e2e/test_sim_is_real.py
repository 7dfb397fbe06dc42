"""The simulated kubelet is checked against the real one: the same scenarios on both must show the same.

What they show, and which behaviours they cover, is the table in docs/simulation.md. One alone, with all that it
noted: `make e2e ARGS="tests/e2e/test_sim_is_real.py -k reboot-in-time"`, or `python -m e2e.compare reboot-in-time
--show`. Those that wait out the kubelet's five minutes are marked `grace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.compare.compare import compare
from e2e.compare.real import Real
from e2e.compare.scenario import Scenario
from e2e.compare.scenarios import every
from e2e.compare.simulated import Simulated


def _marks(one: Scenario) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.skew, pytest.mark.timeout(one.long * 2 + 300)]
    return [*marks, pytest.mark.grace] if one.long else marks


_CASES = [pytest.param(one, id=one.name, marks=_marks(one)) for one in every()]


@pytest.fixture(scope="module")
def real(folder: Path, kubelet: Path) -> Iterator[Real]:
    """One real node for all scenarios."""
    made = Real(folder / "compare", kubelet)
    yield made
    made.close()


@pytest.mark.parametrize("scenario", _CASES)
def test_both_kubelets_show_the_same(scenario: Scenario, real: Real) -> None:
    if real.line < scenario.since:
        pytest.skip(f"kubelets do this since {scenario.since[0]}.{scenario.since[1]}")
    _, _, lines = compare(scenario, Simulated(real.line), real)
    assert not lines, f"{scenario.shows}\n" + "\n".join(lines)
