"""What is wrong with a configuration file, as data: where, which key, what, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

MAX_PROBLEMS = 100
MAX_KEY = 200
KeyPath = tuple[str | int, ...]


class Mark(NamedTuple):
    """A place in a file. Line and column count from 1; 0 means the file as a whole."""

    line: int
    column: int


WHOLE_FILE = Mark(0, 0)


class Problem(Struct, frozen=True):
    """One error. `key` is the path of the value (`devices[0].groups[1].count`); `hint` says what to do, or is empty."""

    file: str
    line: int
    column: int
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """The problem in one line: `file:line:column: key: message (hint)`."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        key = f"{self.key}: " if self.key else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}: {key}{self.message}{hint}"


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` has every reason."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(format_problems(self.problems))


def format_problems(problems: Iterable[Problem]) -> str:
    """All problems for a person, one a line, in the order of the file."""
    return "\n".join(str(problem) for problem in problems)


class Report:
    """Collects one file's problems. After MAX_PROBLEMS it only counts: nobody reads more, and rubbish stays cheap."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._problems: list[Problem] = []
        self._more = 0

    @property
    def full(self) -> bool:
        """True once further problems are only counted."""
        return len(self._problems) >= MAX_PROBLEMS

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(self, mark: Mark, path: KeyPath, message: str, hint: str = "") -> None:
        """Note a problem at a place."""
        if self.full:
            self._more += 1
            return
        self._problems.append(Problem(self._file, mark.line, mark.column, dotted(path), message, hint))

    def problems(self) -> tuple[Problem, ...]:
        """All of them, in the order of the file."""
        found = sorted(self._problems, key=lambda problem: (problem.line, problem.column))
        if self._more:
            found.append(Problem(self._file, 0, 0, "", f"{self._more} more problems are not shown"))
        return tuple(found)


def dotted(path: KeyPath) -> str:
    """A key path as people write it: `devices[0].paths[1].path`; odd keys in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w./-]{1,60}", part) else quoted(part)
            text += f".{name}" if text else name
    return text if len(text) <= MAX_KEY else "..." + text[-MAX_KEY:]


def quoted(text: str, limit: int = 48) -> str:
    """Text from a file, safe to print: in double quotes, control characters escaped, long ones cut."""
    cut = text if len(text) <= limit else text[:limit] + "..."
    shown = json.dumps(cut, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
