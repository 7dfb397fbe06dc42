"""Preferred allocation: good advice, quickly, for any input."""

from __future__ import annotations

import random
import time
from itertools import combinations

import pytest
from devherd.prefer import choose
from devherd.values import Preference
from hypothesis import given, settings
from hypothesis import strategies as st

EIGHT = [f"gpu{i}" for i in range(8)]


def affinity(weights: dict[tuple[str, str], int]) -> Preference:
    return Preference(affinity={"\0".join(sorted(pair)): weight for pair, weight in weights.items()})


def two_boards() -> Preference:
    """Four GPUs on each of two boards: near on a board, far across."""
    return affinity({(a, b): 10 if (a < "gpu4") == (b < "gpu4") else 1 for a, b in combinations(EIGHT, 2)})


def pairs(preference: Preference, ids: list[str]) -> int:
    return sum(preference.affinity.get("\0".join(sorted(pair)), 0) for pair in combinations(ids, 2))


def test_without_a_preference_ids_come_in_order() -> None:
    assert choose(None, ["b", "c", "a"], [], 2) == ["a", "b"]


def test_near_devices_are_chosen_together() -> None:
    assert sorted(choose(two_boards(), EIGHT, [], 4)) in (EIGHT[:4], EIGHT[4:])


def test_what_must_be_included_decides_the_board() -> None:
    assert sorted(choose(two_boards(), EIGHT, ["gpu5"], 3)) in (
        ["gpu4", "gpu5", "gpu6"],
        ["gpu4", "gpu5", "gpu7"],
        ["gpu5", "gpu6", "gpu7"],
    )


def test_a_small_request_leaves_the_whole_board_free() -> None:
    free = [*EIGHT[:4], "gpu6"]
    assert choose(two_boards(), free, [], 1) == ["gpu6"]


def test_a_pair_with_a_link_beats_everything_else() -> None:
    preference = affinity({("gpu3", "gpu6"): 5, ("gpu0", "gpu1"): 4})
    assert sorted(choose(preference, EIGHT, [], 2)) == ["gpu3", "gpu6"]


def shares(policy: str) -> Preference:
    return Preference(policy, {}, {f"g{g}-{i}": f"g{g}" for g in range(4) for i in range(8)})


def test_packed_takes_few_things_and_the_smallest_that_suffices() -> None:
    free = [f"g0-{i}" for i in range(8)] + ["g1-0", "g1-1", "g1-2"] + ["g2-0"]
    assert choose(shares("packed"), free, [], 2) == ["g1-0", "g1-1"]
    assert choose(shares("packed"), free, [], 1) == ["g2-0"]
    assert {i[:2] for i in choose(shares("packed"), free, [], 8)} == {"g0"}
    assert {i[:2] for i in choose(shares("packed"), free, [], 10)} == {"g0", "g1"}
    assert {i[:2] for i in choose(shares("packed"), free, ["g0-7"], 4)} == {"g0"}


def test_spread_takes_many_things() -> None:
    free = [f"g{g}-{i}" for g in range(4) for i in range(8)]
    for size in range(1, 33):
        taken = choose(shares("spread"), free, [], size)
        counts = [sum(i.startswith(f"g{g}") for i in taken) for g in range(4)]
        assert max(counts) - min(counts) <= 1
    assert {i[:2] for i in choose(shares("spread"), free, ["g2-0"], 4)} == {"g0", "g1", "g2", "g3"}


def test_spread_prefers_the_thing_with_the_most_free() -> None:
    assert choose(shares("spread"), ["g0-0", "g1-0", "g1-1"], [], 1)[0].startswith("g1")


def test_grouping_breaks_ties_of_affinity() -> None:
    weights = {"\0".join(pair): 1 for pair in combinations(sorted(EIGHT), 2)}
    groups = {device_id: "a" if device_id in ("gpu2", "gpu7") else device_id for device_id in EIGHT}
    assert sorted(choose(Preference("packed", weights, groups), EIGHT, [], 2)) == ["gpu2", "gpu7"]


def test_small_requests_are_answered_exactly() -> None:
    chance = random.Random(7)
    for size in range(1, 8):
        preference = affinity({pair: chance.randint(-5, 100) for pair in combinations(EIGHT, 2)})
        best = max(pairs(preference, list(pick)) for pick in combinations(EIGHT, size))
        assert pairs(preference, choose(preference, EIGHT, [], size)) == best


def test_large_requests_are_answered_well() -> None:
    chance = random.Random(3)
    ids = [f"d{i:02d}" for i in range(64)]
    boards = {
        (a, b): 50 if int(a[1:]) // 16 == int(b[1:]) // 16 else chance.randint(0, 9) for a, b in combinations(ids, 2)
    }
    taken = choose(affinity(boards), chance.sample(ids, 64), [], 16)
    assert len({int(i[1:]) // 16 for i in taken}) == 1


@pytest.mark.parametrize("dense", [False, True])
def test_sixty_four_partitions_take_less_than_twenty_milliseconds(dense: bool) -> None:
    chance = random.Random(1)
    ids = [f"MIG-{i:02d}" for i in range(64)]
    weights = {"\0".join(pair): chance.randint(0, 100) for pair in combinations(ids, 2)} if dense else {}
    preference = Preference("packed", weights, {i: f"g{int(i[4:]) // 8}" for i in ids})
    for size in range(66):
        assert min(_seconds(preference, ids, size) for _ in range(3)) < 0.02


def _seconds(preference: Preference, ids: list[str], size: int) -> float:
    began = time.thread_time()
    choose(preference, ids, [], size)
    return time.thread_time() - began


def test_ten_thousand_devices_do_not_hold_up_the_kubelet() -> None:
    ids = [f"d{i:05d}" for i in range(10_000)]
    weights = {f"{ids[i]}\0{ids[i + 1]}": 5 for i in range(9_999)}
    for preference in (
        Preference(affinity=weights),
        Preference("spread"),
        Preference("packed", {}, dict.fromkeys(ids, "one")),
    ):
        for size in (1, 5_000, 9_999):
            assert min(_seconds(preference, ids, size) for _ in range(2)) < 0.1


def test_odd_requests_get_the_nearest_sensible_answer() -> None:
    assert choose(None, [], [], 3) == []
    assert choose(None, ["a"], [], -1) == []
    assert choose(None, ["a"], [], 99) == ["a"]
    assert choose(None, ["a", "a"], ["x", "x"], 2) == ["x", "a"]
    assert choose(None, ["a", "b"], ["a", "b"], 1) == ["a", "b"]
    assert choose(two_boards(), ["unknown", "gpu0"], ["other"], 2)[0] == "other"


few = st.sampled_from(["a", "b", "c", "d", "e", "f", "", "\0", "a\0b"])


@settings(max_examples=200, deadline=None, database=None)
@given(
    policy=st.sampled_from(["packed", "spread", ""]),
    weights=st.dictionaries(st.one_of(st.tuples(few, few).map("\0".join), few), st.integers(-(2**40), 2**40)),
    groups=st.dictionaries(few, few),
    available=st.lists(few),
    must=st.lists(few),
    size=st.integers(-3, 12),
)
def test_any_input_gets_an_answer_that_fits(
    policy: str, weights: dict[str, int], groups: dict[str, str], available: list[str], must: list[str], size: int
) -> None:
    taken = choose(Preference(policy, weights, groups), available, must, size)
    assert len(taken) == len(set(taken))
    assert set(must) <= set(taken)
    assert set(taken) <= set(available) | set(must)
    assert len(taken) == max(len(set(must)), min(size, len(set(available) | set(must))))
    assert taken == choose(Preference(policy, weights, groups), list(reversed(available)), must, size)
