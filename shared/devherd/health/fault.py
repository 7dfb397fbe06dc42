"""One kind of fault of one thing: how it starts, and what ends it. Times are monotonic seconds.

A fault is *pending* while bad evidence was seen but does not count yet, and *active* while it makes its thing
Unhealthy. The engine decides about activation, because that depends on more than this fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from devherd.values import Clears, Evidence, Severity

# A stronger event also ends what a weaker one would: a reboot resets, an operator may end anything.
RANK = {Clears.TIME: 0, Clears.PROBE: 1, Clears.RESET: 2, Clears.REBOOT: 3, Clears.OPERATOR: 4}

# A soft fault seen only once counts after this many debounces: its source fell silent with a bad last word.
SILENT_DEBOUNCES = 3


@dataclass
class Fault:
    """State of one kind of fault.

    `wall` is when this stretch of bad evidence began, in Unix seconds. `mass`: not counted, because more than the
    allowed part of a resource has it at once.
    """

    kind: str
    source: str
    reason: str
    severity: Severity
    clears: Clears
    wall: float
    bad_since: float
    last_bad: float
    last_word: float
    bad: bool = True
    good_since: float | None = None
    active: bool = False
    mass: bool = False

    @classmethod
    def begin(cls, evidence: Evidence, source: str, now: float, wall: float) -> Fault:
        """A fault's first bad evidence."""
        reason = evidence.reason or evidence.kind
        return cls(evidence.kind, source, reason, evidence.severity, evidence.clears, wall, now, now, now)

    def worse(self, evidence: Evidence, source: str, now: float, wall: float) -> None:
        """Bad evidence again."""
        self.source = source
        self.last_word = now
        if not self.bad:
            self.bad = True
            if not self.active:
                self.bad_since, self.wall = now, wall
        self.last_bad = now
        self.good_since = None
        if not self.active:
            self.severity, self.clears = evidence.severity, evidence.clears
            self.reason = evidence.reason or evidence.kind
            return
        # While active, the sternest of what was said counts, so that a wavering source cannot lift its own fault;
        # and the text stays, because each new one would be a change of the list.
        if evidence.severity is Severity.HARD and self.severity is Severity.SOFT:
            self.severity = Severity.HARD
            self.reason = evidence.reason or evidence.kind
        if RANK[evidence.clears] > RANK[self.clears]:
            self.clears = evidence.clears

    def better(self, now: float) -> None:
        """Good evidence: said so, or missing from a full report that looked at the thing."""
        self.last_word = now
        self.bad = False
        if self.good_since is None and self.clears is Clears.PROBE:
            self.good_since = now

    def cleared(self, now: float) -> None:
        """What ends this fault happened: from here on it recovers like one with good evidence."""
        self.bad = False
        self.clears = Clears.PROBE
        self.good_since = now

    @property
    def soft(self) -> bool:
        """Whether the evidence is soft."""
        return self.severity is Severity.SOFT

    @property
    def pending(self) -> bool:
        """Bad evidence that does not count yet."""
        return self.bad and not self.active

    def ripens_at(self, debounce: float) -> float:
        """When a pending fault counts; infinity: not before it is seen again."""
        if not self.soft:
            return self.bad_since
        if self.clears is Clears.TIME:
            # An event has no "still so"; only events over the whole debounce make it lasting.
            return self.bad_since + debounce if self.last_bad - self.bad_since >= debounce else float("inf")
        if self.confirmed or debounce == 0:
            return self.bad_since + debounce
        return self.bad_since + SILENT_DEBOUNCES * debounce

    @property
    def confirmed(self) -> bool:
        """Seen bad more than once in this stretch."""
        return self.last_bad > self.bad_since

    def over_at(self, hold_off: float, orphaned: float, seen: float) -> float:
        """When it ends if nothing else happens; infinity: not by itself.

        `seen` is when somebody last looked at the thing. A probe-cleared fault that nobody mentioned for `orphaned`
        seconds while its thing was looked at is no longer believed: its source is gone (another vendor version,
        a check that was taken out).
        """
        if self.clears is Clears.TIME:
            return self.last_bad + hold_off
        if self.good_since is not None:
            return self.good_since + hold_off
        patience = max(orphaned, hold_off)
        if self.clears is Clears.PROBE and seen - self.last_word >= patience:
            return self.last_word + patience
        return float("inf")
