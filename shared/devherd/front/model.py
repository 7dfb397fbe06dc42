"""What one plugin knows: boards, health, tenancy, ledger, conflicts. Synchronous, no sockets, time passed in.

Data flows one way: an inventory and evidence come in, snapshots go out. The front's loop is the only caller,
so every method sees a consistent picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from devherd.claims import Planned, conflicts_by_id
from devherd.front.detached import Wish, parked
from devherd.health.engine import HealthEngine
from devherd.ledger import Ledger
from devherd.settings import Settings
from devherd.snapshot import CONFLICT, GONE, STALE, Remembered, build, expire
from devherd.tenancy import Tenancy
from devherd.values import (
    Clears,
    Device,
    Evidence,
    Inventory,
    Member,
    Parts,
    Preference,
    Resource,
    Skipped,
    Snapshot,
    Verdict,
)


class Refused(Exception):
    """An Allocate that must not be answered; `unknown` tells an unknown id from an unhealthy one.

    The text ends up in the pod's status, so it is short.
    """

    def __init__(self, text: str, unknown: bool = False) -> None:
        super().__init__(text)
        self.unknown = unknown


@dataclass
class Board:
    """One resource: what the last scan found, what is remembered, and the snapshot made of both."""

    name: str
    snapshot: Snapshot
    members: dict[str, Member] = field(default_factory=dict)
    found: dict[str, Device] = field(default_factory=dict)
    remembered: dict[str, Remembered] = field(default_factory=dict)
    lost: dict[str, Device] = field(default_factory=dict)
    pre_start: bool = False
    preference: Preference | None = None
    limit: int = 0
    limit_text: str = ""
    withdrawn: bool = False

    def known(self, id: str) -> Device | None:
        """The device as it is, or as it was when it was last seen; for people."""
        return self.found.get(id) or self.lost.get(id)

    def adopt(self, resource: Resource) -> None:
        """Take over how the resource is to be served."""
        self.pre_start, self.preference = resource.pre_start, resource.preference
        self.limit, self.limit_text = resource.limit, resource.limit_text

    @property
    def things(self) -> frozenset[str]:
        """Every physical thing that this resource stands on."""
        return frozenset(thing for device in self.found.values() for thing in device.things)


class Model:
    """The state of one plugin; see the module's text."""

    def __init__(
        self, settings: Settings, health: HealthEngine, ledger: Ledger, tenancy: Tenancy, boot_id: str
    ) -> None:
        self.settings = settings
        self.health = health
        self.ledger = ledger
        self.tenancy = tenancy
        self.boot_id = boot_id
        self.boards: dict[str, Board] = {}
        self.inventory = Inventory()
        self.conflicts: dict[str, dict[str, str]] = {}
        self.verdicts: Mapping[str, Verdict] = {}
        self.detached: Wish | None = None
        self._gone: set[str] = set()

    # -- what comes in

    def recall(self, inventory: Inventory, same_boot: bool, wall: float) -> None:
        """Start from the last inventory.

        Within one boot it holds until the first scan says otherwise; after a boot device numbers may have moved,
        so its ids are listed, Unhealthy, until they are found again.
        """
        for resource in inventory.resources:
            board = self._board(resource.name)
            if same_boot:
                board.found = {device.id: device for device in resource.devices}
                board.adopt(resource)
            else:
                self._remember(board, resource.devices, wall)
        if same_boot:
            self.inventory = inventory

    def recall_held(self, held: Mapping[str, Iterable[str]], wall: float) -> None:
        """Add the ids that the kubelet's checkpoint holds for our resources: none of them may leave the list."""
        for name, ids in held.items():
            board = self.boards.get(name)
            if board is None:
                continue
            for id in ids:
                if id not in board.found and id not in board.remembered:
                    board.remembered[id] = Remembered(id=id, numa=(), things=(), last_seen=wall)

    def apply(self, inventory: Inventory, now: float, wall: float) -> None:
        """Take a scan's result. What it lacks is remembered; what came back is welcome."""
        before = self._things()
        listed = {resource.name: resource for resource in inventory.resources}
        for name, resource in listed.items():
            board = self._board(name)
            found = {device.id: device for device in resource.devices}
            self._remember(board, (device for id, device in board.found.items() if id not in found), wall)
            board.found = found
            board.remembered = {id: kept for id, kept in board.remembered.items() if id not in found}
            board.adopt(resource)
            board.withdrawn = False
        for name, board in self.boards.items():
            if name not in listed:
                self._remember(board, board.found.values(), wall)
                board.found, board.withdrawn = {}, True
        self.inventory = inventory
        said = {item.thing for item in inventory.evidence if item.kind == GONE}
        presence = (item for item in self._presence(before) if item.thing not in said)
        self.health.observe((*presence, *inventory.evidence), now, wall, seen=self._things())

    def observe(self, evidence: Iterable[Evidence], now: float, wall: float) -> None:
        """Take what a complete round of checks gathered."""
        self.health.observe(tuple(evidence), now, wall, source="check", seen=self._things())

    def contested(self, planned: Planned, lost: Mapping[str, str]) -> None:
        """Take what the claim registry said: ids whose things belong to somebody else are not offered."""
        self.conflicts = {
            resource.name: {**conflicts_by_id(resource, lost), **planned.conflicts.get(resource.name, {})}
            for resource in self.inventory.resources
        }

    def kubelet_changed(self, identity: str, now: float) -> None:
        """Another kubelet answers: what it has not said yet is not to be read as nothing."""
        self.health.kubelet_changed(now, identity)
        self.tenancy.kubelet_changed(now)

    # -- what goes out

    def rebuild(self, now: float, wall: float) -> list[Board]:
        """Make new snapshots at monotonic `now` and Unix time `wall`; returns the boards whose list changed."""
        things = {board.name: board.things for board in self.boards.values()}
        held = {name: self.tenancy.held(name) for name in self.boards}
        verdicts = self.verdicts = self.health.verdicts(now, self._held_things(held), things)
        changed = []
        for board in self.boards.values():
            board.remembered = expire(board.remembered, held[board.name], wall, self.settings.snapshots.grace)
            board.lost = {id: device for id, device in board.lost.items() if id in board.remembered}
            snapshot = build(
                board.name,
                board.snapshot.number + 1,
                board.found,
                board.remembered,
                held[board.name],
                verdicts,
                self.ledger.stale_in(board.name, board.found),
                parked(self.detached, board.found, board.found, held[board.name]),
                self.conflicts.get(board.name, {}),
                listed=board.members,
            )
            if board.snapshot.number == 0 or snapshot.members != board.snapshot.members:
                board.snapshot = snapshot
                board.members = {member.id: member for member in snapshot.members}
                changed.append(board)
        return changed

    def next_change(self, now: float, wall: float) -> float | None:
        """When (monotonic) a rebuild is due though nothing came in; None: never."""
        due = [self.health.next_change(now)]
        grace = self.settings.snapshots.grace
        for board in self.boards.values():
            held = self.tenancy.held(board.name)
            due += [now + kept.last_seen + grace - wall for id, kept in board.remembered.items() if id not in held]
        times = [time for time in due if time is not None]
        return min(times) if times else None

    def resettable(self, now: float) -> list[str]:
        """Things that a reset would bring back, that have long been listed Unhealthy, and that nobody holds."""
        if self.tenancy.settling(now):
            return []
        held = self._held_things({name: self.tenancy.held(name) for name in self.boards})
        return [thing for thing in self.health.needs_reset() if thing in self.verdicts and thing not in held]

    def waiting(self) -> bool:
        """Tell whether some id stays, or stays Unhealthy, only until its holder lets go, or is about to be released."""
        return (
            self.tenancy.doubtful
            or self.detached is not None
            or any(
                board.withdrawn or board.remembered or any(member.kind == STALE for member in board.snapshot.members)
                for board in self.boards.values()
            )
        )

    def finished(self) -> list[str]:
        """Resources that were withdrawn and whose list has drained."""
        return [name for name, board in self.boards.items() if board.withdrawn and not board.snapshot.members]

    def drop(self, name: str) -> None:
        """Forget a finished resource."""
        self.boards.pop(name, None)

    def parts(self, resource: str, ids: Iterable[str]) -> dict[str, Parts]:
        """The answer parts of these ids, in id order. Raises Refused."""
        board = self.boards[resource]
        wanted = sorted(set(ids))
        if 0 < board.limit < len(wanted):
            text = board.limit_text or f"{resource}: a container may ask for at most {board.limit}; found {{found}}"
            raise Refused(text.replace("{found}", str(len(wanted))))
        found = {}
        for id in wanted:
            member, device = board.members.get(id), board.found.get(id)
            if member is None:
                raise Refused(f"{resource}: no device {id}", unknown=True)
            if not member.healthy or device is None:
                raise Refused(f"{resource}: device {id} is unhealthy: {member.reason or 'it is gone'}")
            found[id] = device.parts
        return found

    def granted(self, resource: str, parts: Mapping[str, Parts], now: float, wall: float) -> None:
        """Note in ledger and tenancy that these answers are about to be given."""
        for id, part in parts.items():
            self.ledger.record(resource, id, part, self.boot_id, wall)
        self.tenancy.allocated(resource, tuple(parts), now)

    def holders(self) -> list[dict[str, str]]:
        """Who holds what this plugin let go of, or would: resource, id and owner."""
        return [
            {"resource": board.name, "id": id, "held_by": self.tenancy.owner(board.name, id) or "somebody"}
            for board in self.boards.values()
            for id in sorted(self.tenancy.held(board.name))
            if self.detached is None or self.detached.means(id, board.known(id))
        ]

    def was_reset(self, now: float) -> None:
        """An operator reset what was detached: what only a reset ends is over, if a look finds it good."""
        for board in self.boards.values():
            for id, device in {**board.lost, **board.found}.items():
                if self.detached is not None and self.detached.means(id, device):
                    for thing in device.things:
                        self.health.clear(thing, Clears.RESET, now)

    def release(self, now: float) -> list[tuple[str, str]]:
        """Ids that nobody holds any more, once each; their answers are forgotten."""
        released = list(self.tenancy.released(now))
        for resource, id in released:
            self.ledger.forget(resource, id)
        return released

    def reason(self, board: Board, member: Member, now: float) -> str:
        """Why an id is Unhealthy and, where a verdict is the reason, what will end that."""
        device = board.found.get(member.id)
        if member.healthy or device is None or member.kind in (STALE, CONFLICT):
            return member.reason
        return "; ".join(line for thing in device.things for line in self.health.explain(thing, now)) or member.reason

    def since(self, board: Board, id: str) -> float | None:
        """Since when (Unix seconds) an id is Unhealthy, where that is known."""
        device, kept = board.found.get(id), board.remembered.get(id)
        if device is None:
            return kept.last_seen if kept is not None else None
        times = [self.verdicts[thing].since for thing in device.things if thing in self.verdicts]
        return min(times) if times else None

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What the last scan saw and did not offer."""
        return self.inventory.skipped

    # -- helpers

    def _board(self, name: str) -> Board:
        return self.boards.setdefault(name, Board(name, Snapshot(resource=name, number=0, members=())))

    def _remember(self, board: Board, devices: Iterable[Device], wall: float) -> None:
        for device in devices:
            board.lost[device.id] = device
            board.remembered[device.id] = Remembered(
                id=device.id, numa=device.numa, things=device.things, last_seen=wall
            )

    def _things(self) -> set[str]:
        return {thing for board in self.boards.values() for thing in board.things}

    def _presence(self, before: set[str]) -> list[Evidence]:
        """Hard evidence from the scan itself: things that went, and things that came back.

        A vendor that speaks of presence itself knows better (of a unit whose partner is gone, this one is still there).
        """
        now = self._things()
        went, came = before - now, self._gone & now
        self._gone = (self._gone | went) - came
        return [
            *(Evidence(thing, GONE, bad=True, reason="the device is gone") for thing in sorted(went)),
            *(Evidence(thing, GONE, bad=False) for thing in sorted(came)),
        ]

    def _held_things(self, held: Mapping[str, frozenset[str]]) -> frozenset[str]:
        return frozenset(
            thing
            for name, ids in held.items()
            for id in ids
            if (device := self.boards[name].found.get(id)) is not None
            for thing in device.things
        )
