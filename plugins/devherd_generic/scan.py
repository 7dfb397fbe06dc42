"""One scan: rules in, an inventory out. Rules are independent: what goes wrong with one stays with it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from devherd.host.shortage import raise_if_short
from devherd.values import NOTHING_NOW, Claim, Device, Mount, Resource, Skipped

from devherd_generic import globs, names, tree
from devherd_generic.devices import Unit, assemble, devices
from devherd_generic.owners import Owners
from devherd_generic.parts import Maker, Piece, unprintable
from devherd_generic.rules import CompiledGroup, Expression, Pattern, Rule
from devherd_generic.units import zip_matches

if TYPE_CHECKING:
    from devherd.host import Entry, View

logger = logging.getLogger("devherd_generic.scan")

DEVICES_AT_MOST = 100_000
SKIPPED_AT_MOST = 200

Match = tuple[str, "Entry"]


class Scan:
    """The state of one scan; use once."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._maker = Maker(view)
        self._resources: dict[str, dict[str, Device]] = {}
        self._namer: dict[str, Rule] = {}
        self._owners = Owners()
        self._skipped: list[Skipped] = []
        self._left: dict[str, int] = {}
        self._dev: list[Match] | None = None

    def run(self, rules: Iterable[Rule]) -> None:
        """Look for every rule's devices."""
        rules = tuple(rules)
        for rule in rules:
            if rule.resource:
                self._resources.setdefault(rule.resource, {})
                self._namer[rule.resource] = rule
        for rule in rules:
            self._guarded(rule)

    def resources(self) -> tuple[Resource, ...]:
        """Every resource with its devices. One that a rule names is there even while it has none."""
        return tuple(Resource(name, tuple(found.values())) for name, found in self._resources.items())

    def skipped(self) -> tuple[Skipped, ...]:
        """What was seen and not offered, at most so many for each rule."""
        more = [
            Skipped(f"{left - SKIPPED_AT_MOST} more", label, "left out of this list")
            for label, left in self._left.items()
            if left > SKIPPED_AT_MOST
        ]
        return (*self._skipped, *more)

    def _guarded(self, rule: Rule) -> None:
        """One rule must never cost the others."""
        try:
            self._rule(rule)
        except globs.GlobError as error:
            self._skip(rule, rule.label, str(error))
        except Exception as error:
            raise_if_short(error)
            logger.exception("rule %s failed", rule.label)
            self._skip(rule, rule.label, f"internal error, please report it: {type(error).__name__}: {error}")

    def _rule(self, rule: Rule) -> None:
        extra = self._maker.extra_mounts(rule)
        if extra.problem:
            self._skip(rule, rule.label, extra.problem)
            return
        for group in rule.groups:
            for unit in self._units(rule, group, extra.mounts):
                self._offer(rule, unit)

    def _units(self, rule: Rule, group: CompiledGroup, extra: tuple[Mount, ...]) -> Iterator[Unit]:
        if group.expression:
            return self._matched(rule, group, group.expression, extra)
        return self._zipped(rule, group, extra)

    def _zipped(self, rule: Rule, group: CompiledGroup, extra: tuple[Mount, ...]) -> Iterator[Unit]:
        columns: list[list[Match]] = []
        patterns: list[Pattern] = []
        missing = False
        for pattern in group.patterns:
            found = globs.find(self.view, pattern.glob)
            if found:
                columns.append(found)
                patterns.append(pattern)
            elif pattern.optional:
                self._skip(rule, pattern.glob.text, f"{NOTHING_NOW}; it is optional, devices come without it")
            else:
                missing = True
                self._skip(rule, pattern.glob.text, f"{NOTHING_NOW} (or only links that lead nowhere)")
        if missing:
            return
        pieces: dict[tuple[int, int], tuple[str, Piece, int]] = {}
        lengths, limits = [len(found) for found in columns], [pattern.limit for pattern in patterns]
        for number, chosen in enumerate(zip_matches(lengths, limits)):
            matched: list[tuple[str, Piece, int]] = []
            for key in enumerate(chosen):
                if key not in pieces:
                    match, pattern = columns[key[0]][key[1]], patterns[key[0]]
                    pieces[key] = (match[0], self._piece(rule, pattern, match), pattern.limit)
                matched.append(pieces[key])
            yield assemble(rule, rule.resource, matched, extra, number, group.count)

    def _piece(self, rule: Rule, pattern: Pattern, match: Match) -> Piece:
        path, entry = match
        if problem := unprintable(path):
            return Piece(problem=problem)
        if pattern.mount:
            return self._maker.mount(rule, entry, pattern.container_path(path), pattern.read_only)
        return self._maker.device(rule, entry, pattern.container_path(path), pattern.permissions)

    def _matched(
        self, rule: Rule, group: CompiledGroup, expression: Expression, extra: tuple[Mount, ...]
    ) -> Iterator[Unit]:
        if self._dev is None:
            self._dev = list(tree.walk(self.view))
        number, seen = 0, False
        for path, entry in self._dev:
            if not entry.is_node or not expression.fits(path[len("/dev/") :]):
                continue
            seen = True
            if problem := unprintable(path):
                self._skip(rule, path, problem)
                continue
            resource = rule.resource or self._named_after(rule, path)
            if resource:
                piece = self._maker.device(rule, entry, path, expression.permissions)
                yield assemble(rule, resource, [(path, piece, 1)], extra, number, group.count)
                number += 1
        if not seen:
            self._skip(rule, expression.search.pattern, f"{NOTHING_NOW}: an expression for nodes below /dev")

    def _named_after(self, rule: Rule, path: str) -> str:
        """The resource named after a matched path; empty when it cannot be."""
        resource = names.full_name(names.name_from_path(path[len("/dev/") :]), rule.domain)
        problem = names.resource_problem(resource)
        namer = self._namer.get(resource)
        if namer and not problem:
            problem = f"{resource} is already a resource of rule {namer.label}"
        if problem:
            self._skip(rule, path, problem)
            return ""
        return resource

    def _offer(self, rule: Rule, unit: Unit) -> None:
        problem = unit.problem or self._owners.taken(unit.claims, unit.resource, unit.paths)
        if problem:
            self._skip(rule, unit.what, problem)
            return
        found = self._resources.setdefault(unit.resource, {})
        self._namer.setdefault(unit.resource, rule)
        self._owners.take(unit.claims, rule.label, unit.resource, unit.paths)
        for device in devices(rule, unit, self._numa(rule, unit.claims)):
            if device.id in found:
                self._skip(rule, unit.what, "another group of this rule offers the same unit already: use its count")
                return
            if len(found) >= DEVICES_AT_MOST:
                self._skip(rule, unit.what, f"{unit.resource} has {DEVICES_AT_MOST} devices already")
                return
            found[device.id] = device

    def _numa(self, rule: Rule, claims: Sequence[Claim]) -> tuple[int, ...]:
        if rule.config.numa is not None:
            return tuple(sorted(set(rule.config.numa)))
        nodes = {self.view.numa(claim.thing) for claim in claims}
        nodes.discard(-1)
        return tuple(sorted(nodes))

    def _skip(self, rule: Rule, what: str, reason: str) -> None:
        self._left[rule.label] = self._left.get(rule.label, 0) + 1
        if self._left[rule.label] <= SKIPPED_AT_MOST:
            self._skipped.append(Skipped(_printable(what), rule.label, _printable(reason)))


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
