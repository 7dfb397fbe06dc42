"""State files: whole or not at all, bound to the machine, damaged ones set aside."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from devherd.settings import Paths
from devherd.state import StateFile, boot_id, machine_id
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, field


class Answers(Struct, frozen=True):
    boot: str = ""
    by_id: dict[str, tuple[int, ...]] = field(default_factory=dict)


class NewAnswers(Struct, frozen=True):
    boot: str = ""
    by_id: dict[str, tuple[int, ...]] = field(default_factory=dict)
    extra: str = ""


class Text(Struct, frozen=True):
    text: str


VALUE = Answers("b1", {"a": (1, 2), "ü/\n": ()})


def file_at(folder: Path, version: int = 1, machine: str = "m1") -> StateFile[Answers]:
    return StateFile(str(folder / "state" / "acme.json"), "answers", Answers, version, machine)


def test_a_value_comes_back_after_a_restart_and_only_the_owner_can_read_it(tmp_path: Path) -> None:
    file_at(tmp_path).save(VALUE)
    loaded = file_at(tmp_path).load()
    assert (loaded.value, loaded.outcome, loaded.reason) == (VALUE, "loaded", "")
    assert loaded.written > 0
    assert stat.S_IMODE(os.stat(file_at(tmp_path).path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "state").st_mode) == 0o700
    assert os.listdir(tmp_path / "state") == ["acme.json"]


def test_no_file_is_no_problem(tmp_path: Path) -> None:
    loaded = file_at(tmp_path).load()
    assert loaded.missing
    assert loaded.reason == ""


def test_another_machines_state_is_not_used_but_kept(tmp_path: Path) -> None:
    file_at(tmp_path).save(VALUE)
    loaded = file_at(tmp_path, machine="m2").load()
    assert (loaded.value, loaded.outcome) == (None, "foreign")
    assert "another machine" in loaded.reason
    assert file_at(tmp_path).load().value == VALUE
    assert file_at(tmp_path, machine="").load().value == VALUE, "no machine id: not bound"


def test_a_newer_release_is_named_and_its_file_kept(tmp_path: Path) -> None:
    file_at(tmp_path, version=2).save(VALUE)
    loaded = file_at(tmp_path).load()
    assert (loaded.value, loaded.outcome) == (None, "newer")
    assert "format 2" in loaded.reason
    assert file_at(tmp_path, version=2).load().value == VALUE


def test_an_older_release_reads_what_a_newer_one_added_to(tmp_path: Path) -> None:
    path = str(tmp_path / "a.json")
    StateFile(path, "answers", NewAnswers).save(NewAnswers("b", {}, "new"))
    assert StateFile(path, "answers", Answers).load().value == Answers("b")
    StateFile(path, "answers", Answers).save(VALUE)
    assert StateFile(path, "answers", NewAnswers).load().value == NewAnswers(VALUE.boot, VALUE.by_id)


@pytest.mark.parametrize("damage", [b"", b"\n", b"{}\n{}\n", b"not json", b"\xff\xfe\0", b"[" * 5000 + b"\n"])
def test_a_damaged_file_is_set_aside_and_the_next_save_works(tmp_path: Path, damage: bytes) -> None:
    state = file_at(tmp_path)
    state.save(VALUE)
    Path(state.path).write_bytes(damage)
    loaded = state.load()
    assert (loaded.value, loaded.outcome) == (None, "corrupt")
    assert f"{state.path}.bad" in loaded.reason
    assert Path(f"{state.path}.bad").read_bytes() == damage
    assert state.load().missing
    state.save(VALUE)
    assert state.load().value == VALUE


def test_every_truncation_and_every_flipped_byte_of_the_value_is_noticed(tmp_path: Path) -> None:
    state = file_at(tmp_path)
    whole = state.encode(VALUE)
    start = whole.index(b"\n") + 1
    os.makedirs(tmp_path / "state")
    for length in range(len(whole) - 1):
        Path(state.path).write_bytes(whole[:length])
        assert state.load().outcome == "corrupt"
    for place in range(start, len(whole) - 1):
        Path(state.path).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert state.load().outcome == "corrupt"


def test_a_file_of_another_kind_is_set_aside(tmp_path: Path) -> None:
    StateFile(str(tmp_path / "x"), "health", Text).save(Text("t"))
    assert "it holds 'health'" in StateFile(str(tmp_path / "x"), "answers", Answers).load().reason


def test_a_value_of_another_shape_is_set_aside(tmp_path: Path) -> None:
    StateFile(str(tmp_path / "x"), "k", dict[str, int]).save({"boot": 1})
    assert "not as expected" in StateFile(str(tmp_path / "x"), "k", Answers).load().reason


def test_what_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "state" / "acme.json")
    loaded = file_at(tmp_path).load()
    assert loaded.outcome == "unreadable"
    assert "cannot be read" in loaded.reason
    os.rmdir(tmp_path / "state" / "acme.json")
    os.mkfifo(tmp_path / "state" / "acme.json")
    assert file_at(tmp_path).load().outcome == "unreadable"


def test_a_failed_save_keeps_the_old_value_and_leaves_nothing_behind(tmp_path: Path) -> None:
    state = file_at(tmp_path)
    state.save(VALUE)
    os.makedirs(tmp_path / "state" / ".acme.json.tmp")
    with pytest.raises(OSError, match="acme"):
        state.save(Answers("new"))
    assert state.load().value == VALUE
    os.rmdir(tmp_path / "state" / ".acme.json.tmp")
    with pytest.raises(OSError, match="no JSON form"):
        StateFile(state.path, "answers", Text).save(Text("\udc80"))
    assert state.load().value == VALUE
    assert os.listdir(tmp_path / "state") == ["acme.json"]


def test_a_temporary_file_of_a_killed_process_is_no_trap(tmp_path: Path) -> None:
    state = file_at(tmp_path)
    state.save(VALUE)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "state" / ".acme.json.tmp").symlink_to(victim)
    state.save(Answers("new"))
    assert victim.read_text() == "precious"
    assert state.load().value == Answers("new")


def test_readers_see_whole_values_while_threads_write(tmp_path: Path) -> None:
    state = file_at(tmp_path)
    values = [Answers(str(number), {"x": tuple(range(number * 50))}) for number in range(4)]
    state.save(values[0])
    done = threading.Event()

    def write(value: Answers) -> None:
        while not done.is_set():
            state.save(value)

    threads = [threading.Thread(target=write, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            loaded = file_at(tmp_path).load()
            assert loaded.value in values, loaded.reason
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_the_file_can_be_read_by_a_person(tmp_path: Path) -> None:
    state = file_at(tmp_path)
    state.save(VALUE)
    header, value = Path(state.path).read_text().splitlines()
    assert json.loads(header)["kind"] == "answers"
    assert json.loads(value)["boot"] == "b1"


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_survived(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="dh", dir="/tmp") as folder:
        path = os.path.join(folder, "x")
        Path(path).write_bytes(data)
        assert StateFile(path, "k", Answers).load().outcome == "corrupt"


def test_boot_and_machine_id_come_from_the_settings_paths(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "proc/sys/kernel/random")
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("1234-5678\n")
    (tmp_path / "id").write_text("abc\n")
    paths = Paths(proc=str(tmp_path / "proc"), machine_id=str(tmp_path / "id"))
    assert (boot_id(paths), machine_id(paths)) == ("1234-5678", "abc")
    nothing = Paths(proc=str(tmp_path / "no"), machine_id=str(tmp_path))
    assert (boot_id(nothing), machine_id(nothing)) == ("", "")
