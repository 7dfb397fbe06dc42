"""`wait --boot` on the command line, and the same verdict in `status` and `verify`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_stub import Stub, front, resource_of, status_of, stub
from devherd.expected import AFTER, Known, Record, expected_file
from devherd.settings import Paths, Settings
from test_cli import run, run_json

TUN = "devherd.io/tun"


@pytest.fixture
def made() -> Iterator[Stub]:
    with stub() as one:
        yield one


def serve(made: Stub, healthy: int) -> None:
    row = resource_of(TUN, devices=healthy, healthy=healthy)
    probe = {"state": "idle", "scan_age_seconds": 1.0, "scan_seconds": 0.1}
    made.serve("generic", front(status_of("generic", row, probe=probe)))


def expect(made: Stub, text: str) -> None:
    made.config.write_text(made.config.read_text() + f"expect: {text}\n")


def learn(made: Stub, known: Known) -> None:
    expected_file(Paths(state=f"{made.folder}/state"), "generic").save(Record(resources={TUN: known}))


def test_nothing_expected_is_ready_at_once(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, made, "wait", "--boot")
    assert code == 0
    assert "nothing is expected" in out


def test_what_is_missing_is_named_with_exit_code_5(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    serve(made, 3)
    expect(made, f"{{{TUN}: 4}}")
    code, _, err = run(capsys, made, "wait", "--boot", "--timeout", "0")
    assert code == 5
    assert f"{TUN}: 3 of 4 expected" in err
    code, document = run_json(capsys, made, "wait", "--boot", "--timeout", "0")
    assert code == 5
    assert (document["ready"], document["fit"], document["expected"]) == (False, False, 1)
    [lack] = document["missing"]
    assert (lack["resource"], lack["expected"], lack["have"], lack["source"]) == (TUN, 4, 3, "expect")


def test_it_ends_as_soon_as_all_is_there(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    serve(made, 4)
    expect(made, f"{{{TUN}: 4}}")
    began = time.monotonic()
    code, out, _ = run(capsys, made, "wait", "--boot", "--timeout", "60")
    assert code == 0
    assert "ready after" in out
    assert time.monotonic() - began < 20


def test_what_is_spared_is_named_and_costs_no_time(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    serve(made, 3)
    learn(made, Known(4, AFTER))
    began = time.monotonic()
    code, _, err = run(capsys, made, "wait", "--boot", "--timeout", "60")
    assert code == 0
    assert "late by design" in err
    assert time.monotonic() - began < 20


def test_resources_and_boot_exclude_each_other(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, made, "wait", "--boot", TUN)
    assert code == 2
    assert "leave the resources out" in err


def test_a_missing_settings_file_delays_nothing(
    made: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.config.unlink()
    defaults = Settings(paths=Paths(state=f"{made.folder}/state", run=str(made.run)))
    monkeypatch.setattr("devherd.cli.boot.Settings", lambda: defaults)
    code, _, err = run(capsys, made, "wait", "--boot", "--timeout", "60")
    assert code == 0, err


@pytest.mark.parametrize("command", ["status", "verify"])
def test_status_and_verify_give_the_same_verdict(made: Stub, capsys: pytest.CaptureFixture[str], command: str) -> None:
    serve(made, 3)
    expect(made, f"{{{TUN}: 4}}")
    _, out, _ = run(capsys, made, command)
    assert "devherd.yaml expects 4, there are 3" in out
    assert "Not fit for work" in out
    code, document = run_json(capsys, made, command)
    assert document["fitness"]["fit"] is False
    assert any(item["problem"] and item["where"] == TUN for item in document["findings"])
    assert code == (3 if command == "verify" else 0)
    made.config.write_text(made.config.read_text().replace(": 4", ": 3"))
    _, out, _ = run(capsys, made, command)
    assert "Fit for work" in out


def test_what_was_missed_twice_is_a_note_and_no_problem(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    serve(made, 3)
    learn(made, Known(4, missed=2))
    _, document = run_json(capsys, made, "status")
    assert document["fitness"]["fit"] is True
    [finding] = [item for item in document["findings"] if item["where"] == TUN]
    assert not finding["problem"]
    assert "missed in 2 boots" in finding["text"]


def test_a_damaged_file_is_noted_and_left_alone(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    serve(made, 3)
    learn(made, Known(4))
    path = Path(made.folder, "state", "generic.expected.json")
    path.write_bytes(b"\0")
    _, document = run_json(capsys, made, "status")
    assert "damaged" in document["fitness"]["notes"][0]
    assert path.read_bytes() == b"\0"
