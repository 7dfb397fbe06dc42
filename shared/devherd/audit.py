"""Audit trail, the writing side: what happened on this node, as JSON lines in `<paths.log>/events/<program>.jsonl`.

Each line is an object with `time` (Unix seconds), `program`, `kind`, and the fields of that kind (docs/events.md).
Nothing that keeps devices registered waits for it: a full, slow, read-only or hanging disk loses lines, and how many
were lost is written down as soon as writing works again.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
import time
from queue import SimpleQueue
from typing import Any

MAX_BYTES = 2 * 1024 * 1024
"""A file longer than this is rotated."""
KEEP = 4
"""How many rotated files are kept beside the current one: `<program>.jsonl.1` is the youngest."""
MAX_WAITING = 2000
"""Lines that wait for the disk at most; what comes on top is lost and counted."""
MAX_TEXT = 2000
"""Longest text in a field, in characters; an error may quote anything."""
MAX_LINE = 16 * 1024
"""Longest line, in bytes. A longer one is written without its fields."""

FOLDER_MODE = 0o750
FILE_MODE = 0o640


def events_folder(log_folder: str) -> str:
    """Where the trail of a node is, given its `paths.log`."""
    return f"{log_folder}/events"


class EventFile:
    """One program's file. `write` is synchronous: it may wait for the disk, but never raises.

    `problem` says why the last write failed, empty if it did not; `lost` counts lines not yet told about.
    """

    def __init__(self, folder: str, program: str, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> None:
        self.path = f"{folder}/{program}.jsonl"
        self.program = program
        self.problem = ""
        self.lost = 0
        self._max_bytes = max_bytes
        self._keep = keep
        self._descriptor = -1
        self._size = 0
        self._torn = False

    def write(self, kind: str, /, **fields: Any) -> bool:
        """Append one event that happens now. False: it is lost."""
        return self.append(kind, time.time(), fields)

    def append(self, kind: str, when: float, fields: dict[str, Any]) -> bool:
        """Append one event of a moment in Unix seconds."""
        try:
            if self.lost:
                self._put(encode(self.program, "events-lost", when, {"count": self.lost}))
                self.lost = 0
            self._put(encode(self.program, kind, when, fields))
        except OSError as error:
            self.lost += 1
            self.problem = f"cannot write {self.path}: {error.strerror or error}"
            self.close()
            return False
        self.problem = ""
        return True

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _put(self, line: bytes) -> None:
        self._open(len(line))
        if self._torn:
            line = b"\n" + line
        # One write a line: a reader, or a second process with the same file, never sees two lines mixed.
        written = os.write(self._descriptor, line)
        self._size += written
        self._torn = written < len(line)
        if self._torn:
            raise OSError(28, "the disk is full")

    def _open(self, coming: int) -> None:
        if self._descriptor >= 0 and not self._current():
            self.close()
        if self._descriptor < 0:
            self._reopen()
        if self._size and self._size + coming > self._max_bytes:
            self._rotate()
            self._reopen()

    def _current(self) -> bool:
        """Whether the open file is still the one at our path: an operator may have moved or removed it."""
        try:
            ours, there = os.fstat(self._descriptor), os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def _reopen(self) -> None:
        self.close()
        os.makedirs(os.path.dirname(self.path), mode=FOLDER_MODE, exist_ok=True)
        # No link is followed, and O_NONBLOCK keeps a FIFO in our place from hanging the writer.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, FILE_MODE)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(22, "it is not a regular file")
        self._descriptor, self._size = descriptor, status.st_size
        # A process killed while it wrote leaves half a line; ours starts on a new one.
        self._torn = self._size > 0 and os.pread(descriptor, 1, self._size - 1) != b"\n"

    def _rotate(self) -> None:
        self.close()
        if self._keep < 1:
            os.unlink(self.path)
            return
        for number in range(self._keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path, f"{self.path}.1")


class Audit:
    """One program's trail, written by a background thread: `note` neither blocks nor raises.

    The thread is started by the first `note`. It is a daemon: a disk that hangs keeps no process from ending.
    """

    def __init__(
        self,
        folder: str,
        program: str,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._file = EventFile(folder, program, max_bytes, keep)
        self._waiting: SimpleQueue[tuple[str, float, dict[str, Any]] | threading.Event] = SimpleQueue()
        self._max_waiting = max_waiting
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._held: list[tuple[str, float, dict[str, Any]]] | None = None
        self.noted = 0
        """Events handed over since the start, lost ones included."""

    @property
    def problem(self) -> str:
        """Why the trail cannot be written now; empty if it can."""
        if self._waiting.qsize() >= self._max_waiting:
            return f"{self._file.path}: the disk does not take events"
        return self._file.problem

    @property
    def lost(self) -> int:
        """Events lost that the trail does not tell of yet."""
        return self._file.lost + self._dropped

    def note(self, kind: str, /, **fields: Any) -> None:
        """Hand over one event that happens now. Values should be texts, numbers, or lists and objects of them."""
        self.noted += 1
        if self._waiting.qsize() >= self._max_waiting:
            self._dropped += 1
            return
        if self._held is not None:
            self._held.append((kind, time.time(), fields))
            return
        self._waiting.put((kind, time.time(), fields))
        if self._thread is None:
            self._begin()

    def hold(self) -> None:
        """Keep what is noted from now on until `release`: not even the writing thread is woken."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Hand over what was kept."""
        held, self._held = self._held or [], None
        for item in held:
            self._waiting.put(item)
        if held and self._thread is None:
            self._begin()

    def flush(self, seconds: float) -> bool:
        """Wait until all that was noted is written or lost, `seconds` at most. False: it is not."""
        self.release()
        if self._thread is None:
            return True
        done = threading.Event()
        self._waiting.put(done)
        return done.wait(seconds)

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # No thread can be had now (a limit of processes); the next note tries again.
            self._thread = None

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._file.lost += dropped
            self._file.append(*item)


def encode(program: str, kind: str, when: float, fields: dict[str, Any]) -> bytes:
    """One line of the trail, newline included. Whatever the fields hold, it is one JSON object in ASCII."""
    head = {"time": round(when, 6), "program": program, "kind": kind}
    rest = {f"{name}_" if name in head else name: _plain(value) for name, value in fields.items()}
    try:
        line = json.dumps({**head, **rest}, separators=(",", ":"), allow_nan=False, default=_text)
    except Exception as error:  # also whatever a value's own __str__ does
        line = json.dumps({**head, "unwritable": type(error).__name__}, separators=(",", ":"))
    if len(line) >= MAX_LINE:
        line = json.dumps({**head, "unwritable": f"{len(line)} bytes are too many"}, separators=(",", ":"))
    return line.encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    return _text(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
