"""Is this node fit for work: one verdict from what it should have and what the fronts say, for everybody who asks.

`devherd wait --boot`, `status`, `verify` and the exporter go by this one function, so that they never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from devherd.expected import GIVEN_UP, Expectation

Reply = Mapping[str, Any]
NOT_RUNNING = "program not running"
ABSENT_EXIT = 69
"""Exit code of a plugin whose hardware is absent."""


class Lack(Struct, frozen=True):
    """A resource of which the node has less than it should, and why. `spared`: why no boot waits for it, or empty.

    `counts`: it makes the node unfit. What was missed in two boots in a row and is not configured is only named.
    """

    resource: str
    expected: int
    have: int
    why: str
    plugin: str
    configured: bool
    spared: str
    counts: bool

    def __str__(self) -> str:
        """In one sentence."""
        return f"{self.resource}: {self.have} of {self.expected} expected ({self.why})"


class Fitness(Struct, frozen=True):
    """The verdict. `expected` is how many resources are; `missing` those that are not all there."""

    expected: int = 0
    missing: tuple[Lack, ...] = ()

    @property
    def fit(self) -> bool:
        """Whether the node has all that it should have."""
        return not any(lack.counts for lack in self.missing)

    @property
    def awaited(self) -> tuple[Lack, ...]:
        """What a boot waits for."""
        return tuple(lack for lack in self.missing if not lack.spared)


def judge(
    expected: Iterable[Expectation],
    replies: Sequence[Reply],
    down: Mapping[str, str],
    resting: Mapping[str, str],
) -> Fitness:
    """The verdict from the fronts' status replies.

    `down`: plugins that give none, and why. `resting`: those that are not meant to run here, and why: their hardware is
    absent, or nobody wants them. Only what the configuration names is waited for then.
    """
    wanted = list(expected)
    by_plugin = {str(reply.get("plugin", "")): reply for reply in replies}
    missing = tuple(filter(None, (_lack(one, by_plugin, down, resting) for one in wanted)))
    return Fitness(len(wanted), missing)


def programs_at_rest(rows: Iterable[tuple[str, str, int, bool]] | None, plugins: Iterable[str]) -> dict[str, str]:
    """Which plugins are not meant to run, by supervisord's list; None: it gave none, and nobody rests.

    A row is a program's name, its state word, its exit code, and whether it was ever started.
    """
    if rows is None:
        return {}
    listed = {name: _rest(state, code, started) for name, state, code, started in rows}
    said = {plugin: listed.get(plugin, "no program of this node") for plugin in plugins}
    return {plugin: text for plugin, text in said.items() if text}


def _rest(state: str, code: int, started: bool) -> str:
    if state == "EXITED" and code == ABSENT_EXIT:
        return "there is no hardware for it"
    return "the program is off until somebody starts it" if state == "STOPPED" and not started else ""


def _lack(
    one: Expectation, replies: Mapping[str, Reply], down: Mapping[str, str], resting: Mapping[str, str]
) -> Lack | None:
    plugin, row = _row(one, replies)
    reply = replies.get(plugin)
    have = 0 if reply is None or row is None else _have(one, reply, row)
    if have >= one.count:
        return None
    at_rest = "" if reply is not None or one.configured else resting.get(plugin, "")
    why = _why(one, plugin, reply, row, down, resting)
    counts = one.configured or not (at_rest or one.missed >= GIVEN_UP)
    return Lack(one.resource, one.count, have, why, plugin, one.configured, one.spared or at_rest, counts)


def _row(one: Expectation, replies: Mapping[str, Reply]) -> tuple[str, Reply | None]:
    """The plugin that serves it now, which need not be the one that did, and what that says of it."""
    for plugin, reply in replies.items():
        for row in _list(reply, "resources"):
            if row.get("name") == one.resource:
                return plugin, row
    return one.plugin, None


def _have(one: Expectation, reply: Reply, row: Reply) -> int:
    """Healthy devices as a scan of this life of the front found them: what is only remembered may not be there."""
    if not _scanned(reply) or row.get("draining"):
        return 0
    count = row.get("matching") if one.where else row.get("healthy")
    return count if isinstance(count, int) else 0


def _scanned(reply: Reply) -> bool:
    return _part(reply, "probe").get("scan_age_seconds") is not None


def _why(
    one: Expectation,
    plugin: str,
    reply: Reply | None,
    row: Reply | None,
    down: Mapping[str, str],
    resting: Mapping[str, str],
) -> str:
    if reply is None and plugin:
        if plugin in resting:
            return f"{plugin}: {resting[plugin]}"
        return f"{NOT_RUNNING}: {plugin} {down.get(plugin, 'gives no answer')}"
    if reply is None:
        silent = ", ".join(f"{name} {why}" for name, why in sorted(down.items()))
        return "no plugin offers it" + (f"; {NOT_RUNNING}: {silent}" if silent else "")
    return _of_configuration(reply) or _of_probe(reply) or _of_devices(one, reply, row)


def _of_configuration(reply: Reply) -> str:
    problems = _list(_part(reply, "config"), "problems")
    if not problems:
        return ""
    first = problems[0]
    return f"configuration broken: {first.get('file', '?')}:{first.get('line', 0)}: {first.get('message', '')}"


def _of_probe(reply: Reply) -> str:
    probe = _part(reply, "probe")
    doing, seconds = probe.get("doing") or "its first scan", probe.get("doing_seconds")
    since = f" since {seconds:.0f} s" if isinstance(seconds, int | float) else ""
    if probe.get("state") == "hung":
        return f"probe hung: {doing}{since}"
    if probe.get("error"):
        return f"scan failed: {probe['error']}"
    return "" if _scanned(reply) or reply.get("detached") else f"probe busy: {doing}{since}"


def _of_devices(one: Expectation, reply: Reply, row: Reply | None) -> str:
    if reply.get("detached"):
        return "detached by an operator"
    if reply.get("absent"):
        return f"no hardware: {reply['absent']}"
    kinds = _part(row or {}, "unhealthy")
    if kinds:
        texts = [f"{number} {'device gone' if kind == 'gone' else kind}" for kind, number in sorted(kinds.items())]
        return ", ".join(texts)
    healthy = (row or {}).get("healthy")
    if one.where and isinstance(healthy, int) and healthy >= one.count:
        return "others are there, but not with these attributes"
    for item in _list(reply, "skipped"):
        return f"device gone, or driver not bound; left out: {item.get('what')}: {item.get('reason')}"
    return "device gone, or driver not bound"


def _part(value: Reply, name: str) -> Reply:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(value: Reply, name: str) -> list[Reply]:
    found = value.get(name)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list | tuple) else []
