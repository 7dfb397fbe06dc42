"""One scan: rules in, an inventory out. Rules are independent: what goes wrong with one stays with it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devherd.values import Claim, Device, Parts, Resource, Skipped

from devherd_generic import globs, names, tree
from devherd_generic.owners import Owners
from devherd_generic.parts import Maker, Piece
from devherd_generic.rules import CompiledGroup, Expression, Pattern, Rule
from devherd_generic.units import device_id, zip_matches

if TYPE_CHECKING:
    from devherd.host import Entry, View

logger = logging.getLogger("devherd_generic.scan")

DEVICES_AT_MOST = 100_000
SKIPPED_AT_MOST = 200

Match = tuple[str, "Entry"]


@dataclass(frozen=True)
class Unit:
    """One unit before it gets its copies: what it was matched by and what it is made of."""

    resource: str
    paths: tuple[str, ...]
    pieces: tuple[Piece, ...]
    limits: tuple[int, ...]
    index: int
    count: int


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
            logger.exception("rule %s failed", rule.label)
            self._skip(rule, rule.label, f"internal error, please report it: {type(error).__name__}: {error}")

    def _rule(self, rule: Rule) -> None:
        extra = self._maker.extra_mounts(rule)
        if extra.problem:
            self._skip(rule, rule.label, extra.problem)
            return
        for group in rule.groups:
            for unit in self._units(rule, group):
                self._offer(rule, unit, extra)

    def _units(self, rule: Rule, group: CompiledGroup) -> Iterator[Unit]:
        if group.expression:
            return self._matched(rule, group, group.expression)
        return self._zipped(rule, group)

    def _zipped(self, rule: Rule, group: CompiledGroup) -> Iterator[Unit]:
        columns: list[tuple[Pattern, list[Match]]] = []
        for pattern in group.patterns:
            found = globs.find(self.view, pattern.glob)
            if found:
                columns.append((pattern, found))
            elif not pattern.optional:
                self._skip(rule, pattern.glob.text, "nothing there (or only links that lead nowhere)")
                return
        limits = tuple(pattern.limit for pattern, _ in columns)
        pieces: dict[tuple[int, int], Piece] = {}
        for index, chosen in enumerate(zip_matches([len(found) for _, found in columns], limits)):
            for key in enumerate(chosen):
                if key not in pieces:
                    pattern, found = columns[key[0]]
                    pieces[key] = self._piece(rule, pattern, found[key[1]])
            paths = tuple(columns[column][1][match][0] for column, match in enumerate(chosen))
            yield Unit(
                rule.resource, paths, tuple(pieces[key] for key in enumerate(chosen)), limits, index, group.count
            )

    def _piece(self, rule: Rule, pattern: Pattern, match: Match) -> Piece:
        path, entry = match
        if pattern.mount:
            return self._maker.mount(rule, entry, pattern.container_path(path), pattern.read_only)
        return self._maker.device(rule, entry, pattern.container_path(path), pattern.permissions)

    def _matched(self, rule: Rule, group: CompiledGroup, expression: Expression) -> Iterator[Unit]:
        if self._dev is None:
            self._dev = list(tree.walk(self.view))
        index, seen = 0, False
        for path, entry in self._dev:
            if not entry.is_node or not expression.fits(path[len("/dev/") :]):
                continue
            seen = True
            resource = rule.resource or self._named_after(rule, path)
            if resource:
                piece = self._maker.device(rule, entry, path, expression.permissions)
                yield Unit(resource, (path,), (piece,), (1,), index, group.count)
                index += 1
        if not seen:
            self._skip(rule, expression.search.pattern, "no device node below /dev matches")

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

    def _offer(self, rule: Rule, unit: Unit, extra: Piece) -> None:
        what = " + ".join(unit.paths)
        problem = next((piece.problem for piece in unit.pieces if piece.problem), "")
        nodes = tuple(node for piece in unit.pieces for node in piece.nodes)
        places = [node.container_path for node in nodes]
        places += [mount.container_path for piece in (*unit.pieces, extra) for mount in piece.mounts]
        if not problem and len(set(places)) < len(places):
            problem = "two of its paths have the same path in the container: give them a mountPath each"
        claims = self._claims(rule, unit)
        problem = problem or self._owners.taken(claims, unit.resource, unit.paths)
        if problem:
            self._skip(rule, what, problem)
            return
        devices = self._resources.setdefault(unit.resource, {})
        self._namer.setdefault(unit.resource, rule)
        self._owners.take(claims, rule.label, unit.resource, unit.paths)
        for device in self._copies(rule, unit, extra, claims):
            if device.id in devices:
                self._skip(rule, what, "another group of this rule offers the same unit already: use its count")
                return
            if len(devices) >= DEVICES_AT_MOST:
                self._skip(rule, what, f"{unit.resource} has {DEVICES_AT_MOST} devices already")
                return
            devices[device.id] = device

    @staticmethod
    def _claims(rule: Rule, unit: Unit) -> tuple[Claim, ...]:
        """Each thing alone, unless the rule shares it: by count, by a path's limit, or by its word."""
        modes: dict[str, str] = {}
        for piece, limit in zip(unit.pieces, unit.limits, strict=True):
            shared = rule.config.shared or unit.count > 1 or limit > 1
            for node in piece.nodes:
                modes[node.thing] = "shared" if shared else "exclusive"
        return tuple(Claim(thing, mode) for thing, mode in modes.items())

    def _copies(self, rule: Rule, unit: Unit, extra: Piece, claims: tuple[Claim, ...]) -> Iterator[Device]:
        numa = self._numa(rule, claims)
        things = tuple(claim.thing for claim in claims)
        attributes = {"rule": rule.label, "paths": " ".join(unit.paths)}
        parts: Parts | None = None
        for copy in range(unit.count):
            identity = device_id(copy, unit.paths) if rule.resource else str(copy)
            if parts is None or rule.per_copy:
                parts = _parts(rule, unit, extra, copy, identity)
            yield Device(identity, things, parts, numa, attributes, claims)

    def _numa(self, rule: Rule, claims: Sequence[Claim]) -> tuple[int, ...]:
        if rule.config.numa is not None:
            return tuple(sorted(set(rule.config.numa)))
        return tuple(sorted({node for claim in claims if (node := self.view.numa(claim.thing)) >= 0}))

    def _skip(self, rule: Rule, what: str, reason: str) -> None:
        self._left[rule.label] = self._left.get(rule.label, 0) + 1
        if self._left[rule.label] <= SKIPPED_AT_MOST:
            printable = what.encode("utf-8", "backslashreplace").decode()
            self._skipped.append(Skipped(printable, rule.label, reason))


def _parts(rule: Rule, unit: Unit, extra: Piece, copy: int, identity: str) -> Parts:
    nodes = tuple(node for piece in unit.pieces for node in piece.nodes)
    mounts = (*(mount for piece in unit.pieces for mount in piece.mounts), *extra.mounts)
    if not (rule.env or rule.annotations or rule.cdi):
        return Parts(nodes, mounts)
    host, container = _first_path(unit.pieces)
    values = {
        "path": container,
        "host_path": host,
        "name": unit.paths[0].rpartition("/")[2],
        "index": str(unit.index),
        "copy": str(copy),
        "id": identity,
    }
    return Parts(
        nodes,
        mounts,
        {key: template.render(values) for key, template in rule.env.items()},
        {key: template.render(values) for key, template in rule.annotations.items()},
        tuple(template.render(values) for template in rule.cdi),
    )


def _first_path(pieces: Sequence[Piece]) -> tuple[str, str]:
    """Host and container path of a unit's first device node, or of its first mount if it has none."""
    for node in (node for piece in pieces for node in piece.nodes):
        return node.host_path, node.container_path
    for mount in (mount for piece in pieces for mount in piece.mounts):
        return mount.host_path, mount.container_path
    return "", ""
