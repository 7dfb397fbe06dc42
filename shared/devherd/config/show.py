"""A file's problems as people are shown them: by the command line, and on the generated page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from devherd.config.problems import Problem

WIDEST = 160
Kind = Literal["head", "source", "mark", "text", "hint"]
"""What a line is, so that a terminal may colour it."""


def problem_lines(problem: Problem, source: str) -> Iterator[tuple[Kind, str]]:
    """The place and key, the file's line with a mark below the column, the reason, the hint."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    yield "head", f"  {place}" + (f"  {problem.key}" if problem.key else "")
    shown = "".join(char if char.isprintable() else " " for char in source.rstrip("\r\n"))[:WIDEST]
    if shown and problem.line:
        yield "source", f"    {shown}"
        if problem.column <= len(shown) + 1:
            yield "mark", "    " + " " * max(0, problem.column - 1) + "^"
    yield "text", f"  {problem.message}"
    if problem.hint:
        yield "hint", f"  {problem.hint}"


def as_text(problems: Iterable[Problem], lines: Sequence[str]) -> str:
    """Problems of one file, whose lines are at hand, without colours."""
    parts = []
    for problem in problems:
        source = lines[problem.line - 1] if 0 < problem.line <= len(lines) else ""
        parts.append("\n".join(text for _, text in problem_lines(problem, source)))
    return "\n\n".join(parts)
