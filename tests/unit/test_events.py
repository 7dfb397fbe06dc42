"""`devherd events`, and that every kind a program notes is one that is explained."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devherd.audit import EventFile
from devherd.cli.events import line, parse_since, words
from devherd.cli.exits import OK, USAGE, Fault
from devherd.cli.main import main
from devherd.eventkinds import KINDS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "devherd.yaml"
    path.write_text(f"paths:\n  log: {tmp_path}/log\n  run: {tmp_path}\n")
    generic, watcher = (EventFile(f"{tmp_path}/log/events", name) for name in ("generic", "watcher"))
    now = time.time()
    generic.append("started", now - 7200, {"pid": 4})
    generic.append("registered", now - 60, {"resource": "devherd.io/tun", "ms": 3.25, "kubelet_pid": 71})
    watcher.append("restart", now - 30, {"name": "generic", "by": "watcher", "reason": "no answer for 20 s"})
    generic.append("verdict", now - 5, {"resource": "devherd.io/tun", "id": "a", "healthy": False, "reason": "gone"})
    return str(path)


def documents(config: str, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["events", "--config", config, "--json", *options]) == OK
    return [event["kind"] for event in json.loads(capsys.readouterr().out)["events"]]


def test_all_programs_in_time_order(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert documents(config, capsys) == ["started", "registered", "restart", "verdict"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--since", "10min"], ["registered", "restart", "verdict"]),
        (["--kind", "restart", "--kind", "started"], ["started", "restart"]),
        (["--program", "watcher"], ["restart"]),
        (["--resource", "tun"], ["registered", "verdict"]),
        (["--resource", "tun", "--last", "1"], ["verdict"]),
        (["--since", "1s"], []),
    ],
)
def test_filters(config: str, capsys: pytest.CaptureFixture[str], options: list[str], found: list[str]) -> None:
    assert documents(config, capsys, *options) == found


def test_people_get_one_line_an_event(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--config", config]) == OK
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 4
    assert rows[1].split()[1:] == ["generic", "registered", "devherd.io/tun", "ms=3.25", "kubelet_pid=71"]
    assert "no answer for 20 s" in rows[2]


def test_a_mistyped_kind_is_not_an_empty_answer(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--config", config, "--kind", "registred"]) == USAGE
    assert "Did you mean registered?" in capsys.readouterr().err


def test_no_trail_yet_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "devherd.yaml"
    path.write_text(f"paths:\n  log: {tmp_path}/none\n")
    assert main(["events", "--config", str(path)]) == OK
    assert "no such events" in capsys.readouterr().err


def test_times() -> None:
    now = time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1))
    assert parse_since("90s", now) == now - 90
    assert parse_since("1.5h", now) == now - 5400
    assert parse_since("11:30", now) == now - 1800
    assert time.localtime(parse_since("12:30", now))[:5] == (2026, 3, 9, 12, 30)
    assert time.localtime(parse_since("2026-01-31 14:30", now))[:5] == (2026, 1, 31, 14, 30)
    for wrong in ("", "yesterday", "5", "25:00", "10:75", "2026-13-01", "1e9d", "-1h"):
        with pytest.raises(Fault):
            parse_since(wrong, now)


def test_an_event_sends_a_terminal_no_codes() -> None:
    text = words({"kind": "refused", "reason": "bad\x1b[31m\nnews"})
    assert text.isprintable()
    assert "bad" in text


def test_what_is_not_known_is_shown_as_it_is() -> None:
    shown = line({"time": 1.0, "program": "acme", "kind": "melted", "core": 3, "ids": ["a"], "none": None}).plain
    assert "melted" in shown
    assert "core=3" in shown
    assert "none" not in shown


def noted() -> Iterator[tuple[str, str, set[str]]]:
    """Each (place, kind, fields) that some program notes, where the kind is written out."""
    for path in [*ROOT.glob("shared/devherd/**/*.py"), *ROOT.glob("plugins/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.func, ast.Attribute):
                continue
            kind = node.args[0]
            if node.func.attr in ("note", "_note") and isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                fields = {keyword.arg for keyword in node.keywords if keyword.arg}
                yield f"{path.name}:{node.lineno}", kind.value, fields
    yield "kubeletlife.py", "kubelet-up", {"version", "exe", "exe_modified"}


def test_every_kind_that_is_noted_is_explained_with_its_fields() -> None:
    # The command line's `note` is a line on stderr; those texts are sentences.
    calls = [call for call in noted() if " " not in call[1]]
    assert len(calls) > 20
    assert {kind for _, kind, _ in calls} <= set(KINDS)
    for place, kind, fields in calls:
        assert fields <= set(KINDS[kind].fields), f"{place}: {kind} {fields - set(KINDS[kind].fields)}"


def test_the_page_has_every_kind_and_field() -> None:
    page = (ROOT / "docs/events.md").read_text()
    for kind, what in KINDS.items():
        row = f"| `{kind}` | {what.meaning} | {', '.join(f'`{field}`' for field in what.fields)} |"
        assert row in page, row
