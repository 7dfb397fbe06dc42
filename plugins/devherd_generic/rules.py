"""Rules ready to be scanned with: globs, expressions and placeholders read once.

A configuration that validates always compiles. If one that does not gets here all the same, the bad rule is left out
and named, and the others work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from devherd.values import Skipped

from devherd_generic import globs, names, templates
from devherd_generic.config import (
    DEFAULT_MATCH_PERMISSIONS,
    DEFAULT_PERMISSIONS,
    Config,
    DeviceRule,
    Group,
    PathRule,
)
from devherd_generic.validate import KeyPath, validate


@dataclass(frozen=True)
class Pattern:
    """A path of a group."""

    glob: globs.Glob
    mount: bool
    mount_path: str
    permissions: str
    read_only: bool
    limit: int
    optional: bool

    def container_path(self, path: str) -> str:
        """Where a match appears in the container."""
        if self.mount_path.endswith("/"):
            return self.mount_path + path.rpartition("/")[2]
        return self.mount_path or path


@dataclass(frozen=True)
class Expression:
    """A match group's regular expression on paths below /dev."""

    search: re.Pattern[str]
    anchored: bool
    permissions: str

    def fits(self, path: str) -> bool:
        """Whether a path below /dev matches."""
        return bool(self.search.fullmatch(path) if self.anchored else self.search.search(path))


@dataclass(frozen=True)
class CompiledGroup:
    """Either patterns or an expression, and how many may share a unit."""

    patterns: tuple[Pattern, ...]
    expression: Expression | None
    count: int


@dataclass(frozen=True)
class Rule:
    """One entry of `devices`.

    `label` names it for people; `resource` is empty when matches name their own. `has_texts`: it sets env, annotations
    or CDI names; `per_copy`: they differ between copies of one unit.
    """

    label: str
    domain: str
    resource: str
    config: DeviceRule
    groups: tuple[CompiledGroup, ...]
    env: dict[str, templates.Template]
    annotations: dict[str, templates.Template]
    cdi: tuple[templates.Template, ...]

    per_copy: bool
    has_texts: bool


def compile_rules(config: Config) -> tuple[tuple[Rule, ...], tuple[Skipped, ...]]:
    """The rules that work, and those that do not with the reason."""
    problems = validate(config)
    rules: list[Rule] = []
    skipped: list[Skipped] = []
    for index, rule in enumerate(config.devices):
        label = f"devices[{index}] {rule.name}".rstrip()
        wrong = [(key, text) for key, text in problems if key[:2] == ("devices", index)]
        wrong += [(key, text) for key, text in problems if key == ("domain",) and "/" not in rule.name]
        if wrong:
            skipped += [Skipped(dotted(key), label, text) for key, text in wrong]
        else:
            rules.append(_compile(rule, label, config.domain))
    return tuple(rules), tuple(skipped)


def dotted(key: KeyPath) -> str:
    """A key path as people write it: `devices[0].groups[1].match`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def _compile(rule: DeviceRule, label: str, domain: str) -> Rule:
    env = {key: templates.parse(text) for key, text in rule.env.items()}
    annotations = {key: templates.parse(text) for key, text in rule.annotations.items()}
    cdi = tuple(templates.parse(text) for text in rule.cdi)
    texts = (*env.values(), *annotations.values(), *cdi)
    return Rule(
        label=label,
        domain=domain,
        resource=names.full_name(rule.name, domain) if rule.name else "",
        config=rule,
        groups=tuple(_group(group) for group in rule.groups),
        env=env,
        annotations=annotations,
        cdi=cdi,
        per_copy=any(template.names & {"copy", "id"} for template in texts),
        has_texts=bool(texts),
    )


def _group(group: Group) -> CompiledGroup:
    expression = None
    if group.match:
        permissions = group.permissions or DEFAULT_MATCH_PERMISSIONS
        expression = Expression(re.compile(group.match), group.anchored, permissions)
    return CompiledGroup(tuple(_pattern(path) for path in group.paths), expression, group.count)


def _pattern(path: PathRule) -> Pattern:
    return Pattern(
        glob=globs.parse(path.path),
        mount=path.type == "Mount",
        mount_path=path.mount_path,
        permissions=path.permissions or DEFAULT_PERMISSIONS,
        read_only=path.read_only,
        limit=path.limit,
        optional=path.optional,
    )
