"""Preferred allocation: which of the free devices fit together best. Advice to the kubelet, never an error.

The kubelet waits for the answer on its only sync loop, so the work is bounded whatever the input: exact for
few combinations, greedy from several starts for more, grouping only for very many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb

from devherd.values import Preference

_EXACT_WORK = 20_000
_GREEDY_WORK = 60_000
_LARGEST_MATRIX = 256
_SEEDS = 8


def choose(
    preference: Preference | None, available: Iterable[str], must_include: Iterable[str], size: int
) -> list[str]:
    """Pick `size` ids out of `available`, all of `must_include` among them.

    Affinity decides first (the highest sum over all pairs), then what stays free keeps its best combinations.
    Without affinity, `group` decides: policy `spread` takes from as many groups as it can, any other policy
    from as few (the smallest group that suffices). Odd input gets the nearest sensible answer: unknown required
    ids are taken as they are, too large a size gets everything, required ids alone are returned if they
    are as many as asked for or more.
    """
    must = list(dict.fromkeys(must_include))
    free = sorted(set(available).difference(must))
    missing = min(size - len(must), len(free))
    if missing <= 0:
        return must
    if missing == len(free):
        return must + free
    preference = preference or Preference()
    if preference.affinity and len(free) + len(must) <= _LARGEST_MATRIX:
        return must + _nearest(preference, free, must, missing)
    return must + _by_group(preference, free, must, missing)


def _by_group(preference: Preference, free: Sequence[str], must: Sequence[str], missing: int) -> list[str]:
    groups: dict[str, list[str]] = {}
    for device_id in free:
        groups.setdefault(preference.group.get(device_id, device_id), []).append(device_id)
    used: dict[str, int] = {}
    for device_id in must:
        name = preference.group.get(device_id, device_id)
        used[name] = used.get(name, 0) + 1
    if preference.policy == "spread":
        return _spread(groups, used, missing)
    return _packed(groups, used, missing)


def _packed(groups: Mapping[str, list[str]], used: Mapping[str, int], missing: int) -> list[str]:
    """Groups in use first, then whole groups from the largest, and the smallest that suffices for the rest."""
    chosen: list[str] = []
    for name in sorted(used, key=lambda name: (-used[name], name)):
        chosen += groups.get(name, [])[: missing - len(chosen)]
    left = sorted((members for name, members in groups.items() if name not in used), key=lambda m: (-len(m), m[0]))
    for index, members in enumerate(left):
        need = missing - len(chosen)
        if len(members) >= need:
            suffices = min((m for m in left[index:] if len(m) >= need), key=lambda m: (len(m), m[0]))
            return chosen + suffices[:need]
        chosen += members
    return chosen


def _spread(groups: Mapping[str, list[str]], used: Mapping[str, int], missing: int) -> list[str]:
    """Round after round one from each group: the least used first, then the one with the most free."""
    # The position in the round an id would be taken in says it all: no need to simulate the rounds.
    order = sorted(
        (used.get(name, 0) + index, index - len(members), name, device_id)
        for name, members in groups.items()
        for index, device_id in enumerate(members)
    )
    return [device_id for _, _, _, device_id in order[:missing]]


def _nearest(preference: Preference, free: Sequence[str], must: Sequence[str], missing: int) -> list[str]:
    ids = [*free, *must]
    weight = _weights(preference, ids)
    # Sum over pairs first; of equal sums the set that takes the least affinity away from what stays free.
    rows = [sum(row) for row in weight]
    big = 2 * sum(map(abs, rows)) + 1
    base = [big * sum(weight[i][j] for j in range(len(free), len(ids))) - rows[i] for i in range(len(free))]
    gain = [[big * value for value in row[: len(free)]] for row in weight[: len(free)]]
    if comb(len(free), missing) * missing * missing <= _EXACT_WORK:
        exact = max(combinations(range(len(free)), missing), key=lambda pick: _score(pick, base, gain))
        best = list(exact)
    else:
        best = _greedy(base, gain, missing)
    return [free[i] for i in sorted(best)]


def _weights(preference: Preference, ids: Sequence[str]) -> list[list[int]]:
    index = {device_id: i for i, device_id in enumerate(ids)}
    matrix = [[0] * len(ids) for _ in ids]
    # Affinity outweighs grouping, which only breaks ties.
    for pair, value in preference.affinity.items():
        a, _, b = pair.partition("\0")
        if a in index and b in index and a != b:
            matrix[index[a]][index[b]] = matrix[index[b]][index[a]] = value * len(ids) ** 2
    members: dict[str, list[int]] = {}
    for device_id, i in index.items():
        if device_id in preference.group:
            members.setdefault(preference.group[device_id], []).append(i)
    together = -1 if preference.policy == "spread" else 1
    for group in members.values():
        for i, j in combinations(group, 2):
            matrix[i][j] += together
            matrix[j][i] += together
    return matrix


def _score(pick: Sequence[int], base: Sequence[int], gain: Sequence[Sequence[int]]) -> int:
    return sum(base[i] for i in pick) + sum(gain[i][j] for i, j in combinations(pick, 2))


def _greedy(base: Sequence[int], gain: Sequence[Sequence[int]], missing: int) -> list[int]:
    everyone = range(len(base))
    promise = [base[i] + sum(sorted(gain[i], reverse=True)[: missing - 1]) for i in everyone]
    seeds = max(1, min(_SEEDS, _GREEDY_WORK // (len(base) * missing)))
    best: list[int] = []
    best_score = 0
    for seed in sorted(everyone, key=lambda i: (-promise[i], i))[:seeds]:
        pick = _grow(seed, base, gain, missing)
        score = _score(pick, base, gain)
        if not best or score > best_score:
            best, best_score = pick, score
    return best


def _grow(seed: int, base: Sequence[int], gain: Sequence[Sequence[int]], missing: int) -> list[int]:
    """From one id, add the best one again and again."""
    pick = [seed]
    worth = [a + b for a, b in zip(base, gain[seed], strict=True)]
    rest = set(range(len(base))) - {seed}
    while len(pick) < missing:
        best = max(rest, key=lambda i: (worth[i], -i))
        rest.discard(best)
        pick.append(best)
        worth = [a + b for a, b in zip(worth, gain[best], strict=True)]
    return pick
