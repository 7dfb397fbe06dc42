"""What was answered for each id, so that an answer the kubelet still replays can be told from a wrong one.

The kubelet calls Allocate once and replays the answer for the life of the pod, over container restarts, its
own restarts and reboots. If the path in that answer leads to another physical device by then, the id must be
Unhealthy before the kubelet admits the pod, or the container gets a device that is not its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from devherd.values import Device, Node, Parts


class Answer(Struct, frozen=True, omit_defaults=True):
    """One id's part of an answer. `boot_id` and `recorded` (Unix seconds) say when it was given."""

    resource: str
    id: str
    parts: Parts
    boot_id: str = ""
    recorded: float = 0.0


class SavedLedger(Struct, frozen=True, omit_defaults=True):
    """The ledger as it is written to disk, ordered by resource and id."""

    answers: tuple[Answer, ...] = ()


class Ledger:
    """The answers that may still be replayed.

    `dirty` is true while there is something to write; `dump` clears it. Whoever fails to write sets it again.
    """

    def __init__(self, saved: SavedLedger | None = None) -> None:
        self._answers: dict[str, dict[str, Answer]] = {}
        self.dirty = False
        for answer in saved.answers if saved else ():
            self._answers.setdefault(answer.resource, {})[answer.id] = answer

    @classmethod
    def load(cls, saved: SavedLedger | None) -> Ledger:
        """A ledger as it was saved; an empty one for None."""
        return cls(saved)

    def dump(self) -> SavedLedger:
        """The ledger's content, to be written; `dirty` is false afterwards."""
        self.dirty = False
        return SavedLedger(self.answers())

    def record(self, resource: str, device_id: str, parts: Parts, boot_id: str, wall: float) -> None:
        """Note what Allocate answers for an id. The same answer again changes nothing."""
        of_resource = self._answers.setdefault(resource, {})
        known = of_resource.get(device_id)
        if known is not None and known.parts == parts and known.boot_id == boot_id:
            return
        of_resource[device_id] = Answer(resource, device_id, parts, boot_id, wall)
        self.dirty = True

    def forget(self, resource: str, device_id: str) -> None:
        """Nobody holds the id any more: its answer will not be replayed."""
        of_resource = self._answers.get(resource, {})
        if of_resource.pop(device_id, None) is None:
            return
        if not of_resource:
            del self._answers[resource]
        self.dirty = True

    def answer(self, resource: str, device_id: str) -> Answer | None:
        """What was answered for an id, if it may still be replayed."""
        return self._answers.get(resource, {}).get(device_id)

    def answers(self) -> tuple[Answer, ...]:
        """Every answer, ordered by resource and id."""
        return tuple(
            answer for _, by_id in sorted(self._answers.items()) for _, answer in sorted(by_id.items(), key=_first)
        )

    def ids(self, resource: str) -> frozenset[str]:
        """The ids of a resource that have an answer."""
        return frozenset(self._answers.get(resource, ()))

    def stale(self, resource: str, device: Device) -> str:
        """Why the answer given for this device would be wrong now; empty: it is still right, or none was given."""
        answer = self.answer(resource, device.id)
        return "" if answer is None else _difference(answer.parts, device)

    def stale_in(self, resource: str, found: Mapping[str, Device]) -> dict[str, str]:
        """The same for all found devices of a resource: id -> reason, only those that are stale."""
        reasons: dict[str, str] = {}
        for device_id in self._answers.get(resource, ()):
            device = found.get(device_id)
            reason = "" if device is None else self.stale(resource, device)
            if reason:
                reasons[device_id] = reason
        return reasons


def _first(item: tuple[str, Answer]) -> str:
    return item[0]


def _difference(given: Parts, device: Device) -> str:
    """Compare only what names a physical device: an operator who edits a mount or a variable must not lose pods."""
    now = device.parts
    by_path: dict[str, list[Node]] = {}
    for node in now.nodes:
        by_path.setdefault(node.host_path, []).append(node)
    for node in given.nodes:
        present = by_path.get(node.host_path)
        if not present:
            return f"answer stale: {node.host_path} is no longer part of this device"
        if not any(_same_device(node, other) for other in present):
            return f"answer stale: {node.host_path} is now {_name(present[0])}, was {_name(node)}"
    lost = sorted(set(given.cdi).difference(now.cdi, device.names))
    if lost:
        return f"answer stale: CDI device {lost[0]} is no longer part of this device"
    other = sorted(set(given.picks).difference(device.names, now.picks))
    return f"answer stale: {other[0]} no longer leads to this device" if other else ""


def _same_device(given: Node, now: Node) -> bool:
    if given.thing != now.thing:
        return False
    # A sysfs or PCI identity outlives a changed device number (the runtime looks the number up by path when it
    # creates the container); where the number is all there is, it has to be the same.
    return not _only_number(given) or (given.kind, given.major, given.minor) == (now.kind, now.major, now.minor)


def _only_number(node: Node) -> bool:
    return not node.thing or node.thing.startswith(("c:", "b:"))


def _name(node: Node) -> str:
    return f"{node.kind} {node.major}:{node.minor}" if _only_number(node) else node.thing
