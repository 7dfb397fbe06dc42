"""Asks every front of a devherd at once. One that does not answer never hides the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devherd.cli.exits import NOT_READY, Fault
from devherd.cli.place import Place, running_instances

Json = dict[str, Any]
SUFFIX = ".control.sock"
NOT_FRONTS = frozenset({"run", "watcher", "sim", "kubelet", "exporter"})
"""Control sockets beside those of the fronts."""


@dataclass(frozen=True)
class Down:
    """A plugin that gives no answer, and why, for a person."""

    plugin: str
    why: str


@dataclass(frozen=True)
class Answers:
    """What the fronts said to one request, in order of plugin name."""

    replies: tuple[Json, ...]
    down: tuple[Down, ...]

    def down_json(self) -> list[Json]:
        """The silent plugins as they appear in documents."""
        return [{"plugin": item.plugin, "why": item.why} for item in self.down]

    def __bool__(self) -> bool:
        return bool(self.replies or self.down)


def sockets(run: Path) -> dict[str, Path]:
    """Plugin name -> control socket. Raises Fault when the folder may not be read."""
    try:
        found = sorted(path for path in run.iterdir() if path.name.endswith(SUFFIX))
    except PermissionError:
        raise Fault(f"{run}: permission denied", "Ask as root, like the processes there run.") from None
    except OSError:
        return {}
    named = {path.name[: -len(SUFFIX)]: path for path in found}
    return {name: path for name, path in named.items() if name not in NOT_FRONTS}


def ask_one(path: Path, request: Mapping[str, Any], timeout: float = 2.0) -> Json:
    """One control request. Raises Fault with the reason in words."""
    from devherd.control import ControlError, ask

    try:
        reply = ask(str(path), dict(request), timeout=timeout)
    except ControlError as error:
        raise Fault(str(error)) from None
    if reply.get("error"):
        raise Fault(str(reply["error"]))
    return reply


def ask_fronts(place: Place, request: Mapping[str, Any], timeout: float = 2.0) -> Answers:
    """The same request to every front, in parallel; programs that supervisord says are down are listed too."""
    found = sockets(place.run)
    results = _parallel(lambda path: ask_one(path, request, timeout), list(found.values()))
    replies, down = [], []
    for name, result in zip(found, results, strict=True):
        if isinstance(result, Fault):
            down.append(Down(name, result.what))
        else:
            result.setdefault("plugin", name)
            replies.append(result)
    return Answers(tuple(replies), tuple(down + _stopped(place, frozenset(found))))


def require(answers: Answers, place: Place) -> Answers:
    """Raises Fault when nothing is running at all."""
    if answers:
        return answers
    if place.instance is not None and place.instance not in running_instances():
        again = f"devherd run --simulate --name {place.instance.name}"
        raise Fault(
            f"private instance {place.instance.name!r} ({place.instance}) has ended, and was not able to clean up",
            f"Start it anew, which removes what is left: `{again}`.",
            code=NOT_READY,
        )
    raise Fault(
        f"no plugin of devherd is running: there is no control socket in {place.run}",
        "Start it with `systemctl start devherd`, or try it on a simulated node: `devherd run --simulate`.",
        code=NOT_READY,
    )


def _stopped(place: Place, answered: frozenset[str]) -> list[Down]:
    """Programs supervisord knows that have no control socket: not started yet, without hardware, or failed."""
    from devherd.cli.programs import programs

    ours = [item for item in programs(place) if item.name not in answered and item.name not in NOT_FRONTS]
    return [Down(item.name, item.words()) for item in ours if item.worth_telling()]


def _parallel(call: Callable[[Path], Json], paths: Sequence[Path]) -> list[Json | Fault]:
    def guarded(path: Path) -> Json | Fault:
        try:
            return call(path)
        except Fault as fault:
            return fault

    if len(paths) < 2:
        return [guarded(path) for path in paths]
    with ThreadPoolExecutor(max_workers=min(16, len(paths))) as pool:
        return list(pool.map(guarded, paths))
