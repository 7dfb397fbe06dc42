"""Logging for people (one readable line an event) and for machines (one JSON object a line).

    logger = logging.getLogger(__name__)
    event(logger, "info", "registered", resource="devherd.io/tun", milliseconds=3.1)

A log must never stop the work it tells of: nothing here raises for an odd value, a full disk or a closed pipe.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from devherd.settings import Log

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
RESERVED = frozenset({"time", "level", "program", "logger", "message", "trace"})
_CHATTY = ("asyncio", "grpc")


def setup(settings: Log, program: str, stream: TextIO | None = None) -> None:
    """Send this process's log to `stream` (default: stderr). Called again, it replaces what it set up before."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(program) if settings.format == "json" else TextFormatter(program))
    root = logging.getLogger()
    for old in [existing for existing in root.handlers if isinstance(existing, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = LEVELS.get(settings.level, logging.INFO)
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))


def event(logger: logging.Logger, level: int | str, text: str, /, **fields: object) -> None:
    """Log what happened. `level` is a name of LEVELS or logging's number; `text` is one short constant sentence;
    what varies goes into `fields`.
    """
    number = LEVELS.get(level, logging.INFO) if isinstance(level, str) else level
    if logger.isEnabledFor(number):
        logger.log(number, "%s", text, extra={"fields": fields})


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info    generic: registered resource=devherd.io/tun`; times are UTC."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows, indented."""
        fields = "".join(f" {_safe(key)}={_shown(value)}" for key, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower():<7} {self._program}: {_safe(_message(record))}{fields}"
        return "\n    ".join([line, *(_safe(row) for row in _trace(record).splitlines())])


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, program, logger, message, then the event's own fields."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON. A field with a reserved name gets an underscore behind it."""
        content: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "program": self._program,
            "logger": record.name,
            "message": _message(record),
        }
        for key, value in _fields(record).items():
            content[f"{key}_" if key in RESERVED else key] = value
        trace = _trace(record)
        if trace:
            content["trace"] = trace
        return _json(content)


class _Handler(logging.Handler):
    """Writes lines; a stream that fails costs the line, nothing else."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write and flush one record; what the stream's encoding lacks is escaped."""
        try:
            encoding = self._stream.encoding or "utf-8"
            line = self.format(record) + "\n"
            self._stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Say nothing: stderr is usually the very stream that failed."""


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.created * 1000) % 1000:03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # wrong arguments for the text: show both rather than nothing
        return f"{record.msg!s} {record.args!r}"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _trace(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return logging.Formatter().formatException(record.exc_info)
    return ""


def _safe(text: object) -> str:
    """Text that stays on its line: control characters (a forged log line, a terminal code) are escaped."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in plain)


def _shown(value: object) -> str:
    """A field's value: bare where that is clear, else as JSON."""
    if isinstance(value, float):
        return f"{round(value, 3)}"
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(' "=\\'):
        return value
    if type(value) is str or (type(value) is int and abs(value) < 1 << 64):
        # The commonest by far, without the library that the watcher does without.
        return _safe(json.dumps(value, ensure_ascii=False))
    return _safe(_json(value))


def _json(value: object) -> str:
    """JSON of anything; what has no JSON form becomes its text."""
    # Here, because the watcher logs plain text only and stays three megabytes smaller without it.
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except Exception:
        return _last_resort(value)


def _last_resort(value: object) -> str:
    """For values msgspec refuses: lone surrogates from file names, huge integers, cycles."""
    try:
        return json.dumps(value, default=repr, skipkeys=True)
    except Exception:
        if isinstance(value, Mapping):
            return json.dumps({str(key): _text(inner) for key, inner in value.items()})
        return json.dumps(_text(value))


def _text(value: object) -> str:
    try:
        return value if isinstance(value, str) else repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
