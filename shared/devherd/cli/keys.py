"""Single keys from a terminal, while something else is drawn on it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

_NAMES = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home"}
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
END = "\x04"
"""The key that says that there will be no more: Ctrl-D, and a terminal that went away."""


class Keys:
    """Without a terminal on stdin there are no keys, and waiting is only waiting."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd
        self._waiting = ""

    @classmethod
    @contextlib.contextmanager
    def opened(cls) -> Iterator[Keys]:
        """Takes keys at once and unseen; the terminal is as before afterwards."""
        fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        if fd is None:
            yield cls()
            return
        before = termios.tcgetattr(fd)
        try:
            tty.setcbreak(fd)
            yield cls(fd)
        finally:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)

    def wait(self, seconds: float) -> str:
        """The next key by name (`q`, `up`, `page down`), or empty when there was none in that time."""
        if self._fd is None:
            time.sleep(seconds)
            return ""
        if not self._waiting:
            if not select.select([self._fd], [], [], seconds)[0]:
                return ""
            # A terminal sends what one key means in one piece, and several keys at once when it was busy.
            self._waiting = os.read(self._fd, 256).decode("utf-8", "replace") or END
        found = _KEY.match(self._waiting)
        assert found is not None
        self._waiting = self._waiting[found.end() :]
        return _NAMES.get(found[0], found[0])
