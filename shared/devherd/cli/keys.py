"""Single keys from a terminal, while something else is drawn on it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

_NAMES = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home"}


class Keys:
    """Without a terminal on stdin there are no keys, and waiting is only waiting."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

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
        if not select.select([self._fd], [], [], seconds)[0]:
            return ""
        text = os.read(self._fd, 16).decode("utf-8", "replace")
        return _NAMES.get(text, text[:1])
