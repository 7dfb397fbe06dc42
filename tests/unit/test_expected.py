"""What a node learns about itself over many boots, and what becomes of the files that hold it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from devherd.expected import (
    AFTER,
    BEFORE,
    Expectation,
    Known,
    Record,
    confirmed,
    expectations,
    expected_file,
    falling,
    fits,
    kubelet_came,
    settled,
)
from devherd.settings import Expected, Paths, Settings

GPU = "example.com/gpu"


def boot(record: Record, name: str, before: int, after: int, in_time: bool = True, wanted: int = 0) -> Record:
    """One boot: so many devices when the kubelet comes, so many in the end."""
    expect = {GPU: wanted} if wanted else {}
    record = kubelet_came(record, name, {GPU: before} if before else {}, in_time, expect)
    return confirmed(record, name, {GPU: after} if after else {}, expect)


def known(record: Record) -> Known:
    return record.resources[GPU]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "state").mkdir()
    (tmp_path / "machine-id").write_text("this\n")
    return Paths(state=f"{tmp_path}/state", machine_id=f"{tmp_path}/machine-id")


def seen(paths: Paths, record: Record) -> tuple[list[Expectation], list[str]]:
    expected_file(paths, "gpu").save(record)
    return expectations(Settings(paths=paths))


def test_what_was_there_before_the_kubelet_is_waited_for(paths: Paths) -> None:
    record = boot(Record(), "1", 8, 8)
    assert known(record) == Known(8, BEFORE, reached_in="1")
    found, notes = seen(paths, record)
    assert (found, notes) == ([Expectation(GPU, 8, "gpu")], [])
    assert not found[0].spared


def test_what_only_came_after_the_kubelet_is_late_by_design(paths: Paths) -> None:
    record = boot(Record(), "1", 0, 8)
    assert known(record).when == AFTER
    record = boot(record, "2", 0, 8)
    assert known(record).missed == 0
    [found], _ = seen(paths, record)
    assert "late by design" in found.spared
    assert known(boot(record, "3", 8, 8)).when == BEFORE


def test_an_installation_on_a_running_node_says_nothing_of_the_order() -> None:
    record = boot(Record(), "1", 0, 8, in_time=False)
    assert known(record) == Known(8, "", reached_in="1")
    # Waited for once; if it then comes after the kubelet, it is late by design.
    assert known(boot(record, "2", 0, 8)).when == AFTER
    assert known(boot(record, "2", 8, 8)).when == BEFORE


def test_one_slow_boot_does_not_make_late_what_used_to_be_in_time() -> None:
    record = boot(boot(Record(), "1", 8, 8), "2", 0, 8)
    assert (known(record).when, known(record).missed) == (BEFORE, 1)
    assert not Expectation(GPU, 8, missed=1).spared
    assert known(boot(record, "3", 8, 8)).missed == 0
    assert known(boot(record, "3", 0, 8)).when == AFTER


def test_two_misses_in_a_row_stop_delaying_until_it_is_back(paths: Paths) -> None:
    record = boot(Record(), "1", 8, 8)
    for name, missed in (("2", 1), ("3", 2), ("4", 3)):
        record = boot(record, name, 7, 7)
        assert (known(record).count, known(record).missed, known(record).missed_in) == (8, missed, name)
    [found], _ = seen(paths, record)
    assert found.spared == "missed in 3 boots in a row"
    [found], _ = seen(paths, boot(record, "5", 8, 8))
    assert not found.spared


def test_a_boot_is_missed_once_however_often_its_kubelet_starts() -> None:
    record = boot(Record(), "1", 8, 8)
    for _ in range(3):
        record = boot(record, "2", 7, 7)
    assert known(record).missed == 1
    # A later kubelet of the same boot finds it: it still came after the first.
    assert known(kubelet_came(record, "2", {GPU: 8}, True, {})).missed == 1


def test_a_boot_without_an_id_teaches_nothing_of_the_order() -> None:
    record = boot(boot(Record(), "1", 8, 8), "", 0, 0)
    assert known(record).missed == 0


def test_more_counts_at_once_and_fewer_only_when_it_settled() -> None:
    record = boot(Record(), "1", 7, 8)
    assert known(record).count == 8
    record = confirmed(record, "1", {GPU: 6}, {})
    assert known(record).count == 8
    assert falling(record, "1", {GPU: 6}) == {GPU: 6}
    assert known(settled(record, GPU, 6)).count == 6
    assert GPU not in settled(record, GPU, 0).resources


def test_what_this_boot_never_had_is_missed_and_not_forgotten() -> None:
    record = boot(boot(Record(), "1", 8, 8), "2", 7, 7)
    assert falling(record, "2", {GPU: 7}) == {}


def test_misses_are_counted_by_what_the_configuration_expects() -> None:
    record = boot(Record(), "1", 8, 8)
    assert known(boot(record, "2", 7, 7, wanted=7)).missed == 0
    assert known(boot(record, "2", 8, 8, wanted=9)).missed == 1


def test_the_configuration_goes_before_the_last_run(paths: Paths) -> None:
    expected_file(paths, "gpu").save(Record(resources={GPU: Known(8, AFTER), "a/b": Known(1)}))
    expect: dict[str, int | Expected] = {GPU: 4, "c/d": Expected(2, {"speed": "400*"})}
    found, _ = expectations(Settings(paths=paths, expect=expect))
    assert found == [
        Expectation("a/b", 1, "gpu"),
        Expectation("c/d", 2, configured=True, where=True),
        Expectation(GPU, 4, "gpu", configured=True, late=True),
    ]
    assert not found[2].spared, "what somebody wrote down is waited for, late or not"


def test_attributes_fit_by_pattern() -> None:
    assert fits({"speed": "400Gb", "link": "up"}, {"speed": "400*", "link": "up"})
    assert not fits({"speed": "200Gb"}, {"speed": "400*"})
    assert not fits({}, {"speed": "*"})


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b"", "damaged"),
        (b"\xff\xfe nonsense", "damaged"),
        (b'{"kind":"ledger","version":1,"machine_id":"this","written":0,"size":2,"checksum":0}\n{}', "not 'expected'"),
        (
            b'{"kind":"expected","version":1,"machine_id":"other","written":0,"size":2,"checksum":0}\n{}',
            "another machine",
        ),
        (b'{"kind":"expected","version":9,"machine_id":"this","written":0,"size":2,"checksum":0}\n{}', "newer release"),
        (b'{"kind":"expected","version":1,"machine_id":"this","written":0,"size":2,"checksum":1}\n{}', "checksum"),
    ],
)
def test_odd_files_mean_no_expectation_and_a_note_and_stay_where_they_are(
    paths: Paths, content: bytes, note: str
) -> None:
    path = Path(paths.state, "gpu.expected.json")
    path.write_bytes(content)
    found, notes = expectations(Settings(paths=paths))
    assert found == []
    assert len(notes) == 1
    assert note in notes[0]
    assert "nothing is expected of gpu" in notes[0]
    assert path.read_bytes() == content


def test_a_value_of_another_shape_is_not_used(paths: Paths) -> None:
    good = expected_file(paths, "gpu")
    good.write(good.encode(Record()).replace(b"{}", b'"x"'))
    assert len(expectations(Settings(paths=paths))[1]) == 1


def test_a_folder_and_a_pipe_in_place_of_the_file_delay_nobody(paths: Paths) -> None:
    os.mkfifo(f"{paths.state}/pipe.expected.json")
    os.mkdir(f"{paths.state}/folder.expected.json")
    began = time.monotonic()
    found, notes = expectations(Settings(paths=paths))
    assert found == []
    assert len(notes) == 2
    assert time.monotonic() - began < 5


def test_no_folder_is_no_past(tmp_path: Path) -> None:
    assert expectations(Settings(paths=Paths(state=f"{tmp_path}/none"))) == ([], [])


def test_a_record_survives_the_disk(paths: Paths) -> None:
    record = Record("f", "b", True, (GPU,), {GPU: Known(8, AFTER, 2, "b", "a")})
    file = expected_file(paths, "gpu")
    file.save(record)
    assert file.load().value == record
    assert msgspec.json.decode(b'{"resources":{}}', type=Record) == Record()
