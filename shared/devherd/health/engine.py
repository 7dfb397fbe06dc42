"""The health policy: evidence in, verdicts about physical things out.

Pure logic. Timers use the monotonic time passed in as `now`; `wall` (Unix seconds) is only for people. Whoever
runs an engine calls `verdicts` after every input and at `next_change`.

- Hard evidence counts at once. Soft evidence counts after the debounce and when it was seen at least twice (a
  source that falls silent after a bad word is believed after three debounces).
- For a while after a boot or a new kubelet, soft faults cannot make a held thing Unhealthy: the kubelet would
  refuse the pod that holds it, for good.
- A soft fault that more than `mass_fraction` of a resource shows at once (at least two things) is a node problem
  and lowers nothing; what was lowered before stays so. When it ends, the debounce starts again.
- Healthy again after the evidence was good for the hold-off, which doubles with each relapse of the thing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from devherd.health.fault import RANK, Fault
from devherd.health.mass import mark_mass
from devherd.health.saved import SavedFault, SavedHealth, SavedThing
from devherd.settings import Health
from devherd.values import Clears, Evidence, Severity, Verdict

# A thing that is in no resource and was not heard of for a day is forgotten (numbers of unplugged hardware).
FORGET_AFTER = 86400.0
_NEVER = float("inf")


@dataclass
class _Thing:
    faults: dict[str, Fault] = field(default_factory=dict)
    relapses: int = 0
    recovered_at: float | None = None
    seen: float = 0.0
    down: bool = False

    @property
    def lowered(self) -> bool:
        return any(fault.active for fault in self.faults.values())

    @property
    def ends_by(self) -> Clears | None:
        """What ends all its faults that count."""
        ends = (fault.clears for fault in self.faults.values() if fault.active)
        return max(ends, key=RANK.__getitem__, default=None)

    def note_recovery(self, now: float) -> None:
        """Called when all changes of one moment are made: one fault after another is no recovery between."""
        if self.down and not self.lowered:
            self.down, self.recovered_at = False, now


class HealthEngine:
    """Health of all things of one plugin.

    `saved` is what an earlier process dumped; of another boot only faults that an operator must clear are taken
    over. `dirty` is true when there is something new to save; `dump` clears it.
    """

    def __init__(self, settings: Health, boot_id: str, now: float, saved: SavedHealth | None = None) -> None:
        self._settings = settings
        self._boot_id = boot_id
        self._things: dict[str, _Thing] = {}
        self._held: frozenset[str] = frozenset()
        self._problems: tuple[str, ...] = ()
        self._grace_until = now + settings.boot_grace
        self._kubelet = ""
        self.dirty = False
        if saved is not None:
            self._restore(saved, now)

    def configure(self, settings: Health) -> None:
        """Use other times from now on; what has begun is judged by them as well."""
        self._settings = settings

    @property
    def node_problems(self) -> tuple[str, ...]:
        """Soft faults that too much of a resource shows at once, as of the last `verdicts`; one sentence each."""
        return self._problems

    @property
    def grace_until(self) -> float:
        """Until then soft faults cannot make a held thing Unhealthy (monotonic seconds)."""
        return self._grace_until

    def kubelet_changed(self, now: float, identity: str = "") -> None:
        """Another kubelet answers. The same non-empty `identity` as before, also before a restart, is no change."""
        if identity and identity == self._kubelet:
            return
        self._kubelet = identity
        self._grace_until = max(self._grace_until, now + self._settings.boot_grace)
        self.dirty = True

    def observe(
        self, evidence: Iterable[Evidence], now: float, wall: float, source: str = "scan", seen: Collection[str] = ()
    ) -> None:
        """Take evidence from a source (`scan`, `check`).

        `seen` are the things a complete report looked at: a fault of this source that a probe clears and that the
        report does not mention is good now. A partial report (events) leaves it empty.
        """
        said: set[tuple[str, str]] = set()
        for item in evidence:
            said.add((item.thing, item.kind))
            if item.bad:
                self._bad(item, source, now, wall)
            else:
                self._good(item.thing, item.kind, now, item.clears)
        if not seen:
            return
        looked = seen if isinstance(seen, (set, frozenset)) else frozenset(seen)
        for thing, record in self._things.items():
            if thing not in looked:
                continue
            record.seen = now
            for kind, fault in list(record.faults.items()):
                if fault.source == source and fault.clears is Clears.PROBE and (thing, kind) not in said:
                    self._good(thing, kind, now)

    def clear(self, thing: str, by: Clears, now: float) -> tuple[str, ...]:
        """Something happened to the thing that ends faults: a reset, a reboot, an operator's word.

        Ends every fault that this or something weaker clears and returns their kinds. After an operator's word or
        a reboot the fault is forgotten at once, after anything weaker the thing still has to stay good for its
        hold-off. An operator's word also forgets the relapses.
        """
        record = self._things.get(thing)
        if record is None:
            return ()
        ended = tuple(sorted(kind for kind, fault in record.faults.items() if RANK[fault.clears] <= RANK[by]))
        for kind in ended:
            if by in (Clears.OPERATOR, Clears.REBOOT) or record.faults[kind].pending:
                del record.faults[kind]
            else:
                record.faults[kind].cleared(now)
        record.note_recovery(now)
        if by is Clears.OPERATOR:
            record.relapses, record.recovered_at = 0, None
        self.dirty = True
        return ended

    def verdicts(
        self, now: float, held_things: frozenset[str], resource_things: Mapping[str, frozenset[str]]
    ) -> dict[str, Verdict]:
        """The unhealthy things; every other one is HEALTHY.

        `held_things` are those a pod holds; `resource_things` says which things each resource stands on.
        """
        self._held = held_things
        for record in self._things.values():
            self._drop_ended(record, now)
        pending = {
            thing: [fault for fault in record.faults.values() if fault.pending and fault.soft]
            for thing, record in self._things.items()
        }
        self._problems = mark_mass(pending, resource_things, self._settings.mass_fraction, now)
        result: dict[str, Verdict] = {}
        for thing, record in list(self._things.items()):
            if not self._shielded(thing, now):
                self._activate_ripe(record, now)
            record.note_recovery(now)
            if self._forgettable(record, now, thing in held_things or _offered(thing, resource_things)):
                self.dirty |= bool(record.faults or record.recovered_at is not None)
                del self._things[thing]
                continue
            verdict = self._verdict(thing, record, now)
            if verdict is not None:
                result[thing] = verdict
        return result

    def next_change(self, now: float) -> float | None:
        """When `verdicts` may differ next without new input (monotonic seconds); None: not by itself."""
        times: list[float] = []
        for thing, record in self._things.items():
            shielded_until = self._grace_until if self._shielded(thing, now) else 0.0
            hold_off = self._hold_off(record)
            for fault in record.faults.values():
                if fault.active:
                    times.append(fault.over_at(hold_off, self._settings.hold_off_max, record.seen))
                    if fault.soft and shielded_until:
                        times.append(shielded_until)
                elif fault.pending and not fault.mass:
                    ripe = fault.ripens_at(self._settings.debounce)
                    times.append(max(ripe, shielded_until) if fault.soft else ripe)
                    if not fault.confirmed:
                        times.append(fault.bad_since + self._settings.debounce)
        return min((when for when in times if now < when < _NEVER), default=None)

    def wants_evidence(self, now: float) -> bool:
        """Whether a soft fault has lasted its debounce but was seen only once: checking now settles it."""
        return any(
            fault.pending
            and fault.soft
            and not fault.confirmed
            and fault.clears is not Clears.TIME
            and fault.bad_since + self._settings.debounce <= now
            for record in self._things.values()
            for fault in record.faults.values()
        )

    def needs_reset(self) -> tuple[str, ...]:
        """Things that count as bad and that a reset would bring back, ordered."""
        return tuple(sorted(thing for thing, record in self._things.items() if record.ends_by is Clears.RESET))

    def explain(self, thing: str, now: float) -> tuple[str, ...]:
        """What is known against a thing and what will end it, one line for each kind of fault."""
        record = self._things.get(thing)
        if record is None:
            return ()
        return tuple(self._explain(thing, record, fault, now) for _, fault in sorted(record.faults.items()))

    def dump(self, now: float) -> SavedHealth:
        """All that must outlive this process; `dirty` is false afterwards."""
        self.dirty = False
        faults = tuple(
            SavedFault(thing, f.kind, f.source, f.reason, f.severity, f.clears, f.wall, f.last_bad)
            for thing, record in sorted(self._things.items())
            for _, f in sorted(record.faults.items())
            if f.active
        )
        things = tuple(
            SavedThing(thing, record.relapses, record.recovered_at)
            for thing, record in sorted(self._things.items())
            if record.relapses or record.recovered_at is not None
        )
        return SavedHealth(self._boot_id, now, self._grace_until, self._kubelet, faults, things)

    def _restore(self, saved: SavedHealth, now: float) -> None:
        same_boot = saved.boot_id == self._boot_id
        for old in saved.faults:
            if not same_boot and old.clears is not Clears.OPERATOR:
                continue
            last_bad = min(old.last_bad, now) if same_boot else now
            fault = Fault(
                old.kind,
                old.source,
                old.reason,
                old.severity,
                old.clears,
                old.since,
                last_bad,
                last_bad,
                now,
                active=True,
            )
            record = self._things.setdefault(old.thing, _Thing(down=True))
            record.faults[old.kind] = fault
        if not same_boot:
            self.dirty = True
            return
        self._kubelet = saved.kubelet
        self._grace_until = min(saved.grace_until, self._grace_until)
        for thing in saved.things:
            record = self._things.setdefault(thing.thing, _Thing())
            record.relapses = thing.relapses
            record.recovered_at = None if thing.recovered_at is None else min(thing.recovered_at, now)

    def _bad(self, item: Evidence, source: str, now: float, wall: float) -> None:
        record = self._things.setdefault(item.thing, _Thing())
        fault = record.faults.get(item.kind)
        if fault is not None and fault.pending and self._lapsed(record, fault, now):
            fault = None
        if fault is None:
            fault = record.faults[item.kind] = Fault.begin(item, source, now, wall)
        else:
            fault.worse(item, source, now, wall)
        if not fault.soft and not fault.active:
            self._activate(record, fault, now)
        elif fault.active:
            self.dirty = True

    def _good(self, thing: str, kind: str, now: float, by: Clears = Clears.PROBE) -> None:
        """Good evidence; an empty kind: about all. `by` is what proves it: a good probe, a reset that was seen, ..."""
        record = self._things.get(thing) or _Thing()
        for fault in [fault for fault in record.faults.values() if kind in ("", fault.kind)]:
            if not fault.active:
                del record.faults[fault.kind]
            elif fault.clears is not Clears.PROBE and RANK[Clears.PROBE] < RANK[by] >= RANK[fault.clears]:
                fault.cleared(now)
                self.dirty = True
            else:
                fault.better(now)

    def _lapsed(self, record: _Thing, fault: Fault, now: float) -> bool:
        """Whether a pending event fault is so old that the next event starts a new stretch."""
        return fault.clears is Clears.TIME and now >= fault.last_bad + max(
            self._settings.debounce, self._hold_off(record)
        )

    def _drop_ended(self, record: _Thing, now: float) -> None:
        hold_off = self._hold_off(record)
        for kind, fault in list(record.faults.items()):
            if not fault.active:
                if self._lapsed(record, fault, now):
                    del record.faults[kind]
            elif now >= fault.over_at(hold_off, self._settings.hold_off_max, record.seen):
                del record.faults[kind]
                self.dirty = True

    def _activate_ripe(self, record: _Thing, now: float) -> None:
        for fault in record.faults.values():
            if fault.pending and not fault.mass and now >= fault.ripens_at(self._settings.debounce):
                self._activate(record, fault, now)

    def _activate(self, record: _Thing, fault: Fault, now: float) -> None:
        if not record.down:
            recent = record.recovered_at is not None and now - record.recovered_at <= self._settings.flap_window
            record.relapses = record.relapses + 1 if recent else 0
        fault.active = record.down = True
        self.dirty = True

    def _hold_off(self, record: _Thing) -> float:
        base = self._settings.recover
        if not record.relapses:
            return base
        # At least a second to double from; the exponent is bounded so that the number stays one.
        grown: float = max(base, 1.0) * 2.0 ** min(record.relapses, 64)
        return max(base, min(grown, self._settings.hold_off_max))

    def _shielded(self, thing: str, now: float) -> bool:
        return now < self._grace_until and thing in self._held

    def _verdict(self, thing: str, record: _Thing, now: float) -> Verdict | None:
        shielded = self._shielded(thing, now)
        worst = min(
            (fault for fault in record.faults.values() if fault.active and not (fault.soft and shielded)),
            key=lambda fault: (fault.severity is not Severity.HARD, fault.wall, fault.kind),
            default=None,
        )
        return None if worst is None else Verdict(False, worst.reason, worst.kind, worst.wall)

    def _forgettable(self, record: _Thing, now: float, known: bool) -> bool:
        if record.faults and (known or any(RANK[f.clears] > RANK[Clears.PROBE] for f in record.faults.values())):
            return False
        heard = max([record.seen, *(fault.last_word for fault in record.faults.values())])
        recovered = record.recovered_at is None or now - record.recovered_at > self._settings.flap_window
        return recovered and (not record.faults or now - heard > FORGET_AFTER)

    def _explain(self, thing: str, record: _Thing, fault: Fault, now: float) -> str:
        what = fault.reason if fault.reason == fault.kind else f"{fault.kind}: {fault.reason}"
        if fault.mass:
            return f"{what}; seen on too many devices at once to be this one's fault"
        if not fault.active:
            ripe = max(
                fault.ripens_at(self._settings.debounce), self._grace_until if self._shielded(thing, now) else now
            )
            return f"{what}; does not count yet" + (f", in {ripe - now:.0f} s it does" if ripe < _NEVER else "")
        if fault.soft and self._shielded(thing, now):
            return f"{what}; a pod holds the device, so it does not count for {self._grace_until - now:.0f} s"
        over = fault.over_at(self._hold_off(record), self._settings.hold_off_max, record.seen)
        if over < _NEVER:
            relapses = f" (relapses: {record.relapses})" if record.relapses else ""
            return f"{what}; good again, Healthy in {max(0.0, over - now):.0f} s{relapses}"
        return f"{what}; ends by: {fault.clears.value}"


def _offered(thing: str, resource_things: Mapping[str, frozenset[str]]) -> bool:
    return any(thing in things for things in resource_things.values())
