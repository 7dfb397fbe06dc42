from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from devherd.cli.asking import Answers
from devherd.cli.feed import Moment, Picture
from devherd.cli.grid import grid
from devherd.cli.judge import Finding, findings
from devherd.cli.live import LiveView
from devherd.cli.output import Out
from devherd.cli.own_devices import CANDIDATES, Candidate, present, rules
from devherd.cli.steps import StepFailed, Steps
from devherd.cli.walk_checks import wrong_in
from devherd.config.load import load_struct
from devherd_generic.manifest import MANIFEST
from rich.console import Console

Json = dict[str, Any]
X = "e.io/x"


def container(path: str = "/dev/x1", number: str = "c 240:1", ids: tuple[str, ...] = ("one",)) -> Json:
    record = {"nodes": [{"container_path": path, "host_path": path, "number": number}]}
    return {"requests": {X: 1}, "devices": {X: list(ids)}, "record": record}


DEVICES: dict[tuple[str, str], Json] = {
    (X, "one"): {"nodes": [{"container_path": "/dev/x1", "host_path": "/dev/x1", "number": "c 240:1"}]},
}


def test_a_container_with_the_right_device_is_right() -> None:
    assert wrong_in(container(), DEVICES) == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (container(number="c 240:2"), "c 240:2"),
        (container(path="/dev/x2"), "missing"),
        (container(ids=()), "asked for 1 e.io/x and holds 0"),
        (container(ids=("two",)), "does not list"),
        ({"requests": {X: 1}, "devices": {}, "record": None}, "has no container"),
    ],
)
def test_a_wrong_or_missing_device_is_named(given: Json, said: str) -> None:
    assert said in wrong_in(given, DEVICES)


def test_the_rules_for_this_machine_are_valid_for_every_candidate(tmp_path: Path) -> None:
    file = tmp_path / "generic.yaml"
    file.write_text(rules(list(CANDIDATES)))
    loaded = load_struct(str(file), MANIFEST.config, MANIFEST.validate)
    assert loaded.problems == ()
    assert [rule.name for rule in loaded.require().devices] == [item.name for item in CANDIDATES]


def test_only_real_device_nodes_count_as_present(tmp_path: Path) -> None:
    (tmp_path / "null").write_text("a file, no device")
    wanted = (Candidate("null", "null"), Candidate("zero", "zero"))
    assert present(str(tmp_path), wanted) == []
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert [item.name for item in present(str(tmp_path), wanted)] == ["zero"]


def test_steps_are_timed_and_a_failure_is_kept_for_the_document() -> None:
    shown, aside = io.StringIO(), io.StringIO()
    steps = Steps(Out(True, shown, aside))
    with steps.step("good", "doing it") as step:
        step.text = "done"
    with pytest.raises(StepFailed), steps.step("bad", "doing it"):
        raise StepFailed("it did not happen")
    documents = [step.as_json() for step in steps.done]
    assert json.loads(json.dumps(documents)) == documents
    assert [(item["name"], item["ok"], item["text"]) for item in documents] == [
        ("good", True, "done"),
        ("bad", False, "it did not happen"),
    ]
    assert documents[0]["ms"] >= 0
    assert shown.getvalue() == ""
    assert "FAILED" in aside.getvalue()


def picture(resources: int, pods: int) -> Picture:
    item = {
        "capacity": 8,
        "allocatable": 7,
        "allocated": 1,
        "stopped": False,
        "allocatable_ms": 12.5,
        "registrations": 1,
    }
    pod = {
        "namespace": "default",
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Pod was rejected: " + "x" * 300,
        "containers": [],
    }
    return Picture(
        node={"pid": 7, "resources": {f"e.io/r{number:02}": item for number in range(resources)}},
        pods=[{**pod, "name": f"pod-{number}"} for number in range(pods)],
        answers=Answers((), ()),
        found=findings(Answers((), ())),
    )


@pytest.mark.parametrize(
    ("width", "height", "resources", "pods"), [(140, 40, 4, 2), (80, 24, 3, 3), (80, 24, 0, 0), (60, 24, 4, 3)]
)
def test_the_live_view_fits_the_terminal_and_shows_the_latest_events(
    width: int, height: int, resources: int, pods: int
) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, color_system=None)
    view = LiveView(Out(False, stream), None, "a node", lambda: None, "/dev/x1")  # type: ignore[arg-type]
    events = [Moment(time.time(), {"what": "pod-running", "pod": f"p{number}"}) for number in range(100)]
    console.print(view.render(picture(resources, pods), events, height, width))
    lines = stream.getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any("pod p99 runs" in line for line in lines)
    assert sum("e.io/r" in line for line in lines) >= resources
    if pods:
        assert any(line.startswith("pod-0") and "UnexpectedAdmissionError" in line for line in lines)


def test_output_to_a_closed_pipe_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "devherd.cli.main", "config", "schema"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("width", [80, 60, 40])
def test_on_a_small_terminal_resources_and_pods_are_seen_whatever_else_there_is(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=24, color_system=None)
    view = LiveView(Out(False, stream), None, "a node " + "x" * 80, lambda: None)  # type: ignore[arg-type]
    full = picture(5, 4)
    reply = {"plugin": "generic", "pid": 1, "title": "Devices by path, glob or regular expression " * 3}
    full.answers = Answers((reply,), ())
    full.found = [Finding(True, f"p{number}", "long " * 50) for number in range(20)]
    console.print(view.render(full, [], 24, width))
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.startswith("e.io/r")] == [f"e.io/r{n:02}" for n in range(5)]
    assert [line.split()[0] for line in lines if line.startswith("pod-")] == [f"pod-{n}" for n in range(4)]
    assert "ALLOCATABLE" in "".join(lines)
    assert any("problem" in line for line in lines)


def test_columns_are_dropped_before_anything_is_cut() -> None:
    rows = [["name", "1", "words " * 10]]
    assert [line.plain for line in grid(("A", "B", "C"), rows, 100, ("B",))][1].startswith("name  1  words")
    assert [line.plain for line in grid(("A", "B", "C"), rows, 20, ("B",), ("C",))] == ["A     B", "name  1"]
    assert [line.cell_len for line in grid(("A",), [["x" * 50]], 20)] == [1, 20]
