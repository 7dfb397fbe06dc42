"""The log: one line an event, for people or as JSON, and never a reason to fail."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from devherd.log import event, setup
from devherd.settings import Log
from devherd.values import Verdict
from hypothesis import given, settings
from hypothesis import strategies as st

logger = logging.getLogger("devherd.test_log")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """What `setup` added goes with the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(before):
        if type(handler).__module__ == "devherd.log":
            root.removeHandler(handler)
    root.setLevel(level)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """The root logger as a fresh process has it; pytest's own handlers raise for what ours must survive."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def logged(format: str = "text", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    setup(Log(level=level, format=format), "generic", stream)
    return stream


def test_text_is_one_readable_line() -> None:
    stream = logged()
    event(
        logger,
        "info",
        "registered",
        resource="devherd.io/tun",
        ms=3.14159265,
        name="a b",
        no="",
        at=1767225600.5,
        ok=True,
        ids=["x"],
    )
    line = stream.getvalue()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    generic: registered ", line)
    assert line.endswith(
        'registered resource=devherd.io/tun ms=3.142 name="a b" no="" at=1767225600.5 ok=true ids=["x"]\n'
    )


def test_json_is_one_object_a_line_with_the_fields_in_it() -> None:
    stream = logged("json")
    event(logger, "warning", "device lost", id="gpu0", verdict=Verdict(False, "gone"), level=3, error=OSError(2, "no"))
    found = json.loads(stream.getvalue())
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        "program": "generic",
        "logger": "devherd.test_log",
        "message": "device lost",
        "id": "gpu0",
        "verdict": {"healthy": False, "reason": "gone"},
        "level_": 3,
        "error": "[Errno 2] no",
    }


def test_levels_by_name_and_by_number_and_by_setting() -> None:
    stream = logged(level="warning")
    event(logger, "info", "hidden")
    event(logger, "error", "one")
    event(logger, logging.WARNING, "two")
    logging.getLogger("asyncio").info("hidden")
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["error", "warning"]


def test_setup_again_replaces_and_foreign_handlers_stay() -> None:
    foreign = logging.NullHandler()
    logging.getLogger().addHandler(foreign)
    first = logged()
    second = logged(level="debug")
    event(logger, "debug", "once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    assert foreign in logging.getLogger().handlers


def test_nobody_can_forge_a_line_or_talk_to_the_terminal() -> None:
    stream = logged()
    event(logger, "info", "path\nfake: line", path="/dev/x\x1b[31m\n2026 error", **{"odd\nkey": 1})
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert r"path\nfake" in stream.getvalue()


def test_tracebacks_stay_with_their_line() -> None:
    for format in ("text", "json"):
        stream = logged(format)
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            logger.exception("scan failed")
        if format == "json":
            assert "ValueError: first\nsecond" in json.loads(stream.getvalue())["trace"]
        else:
            first, *rest = stream.getvalue().splitlines()
            assert first.endswith("scan failed")
            assert all(line.startswith("    ") for line in rest)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize(
    "value",
    ["\udc80", 1 << 80, float("nan"), {1.5: {2}}, {("a",): 1}, b"\xff", Hostile(), {"a": [Hostile()]}],
)
def test_odd_values_are_logged_somehow(format: str, value: Any) -> None:
    loop: list[Any] = [value]
    loop.append(loop)
    with silenced():
        stream = logged(format)
        event(logger, "info", "odd", value=value, loop=loop)
        logger.info("wrong %d", "arguments")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    if format == "json":
        assert all(isinstance(json.loads(line), dict) for line in lines)


@given(
    st.text(), st.dictionaries(st.text(), st.recursive(st.none() | st.text() | st.integers() | st.floats(), st.lists))
)
@settings(max_examples=50, deadline=None)
def test_any_event_is_one_line(text: str, fields: dict[str, Any]) -> None:
    for format in ("text", "json"):
        stream = logged(format)
        event(logger, "info", text, **fields)
        assert stream.getvalue().count("\n") == 1
        if format == "json":
            assert set(json.loads(stream.getvalue())) >= {"time", "message", "program"}


def test_a_stream_that_fails_or_knows_only_ascii_stops_nobody() -> None:
    stream = logged()
    stream.close()
    event(logger, "info", "to nowhere")
    raw = io.BytesIO()
    setup(Log(), "generic", io.TextIOWrapper(raw, encoding="ascii"))
    event(logger, "info", "grün", path="/dev/\udc80")
    assert raw.getvalue().decode("ascii").count("\n") == 1
    assert rb"gr\xfcn" in raw.getvalue()
