"""docs/simulation.md says what the scenarios check, and nothing else."""

from __future__ import annotations

from e2e.compare import docs
from e2e.compare.scenarios import every


def test_the_page_is_what_the_scenarios_say() -> None:
    assert docs.PAGE.read_text(encoding="utf-8") == docs.page(), "run make docs"


def test_every_behaviour_is_checked_or_says_why_not() -> None:
    checked = {number for scenario in every() for number in scenario.items}
    assert checked | set(docs.UNCHECKED) == set(docs.BEHAVIOURS)
    assert not checked & set(docs.UNCHECKED)
