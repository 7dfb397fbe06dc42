"""Where a command's words go: results to stdout, the rest to stderr, JSON alone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from devherd.cli.exits import Fault
from devherd.cli.words import program

PIPE_WIDTH = 240
"""Columns where stdout is no terminal: wide enough that a line is a row for grep and awk."""
PLAIN_ROWS = 400
"""A table longer than this is written without a layout engine: 10,000 devices must not take seconds."""

_CALLED = re.compile(
    r"(?<![\w./-])devherd"
    r"(?= (?:run|status|devices|explain|events|top|verify|wait|config|simulate|doctor|capture|help)\b(?! already))"
)
GOOD, WARN, BAD, QUIET = "green", "yellow", "bold red", "dim"


class Out:
    """One command's output."""

    def __init__(self, as_json: bool, stdout: IO[str] | None = None, stderr: IO[str] | None = None) -> None:
        self.as_json = as_json
        self.follows = False
        """Whether the output goes on until somebody ends it: then a reader that has gone ends it too."""
        self._stdout = stdout or sys.stdout
        self.console = _console(self._stdout, self)
        self.aside = _console(stderr or sys.stderr, self)

    def document(self, value: Any, indent: int | None = 2) -> None:
        """The command's JSON. Sets and tuples are fine."""
        self._write(json.dumps(value, indent=indent, default=_plain, ensure_ascii=False) + "\n", flush=True)

    def say(self, text: str = "", style: str = "") -> None:
        """A line of the result, for people."""
        self.console.print(Text(told(text), style=style), soft_wrap=True)

    def rich(self, text: str) -> None:
        """A line with rich markup; what comes from elsewhere has to be escaped."""
        self.console.print(text, soft_wrap=True)

    def note(self, text: str, style: str = QUIET) -> None:
        """A line on stderr: progress, hints, warnings."""
        self.aside.print(Text(told(text), style=style), soft_wrap=True)

    def fault(self, fault: Fault) -> None:
        """An error: on stderr for people, and as the JSON document where one was promised."""
        if self.as_json:
            self.document({"error": {"message": fault.what, "hint": fault.hint, "code": fault.code}})
        self.aside.print(f"[bold red]error:[/] {escape(fault.what)}", soft_wrap=True)
        if fault.hint:
            self.aside.print(Text(told(fault.hint)), soft_wrap=True)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str | Text]], right: Iterable[str] = ()) -> None:
        """Columns under bold heads. Columns without any content are left out; `right` names figures.

        Where stdout is no terminal a row is one line, whatever its width, for grep and awk.
        """
        kept = [i for i, head in enumerate(heads) if head == heads[0] or any(_bare(row[i]) for row in rows)]
        if len(rows) > PLAIN_ROWS or not self.console.is_terminal:
            figures = frozenset(right)
            plain = [[_bare(row[i]).replace("\n", "; ") for i in kept] for row in rows]
            self._plain_table([heads[i] for i in kept], plain, [heads[i] in figures for i in kept])
        else:
            self.console.print(table([heads[i] for i in kept], [[row[i] for i in kept] for row in rows], right))

    def _plain_table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], figures: Sequence[bool]) -> None:
        widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
        for row in [heads, *rows]:
            shape = zip(row, widths, figures, strict=True)
            line = "  ".join(cell.rjust(width) if figure else cell.ljust(width) for cell, width, figure in shape)
            self._write(line.rstrip() + "\n")

    def _write(self, text: str, flush: bool = False) -> None:
        try:
            self._stdout.write(text)
            if flush:
                self._stdout.flush()
        except BrokenPipeError:
            if self.follows:
                raise
            discard(self._stdout)

    @contextmanager
    def progress(self, text: str) -> Iterator[None]:
        """A spinner on stderr while something takes long; nothing where stderr is no terminal."""
        if self.aside.is_terminal:
            with self.aside.status(escape(text)):
                yield
        else:
            yield


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Iterable[str] = (), one_line: bool = False
) -> Table:
    """The one table style of devherd. `one_line`: cut what does not fit instead of folding it."""
    figures = frozenset(right)
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, head in enumerate(heads):
        justify: Literal["left", "right"] = "right" if head in figures else "left"
        # Cut from the last column, which holds the longest words.
        made.add_column(head, justify=justify, overflow="fold", no_wrap=one_line and index < len(heads) - 1)
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(cell) for cell in row]
        if one_line:
            cells[-1].no_wrap, cells[-1].overflow = True, "ellipsis"
        made.add_row(*cells)
    return made


def state_text(state: str, good: Iterable[str], warn: Iterable[str] = ()) -> Text:
    """A state word in its colour; the word alone carries the meaning."""
    style = GOOD if state in set(good) else WARN if state in set(warn) else BAD
    return Text(state, style=style)


def _bare(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell


class _Console(Console):
    """A console whose reader may go away: the command goes on, and its exit code stays what it would have been."""

    owner: Out

    def on_broken_pipe(self) -> None:
        """In place of rich's own, which ends the process with status 1."""
        discard(self.file)
        if self.owner.follows:
            raise BrokenPipeError


def _console(stream: IO[str], owner: Out) -> Console:
    terminal = stream.isatty()
    made = _Console(file=stream, width=None if terminal else PIPE_WIDTH, highlight=False, emoji=False)
    made.owner = owner
    return made


def told(text: str) -> str:
    """A sentence in which every `devherd command` can be copied into this terminal."""
    called = program()
    return text if called == "devherd" else _CALLED.sub(lambda _: called, text)


def discard(stream: IO[str]) -> None:
    """Send what is still to come on a stream nowhere; its reader has gone."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def flush(stream: IO[str]) -> None:
    """Write out what is buffered, or drop it when the reader has gone."""
    try:
        stream.flush()
    except BrokenPipeError:
        discard(stream)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
