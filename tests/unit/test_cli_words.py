from __future__ import annotations

import time

import pytest
from devherd.cli.words import clock, count, listing, millis, short, since, span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0 s"),
        (0.004, "4 ms"),
        (0.4, "0.4 s"),
        (12, "12 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3600, "60 min"),
        (7200, "2 h"),
        (200000, "2 d"),
    ],
)
def test_a_span_is_said_in_the_unit_people_use(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_milliseconds_keep_a_digit_where_it_matters() -> None:
    assert (millis(3.24), millis(41.2), millis(1234), millis(None)) == ("3.2 ms", "41 ms", "1,234 ms", "")


def test_ages_are_never_negative_after_a_clock_jump() -> None:
    assert since(1000.0, now=400.0) == "0 s"
    assert since(None) == ""


def test_a_moment_today_is_a_time_and_an_old_one_has_its_date() -> None:
    assert len(clock(time.time())) == 8
    assert clock(86400.0 * 365).startswith("197")


def test_lists_and_ids_are_cut_where_they_get_long() -> None:
    assert listing(["a", "b"]) == "a, b"
    assert listing([str(i) for i in range(7)]) == "0, 1, 2, 3 and 3 more"
    assert (short("abc"), short("0123456789abcdefff")) == ("abc", "0123456789ab...")
    assert (count(1, "device"), count(2, "device"), count(1200, "try", "tries")) == (
        "1 device",
        "2 devices",
        "1,200 tries",
    )
