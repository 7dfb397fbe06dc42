"""From a unit to its devices: one for each copy, each with its id, its answer and its claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from devherd.values import Claim, Device, Mount, Node, Parts

from devherd_generic.parts import Piece
from devherd_generic.rules import Rule
from devherd_generic.units import device_id


class Unit(NamedTuple):
    """What one match, or one combination of matches, is made of.

    `paths` are the matched paths as the rule names them (links not followed): the id stands on them. `number` counts
    the units of a group from 0.
    """

    resource: str
    paths: tuple[str, ...]
    nodes: tuple[Node, ...]
    mounts: tuple[Mount, ...]
    claims: tuple[Claim, ...]
    number: int
    copies: int
    problem: str

    @property
    def what(self) -> str:
        """Its paths, for people."""
        return " + ".join(self.paths)


def assemble(
    rule: Rule,
    resource: str,
    matched: Sequence[tuple[str, Piece, int]],
    extra: tuple[Mount, ...],
    number: int,
    copies: int,
) -> Unit:
    """Put a unit together. `matched` holds path, piece and the path's limit."""
    paths = tuple(path for path, _, _ in matched)
    problem = next((piece.problem for _, piece, _ in matched if piece.problem), "")
    nodes: tuple[Node, ...] = ()
    mounts: tuple[Mount, ...] = ()
    for _, piece, _ in matched:
        nodes += piece.nodes
        mounts += piece.mounts
    mounts += extra
    if len(nodes) + len(mounts) > 1 and not problem:
        problem = _clash(nodes, mounts)
    return Unit(resource, paths, nodes, mounts, _claims(rule, matched, copies), number, copies, problem)


def _clash(nodes: Sequence[Node], mounts: Sequence[Mount]) -> str:
    places = [*(node.container_path for node in nodes), *(mount.container_path for mount in mounts)]
    twice = next((place for place in places if places.count(place) > 1), "")
    return f"two of its paths would be {twice} in the container: give them different mountPaths" if twice else ""


def _claims(rule: Rule, matched: Sequence[tuple[str, Piece, int]], copies: int) -> tuple[Claim, ...]:
    """Each thing alone, unless the rule shares it: by count, by a path's limit, or by its word."""
    modes: dict[str, str] = {}
    for _, piece, limit in matched:
        mode = "shared" if copies > 1 or limit > 1 or rule.config.shared else "exclusive"
        for node in piece.nodes:
            modes[node.thing] = mode
    return tuple([Claim(thing, mode) for thing, mode in modes.items()])


def devices(rule: Rule, unit: Unit, numa: tuple[int, ...]) -> Iterator[Device]:
    """The unit's devices. Copies share one answer unless a placeholder tells them apart."""
    things = tuple([claim.thing for claim in unit.claims])
    attributes = {"rule": rule.label, "paths": " ".join(unit.paths)}
    parts: Parts | None = None
    for copy in range(unit.copies):
        identity = device_id(copy, unit.paths) if rule.resource else str(copy)
        if parts is None or rule.per_copy:
            parts = _parts(rule, unit, copy, identity)
        yield Device(identity, things, parts, numa, attributes, unit.claims)


def _parts(rule: Rule, unit: Unit, copy: int, identity: str) -> Parts:
    if not rule.has_texts:
        return Parts(unit.nodes, unit.mounts)
    host, container = "", ""
    if unit.nodes:
        host, container = unit.nodes[0].host_path, unit.nodes[0].container_path
    elif unit.mounts:
        host, container = unit.mounts[0].host_path, unit.mounts[0].container_path
    values = {
        "path": container,
        "host_path": host,
        "name": unit.paths[0].rpartition("/")[2],
        "index": str(unit.number),
        "copy": str(copy),
        "id": identity,
    }
    return Parts(
        unit.nodes,
        unit.mounts,
        {key: template.render(values) for key, template in rule.env.items()},
        {key: template.render(values) for key, template in rule.annotations.items()},
        tuple(template.render(values) for template in rule.cdi),
    )
