"""The audit trail: never blocks, never raises, tells what it lost, and can be read while it is written and rotated."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from devherd.audit import MAX_LINE, MAX_TEXT, Audit, EventFile, encode
from devherd.trail import Trail, Wanted, follow, read_events


def kinds(folder: Path, **wanted: Any) -> list[str]:
    return [event["kind"] for event in read_events(str(folder), Wanted(**wanted))]


def test_what_is_noted_can_be_read(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path), "generic")
    before = time.time()
    audit.note("verdict", resource="a/b", id="x", healthy=False, reason="it is gone")
    assert audit.flush(5)
    (event,) = read_events(str(tmp_path))
    assert before <= event.pop("time") <= time.time()
    assert event == {
        "program": "generic",
        "kind": "verdict",
        "resource": "a/b",
        "id": "x",
        "healthy": False,
        "reason": "it is gone",
    }


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")


ODD: dict[str, Any] = {
    "object": object(),
    "set": {1, 2},
    "bytes": b"\xff",
    "surrogate": "\udcff",
    "nan": float("nan"),
    "long": "x" * 100_000,
    "many": ["y" * 1000] * 100,
    "odd keys": {(1, 2): 3},
    "huge": 1 << 100_000,
    "rude": Rude(),
}


@pytest.mark.parametrize("name", ODD)
def test_any_value_gives_one_line_of_json(name: str) -> None:
    value = ODD[name]
    line = encode("p", "odd", 1.5, {"value": value, "other": 1})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= MAX_LINE
    event = json.loads(line)
    assert (event["time"], event["program"], event["kind"]) == (1.5, "p", "odd")


def test_a_cycle_and_a_long_text_are_no_reason_to_fail() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert "unwritable" in json.loads(encode("p", "k", 1, {"value": cycle}))
    assert len(json.loads(encode("p", "k", 1, {"value": "x" * 9999}))["value"]) == MAX_TEXT


def test_a_field_named_as_ours_is_kept_under_another_name() -> None:
    event = json.loads(encode("p", "k", 1, {"program": "/usr/bin/kubelet", "time": 7}))
    assert event == {"time": 1, "program": "p", "kind": "k", "program_": "/usr/bin/kubelet", "time_": 7}


def test_rotation_keeps_so_many_bytes_and_loses_nothing_in_between(tmp_path: Path) -> None:
    file = EventFile(str(tmp_path), "p", max_bytes=2000, keep=3)
    for number in range(500):
        assert file.write("n", number=number)
    sizes = [os.stat(path).st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 4
    assert max(sizes) <= 2000
    numbers = [event["number"] for event in read_events(str(tmp_path))]
    assert numbers == list(range(numbers[0], 500))
    assert len(numbers) > 60


def test_half_a_line_of_a_killed_process_costs_that_line_only(tmp_path: Path) -> None:
    EventFile(str(tmp_path), "p").write("first")
    with open(tmp_path / "p.jsonl", "ab") as file:
        file.write(b'{"time":1,"program":"p","kind":"tor')
    EventFile(str(tmp_path), "p").write("last")
    assert kinds(tmp_path) == ["first", "last"]


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[]", b"{}", b'{"time":"x","program":"p","kind":"k"}', b"\xff\xfe", b"[" * 100_000, b"x" * 500_000],
)
def test_lines_that_are_no_events_are_skipped(tmp_path: Path, line: bytes) -> None:
    EventFile(str(tmp_path), "p").write("first")
    with open(tmp_path / "p.jsonl", "ab") as file:
        file.write(line + b"\n")
    EventFile(str(tmp_path), "p").write("last")
    assert kinds(tmp_path) == ["first", "last"]


def test_a_folder_that_cannot_be_written_costs_lines_and_their_number_is_told_later(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.write_text("a file is in the way")
    audit = Audit(str(folder), "p")
    audit.note("one")
    audit.note("two")
    assert audit.flush(5)
    assert str(folder) in audit.problem
    assert audit.lost == 2
    folder.unlink()
    audit.note("three")
    assert audit.flush(5)
    assert (audit.problem, audit.lost) == ("", 0)
    events = list(read_events(str(folder)))
    assert [event["kind"] for event in events] == ["events-lost", "three"]
    assert events[0]["count"] == 2


def test_a_full_disk_loses_lines_and_mixes_none() -> None:
    """/dev/full is what a full disk answers to a write."""
    file = EventFile("/dev", "p")
    file.path = "/dev/full"
    assert not file.write("x")
    assert "/dev/full" in file.problem


@pytest.mark.parametrize("what", ["fifo", "link", "folder"])
def test_what_lies_in_our_place_is_neither_followed_nor_waited_for(tmp_path: Path, what: str) -> None:
    path, victim = tmp_path / "p.jsonl", tmp_path / "victim"
    victim.write_text("untouched")
    if what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to(victim)
    else:
        path.mkdir()
    file = EventFile(str(tmp_path), "p")
    assert not file.write("x")
    assert file.problem
    assert victim.read_text() == "untouched"
    assert kinds(tmp_path) == []


class Stuck(EventFile):
    """A disk that does not answer until it is let go."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, "p")
        self.go = threading.Event()

    def append(self, kind: str, when: float, fields: dict[str, Any]) -> bool:
        self.go.wait(20)
        return super().append(kind, when, fields)


def test_a_disk_that_hangs_never_blocks_and_the_queue_is_bounded(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path), "p", max_waiting=10)
    stuck = audit._file = Stuck(str(tmp_path))
    began = time.monotonic()
    for number in range(1000):
        audit.note("n", number=number)
    assert time.monotonic() - began < 1.0
    assert audit.noted == 1000
    assert audit.lost >= 980
    assert audit.problem
    assert not audit.flush(0.05)
    stuck.go.set()
    audit.note("end")
    assert audit.flush(10)
    events = list(read_events(str(tmp_path)))
    told = sum(event["count"] for event in events if event["kind"] == "events-lost")
    assert told + sum(event["kind"] != "events-lost" for event in events) == 1001


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    file = EventFile(str(tmp_path), "p")
    file.write("one")
    os.rename(tmp_path / "p.jsonl", tmp_path / "elsewhere")
    file.write("two")
    assert kinds(tmp_path) == ["two"]


def test_the_folder_and_files_are_not_for_everybody(tmp_path: Path) -> None:
    EventFile(str(tmp_path / "events"), "p").write("x")
    assert not os.stat(tmp_path / "events").st_mode & 0o007
    assert not os.stat(tmp_path / "events" / "p.jsonl").st_mode & 0o007


def test_programs_are_merged_by_time_and_each_keeps_its_own_order(tmp_path: Path) -> None:
    one, two = EventFile(str(tmp_path), "one"), EventFile(str(tmp_path), "two")
    for file, moments in ((one, (10.0, 30.0, 5.0, 40.0)), (two, (20.0, 35.0))):
        for moment in moments:
            file.append(f"{file.program}-{moment:g}", moment, {})
    # The clock of `one` was set back after 30; what came later stays later.
    assert kinds(tmp_path) == ["one-10", "two-20", "one-30", "one-5", "two-35", "one-40"]


def test_filters(tmp_path: Path) -> None:
    for program in ("a", "b"):
        file = EventFile(str(tmp_path), program)
        file.append("verdict", 100.0, {"resource": "example.com/gpu"})
        file.append("registered", 200.0, {"resource": "example.com/nic"})
        file.append("started", 300.0, {})
    assert kinds(tmp_path, since=150.0, programs=("a",)) == ["registered", "started"]
    assert kinds(tmp_path, kinds=("verdict",)) == ["verdict"] * 2
    assert kinds(tmp_path, resource="nic") == ["registered"] * 2
    assert kinds(tmp_path, resource="example.com/gpu") == ["verdict"] * 2
    assert kinds(tmp_path, resource="c") == []
    assert list(read_events(str(tmp_path / "none"))) == []


def test_following_over_rotations_gives_each_event_once(tmp_path: Path) -> None:
    writer = EventFile(str(tmp_path), "p", max_bytes=400, keep=20)
    trail = Trail(str(tmp_path))
    seen: list[int] = []
    for number in range(60):
        writer.write("n", number=number)
        if number % 7 == 0:
            seen += [event["number"] for event in trail.new()]
    seen += [event["number"] for event in trail.new()]
    assert seen == list(range(60))
    assert list(trail.new()) == []


def test_half_a_line_is_given_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    line = encode("p", "whole", 1.0, {})
    path.write_bytes(line[:20])
    trail = Trail(str(tmp_path))
    assert list(trail.new()) == []
    path.write_bytes(line)
    assert [event["kind"] for event in trail.new()] == ["whole"]


def test_a_file_made_anew_is_read_from_its_start(tmp_path: Path) -> None:
    writer = EventFile(str(tmp_path), "p")
    for _ in range(5):
        writer.write("old")
    trail = Trail(str(tmp_path))
    assert len(list(trail.new())) == 5
    with open(tmp_path / "p.jsonl", "wb") as file:
        file.write(encode("p", "new", 1.0, {}))
    assert [event["kind"] for event in trail.new()] == ["new"]


def test_follow_ends_when_told_and_misses_nothing_written_before(tmp_path: Path) -> None:
    EventFile(str(tmp_path), "p").write("one")
    stopping = threading.Event()
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.extend(event["kind"] for event in follow(str(tmp_path), stop=stopping.is_set))
    )
    thread.start()
    EventFile(str(tmp_path), "new-program").write("two")
    stopping.set()
    thread.join(10)
    assert found == ["one", "two"]


def test_two_writers_and_a_reader_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    def write(name: int) -> None:
        file = EventFile(str(tmp_path), "p", max_bytes=1 << 30)
        for number in range(300):
            file.write("n", name=name, number=number)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(2)]
    trail = Trail(str(tmp_path))
    for thread in threads:
        thread.start()
    seen: list[dict[str, Any]] = []
    while any(thread.is_alive() for thread in threads):
        seen += trail.new()
    for thread in threads:
        thread.join()
    seen += trail.new()
    for name in range(2):
        assert [event["number"] for event in seen if event["name"] == name] == list(range(300))


def test_what_is_held_is_written_later_with_its_own_time(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path), "generic")
    audit.hold()
    before = time.time()
    audit.note("kubelet-up", pid=1)
    audit.note("registered", resource="a/b")
    after = time.time()
    assert kinds(tmp_path) == []
    audit.release()
    assert audit.flush(5)
    assert kinds(tmp_path) == ["kubelet-up", "registered"]
    assert all(before - 0.001 <= event["time"] <= after + 0.001 for event in read_events(str(tmp_path), Wanted()))


def test_a_process_that_ends_keeps_nothing_back(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path), "generic")
    audit.hold()
    audit.note("stopped")
    assert audit.flush(5)
    assert kinds(tmp_path) == ["stopped"]
