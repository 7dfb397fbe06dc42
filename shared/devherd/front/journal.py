"""What a front tells the audit trail, and counts: one method for each thing that happens to it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from devherd.audit import Audit
from devherd.config import Problem
from devherd.front.counters import Counters
from devherd.front.kubeletlife import KubeletLife
from devherd.kubelet.afterwards import AFTERWARDS
from devherd.kubelet.identity import Identity
from devherd.kubelet.regstatus import REFUSED, STOPPED, TAKEN, RegistrationStatus
from devherd.log import event
from devherd.values import Member, Snapshot

logger = logging.getLogger(__name__)

MOST = 50
"""Ids one event names at most, and verdicts noted one by one after one change of a list."""


class Journal:
    """A front's diary. Nothing here blocks or raises, so it may be called from anywhere on the loop."""

    def __init__(self, audit: Audit, proc: str = "/proc") -> None:
        self.audit = audit
        self.counters = Counters()
        self.kubelet = KubeletLife(audit.note, proc)
        self._lists: dict[str, Mapping[str, Member]] = {}
        self._statuses: dict[str, RegistrationStatus] = {}
        self._probe_heard = time.time()
        self._probe_silent = False

    def note(self, kind: str, /, **fields: object) -> None:
        """Something that is only noted."""
        self.audit.note(kind, **fields)

    # -- configuration

    def configuration_loaded(self, path: str) -> None:
        """A reload found good files."""
        event(logger, "info", "configuration loaded", path=path)
        self.note("config-loaded", path=path)

    def configuration_refused(self, path: str, problems: Sequence[Problem]) -> None:
        """The files are wrong; what was in force stays."""
        self.counters.configurations_refused += 1
        for problem in problems:
            event(logger, "error", "configuration not loaded", problem=str(problem))
        self.note("config-refused", path=path, problems=[str(problem) for problem in problems[:20]])

    # -- the kubelet

    def kubelet_seen(self, identity: Identity) -> None:
        """Another kubelet listens than before."""
        self.counters.kubelets += 1
        self.audit.hold()
        asyncio.get_running_loop().call_later(AFTERWARDS, self.audit.release)
        self.kubelet.seen(identity)

    def following(self, resource: str) -> Callable[[RegistrationStatus], None]:
        """What a resource's registration calls with each new status."""
        return lambda status: self._registration(resource, status)

    def _registration(self, resource: str, new: RegistrationStatus) -> None:
        old = self._statuses.get(resource, RegistrationStatus())
        self._statuses[resource] = new
        if old.stream_since and new.stream_since != old.stream_since and new.state != STOPPED:
            self.counters.resources[resource].streams_lost += 1
            self._stream_lost(resource, old)
        if new.count > old.count:
            pid = new.identity.pid if new.identity else None
            milliseconds = round(new.duration_ms, 3)
            self.note("registered", resource=resource, ms=milliseconds, kubelet_pid=pid, socket=new.endpoint)
        if new.state == TAKEN and (old.state != TAKEN or old.error != new.error):
            self.counters.resources[resource].taken += old.state != TAKEN
            self.note("taken", resource=resource, reason=new.error)
        elif old.state == TAKEN != new.state:
            self.note("taken-back", resource=resource, state=new.state)
        if new.state == REFUSED and (old.state != REFUSED or old.error != new.error):
            self.note("registration-refused", resource=resource, reason=new.error)
        if new.state == STOPPED:
            self._statuses.pop(resource, None)

    def _stream_lost(self, resource: str, old: RegistrationStatus) -> None:
        seconds = round(max(0.0, time.monotonic() - old.stream_opened), 3)
        pid = old.identity.pid if old.identity else None
        self.note("stream-lost", resource=resource, seconds=seconds, kubelet_pid=pid)
        self.kubelet.look_soon()

    # -- lists

    def listed(self, snapshot: Snapshot, members: Mapping[str, Member]) -> None:
        """A resource's list changed: which ids came and went, and which verdicts changed and why."""
        self._log(snapshot)
        old = self._lists.get(snapshot.resource)
        self._lists[snapshot.resource] = members
        resource, before = snapshot.resource, old or {}
        added = [id for id in members if id not in before]
        removed = [id for id in before if id not in members]
        if added or removed or old is None or snapshot.left_out:
            self.note(
                "list",
                resource=resource,
                number=snapshot.number,
                devices=len(members),
                healthy=sum(member.healthy for member in members.values()),
                added=added[:MOST],
                removed=removed[:MOST],
                **({"left_out": len(snapshot.left_out)} if snapshot.left_out else {}),
            )
        changed = [member for id, member in members.items() if _verdict_changed(before.get(id), member)]
        for member in changed[:MOST]:
            reason = {"reason": member.reason, "fault": member.kind} if not member.healthy else {}
            self.note("verdict", resource=resource, id=member.id, healthy=member.healthy, **reason)
        if len(changed) > MOST:
            self.note("verdicts-cut", resource=resource, more=len(changed) - MOST)

    def _log(self, snapshot: Snapshot) -> None:
        bad = [member for member in snapshot.members if not member.healthy]
        fields = {"resource": snapshot.resource, "devices": len(snapshot.members), "unhealthy": len(bad)}
        if snapshot.left_out:
            event(logger, "error", "the list is too long for the kubelet", left_out=len(snapshot.left_out))
        event(logger, "info", "new list", number=snapshot.number, **fields)
        for member in bad[:20]:
            event(logger, "warning", "unhealthy", resource=snapshot.resource, id=member.id, reason=member.reason)

    def dropped(self, resource: str) -> None:
        """A resource is no longer served."""
        self._lists.pop(resource, None)
        self.counters.resources.pop(resource, None)
        self.note("withdrawn", resource=resource)

    # -- allocations

    def allocated(self, resource: str, containers: Sequence[Sequence[str]], seconds: float) -> None:
        """The kubelet was given answers for these ids, in so many seconds."""
        counters = self.counters.resources[resource]
        counters.allocations += len(containers)
        counters.allocated += sum(len(ids) for ids in containers)
        self.counters.allocate.observe(seconds)
        milliseconds = round(seconds * 1000, 3)
        for ids in containers:
            self.note("allocated", resource=resource, ids=sorted(ids)[:MOST], devices=len(ids), ms=milliseconds)

    def refused(self, resource: str, containers: Sequence[Sequence[str]], reason: str) -> None:
        """The kubelet was told no."""
        self.counters.resources[resource].refusals += 1
        ids = sorted({id for container in containers for id in container})
        self.note("refused", resource=resource, ids=ids[:MOST], devices=len(ids), reason=reason)

    def released(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Nobody holds these (resource, id) any more."""
        by_resource: dict[str, list[str]] = {}
        for resource, id in pairs:
            by_resource.setdefault(resource, []).append(id)
        for resource, ids in by_resource.items():
            self.counters.resources[resource].released += len(ids)
            self.note("released", resource=resource, ids=ids[:MOST], devices=len(ids))

    def prepared(self, resource: str, ids: Sequence[str], error: str) -> None:
        """PreStartContainer's work was done, or failed."""
        self.counters.prepares += 1
        if error:
            self.counters.prepare_failures += 1
            self.note("prepare-failed", resource=resource, ids=sorted(ids)[:MOST], reason=error)

    # -- the probe

    def probe_answered(self) -> None:
        """The probe lives."""
        now = time.time()
        if self._probe_silent:
            silent = round(max(0.0, now - self._probe_heard), 3)
            self.note("heartbeat-back", what="probe", since=round(self._probe_heard, 3), seconds=silent)
        self._probe_heard, self._probe_silent = now, False

    def probe_silent(self, reason: str) -> None:
        """The probe missed a deadline or ended. Noted once, with the moment it was heard last."""
        if not self._probe_silent:
            self.note("heartbeat-stopped", what="probe", since=round(self._probe_heard, 3), reason=reason)
        self._probe_silent = True

    def probe_replaced(self, hung: bool, pid: int | None, doing: str, reason: str) -> None:
        """The probe is given up and a new one is due."""
        if hung:
            self.counters.probe_hangs += 1
        else:
            self.counters.probe_ends += 1
        self.note("probe-replaced", cause="hung" if hung else "ended", pid=pid, doing=doing, reason=reason)


def _verdict_changed(before: Member | None, now: Member) -> bool:
    """A new id is worth a line only if it is unhealthy."""
    if before is now:
        return False
    if before is None:
        return not now.healthy
    return (before.healthy, before.kind, before.reason) != (now.healthy, now.kind, now.reason)
