"""Questions to control sockets from a poll loop: many at once, none waited for."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from devherd.control import dial

MAX_ANSWER = 8 * 1024 * 1024

Answered = Callable[[dict[str, Any] | None, str], None]
"""Gets the answer and an empty text, or None and why there is none."""


class _Question(NamedTuple):
    sock: socket.socket
    data: bytearray
    done: Answered
    deadline: float


class Asker:
    """Open questions. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._open: dict[int, _Question] = {}

    def ask(self, path: str, request: dict[str, Any], done: Answered, seconds: float, now: float) -> None:
        """Send a request. `done` is called at once where nobody listens, else later, exactly once."""
        try:
            sock = dial(path)
        except BlockingIOError:
            done(None, "its queue of connections is full")
            return
        except OSError as error:
            done(None, error.strerror or str(error))
            return
        try:
            sock.send(json.dumps(request).encode() + b"\n")
        except OSError as error:
            sock.close()
            done(None, error.strerror or str(error))
            return
        self._open[sock.fileno()] = _Question(sock, bytearray(), done, now + seconds)

    def fds(self) -> list[int]:
        """Descriptors to poll for reading."""
        return list(self._open)

    def next(self) -> float | None:
        """When `timers` wants to be called."""
        return min((question.deadline for question in self._open.values()), default=None)

    def ready(self, fd: int) -> bool:
        """Handle a readable descriptor. False: not one of ours."""
        question = self._open.get(fd)
        if question is None:
            return False
        try:
            data = question.sock.recv(65536)
        except BlockingIOError:
            return True
        except OSError as error:
            self._end(fd, None, error.strerror or str(error))
            return True
        question.data.extend(data)
        if not data:
            self._end(fd, None, "it closed the connection")
        elif question.data.endswith(b"\n"):
            self._answer(fd, question)
        elif len(question.data) > MAX_ANSWER:
            self._end(fd, None, "its answer is too long")
        return True

    def timers(self, now: float) -> None:
        """Give up on what is overdue."""
        for fd, question in list(self._open.items()):
            if now >= question.deadline:
                self._end(fd, None, "no answer in time")

    def close(self) -> None:
        """Forget all questions."""
        for question in self._open.values():
            question.sock.close()
        self._open.clear()

    def _answer(self, fd: int, question: _Question) -> None:
        try:
            answer = json.loads(question.data)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            self._end(fd, answer, "")
        else:
            self._end(fd, None, "its answer is not a JSON object")

    def _end(self, fd: int, answer: dict[str, Any] | None, why: str) -> None:
        question = self._open.pop(fd)
        question.sock.close()
        question.done(answer, why)
