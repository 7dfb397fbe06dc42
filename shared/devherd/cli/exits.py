"""Exit codes, and the error every command may raise."""

from __future__ import annotations

OK = 0
ERROR = 1
USAGE = 2
NOT_READY = 3
IN_USE = 4
TIMEOUT = 5
INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C ended."""


class Fault(Exception):
    """A command cannot go on: what is wrong and where, what to do about it, and the exit code."""

    def __init__(self, what: str, hint: str = "", code: int = ERROR) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.code = code
