"""What the schema cannot say about a configuration: all mistakes at once, each with the key it is about."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from devherd.compose import ComposeError, compose
from devherd.values import Parts

from devherd_generic import dangerous, globs, names, templates
from devherd_generic.config import Config, DeviceRule, ExtraMount, Group, PathRule

KeyPath = tuple[str | int, ...]
Problem = tuple[KeyPath, str]

LONGEST_PATH = 4095  # PATH_MAX without its NUL
HIGHEST_NUMA_NODE = 63  # the kubelet's topology manager keeps nodes in a 64-bit mask


def validate(config: Config) -> list[Problem]:
    """Every problem as (key path, message); empty when the configuration is good."""
    problems: list[Problem] = []
    if problem := names.domain_problem(config.domain):
        problems.append((("domain",), problem))
    for index, rule in enumerate(config.devices):
        at: KeyPath = ("devices", index)
        problems += _rule(rule, at)
        if rule.name and (problem := _name(rule.name, config.domain)):
            problems.append(((*at, "name"), problem))
    problems += _duplicates(config)
    return problems


def _name(name: str, domain: str) -> str:
    """A bad domain is told once, where it stands, not again for each name below it."""
    if "/" not in name:
        domain = "example.org"
    return names.resource_problem(names.full_name(name, domain))


def _duplicates(config: Config) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, rule in enumerate(config.devices):
        if not rule.name:
            continue
        full = names.full_name(rule.name, config.domain)
        if full in first:
            where = f"devices[{first[full]}]"
            yield (("devices", index, "name"), f"{full} is already the resource of {where}; put its groups there")
        else:
            first[full] = index


def _rule(rule: DeviceRule, at: KeyPath) -> Iterator[Problem]:
    if not rule.groups:
        yield ((*at, "groups"), "is empty: a resource needs at least one group")
    for index, group in enumerate(rule.groups):
        yield from _group(rule, group, (*at, "groups", index))
    for index, mount in enumerate(rule.mounts):
        yield from _extra_mount(rule, mount, (*at, "mounts", index))
    for key, value in rule.env.items():
        yield from _text(Parts(env={key: ""}), value, (*at, "env", key))
    for key, value in rule.annotations.items():
        yield from _text(Parts(annotations={key: ""}), value, (*at, "annotations", key))
    for index, name in enumerate(rule.cdi):
        yield from _cdi(name, (*at, "cdi", index))
    for index, node in enumerate(rule.numa or ()):
        if not 0 <= node <= HIGHEST_NUMA_NODE:
            yield ((*at, "numa", index), f"{node} is no NUMA node number (0 to {HIGHEST_NUMA_NODE})")


def _group(rule: DeviceRule, group: Group, at: KeyPath) -> Iterator[Problem]:
    if bool(group.paths) == bool(group.match):
        yield (at, "needs either paths or match" if not group.match else "has both paths and match: make two groups")
    if group.paths and not rule.name:
        yield (at, "has paths, so the rule needs a name; only match groups can name resources after what they find")
    for index, path in enumerate(group.paths):
        yield from _path(rule, path, (*at, "paths", index))
    if group.match:
        yield from _match(rule, group, at)
        yield from _permissions(group.permissions, (*at, "permissions"))
    elif group.permissions:
        yield ((*at, "permissions"), "belongs to match; here each path has its own")
    if not group.match and not group.anchored:
        yield ((*at, "anchored"), "belongs to match")


def _match(rule: DeviceRule, group: Group, at: KeyPath) -> Iterator[Problem]:
    try:
        search = re.compile(group.match)
    except (re.error, OverflowError, RecursionError) as error:
        yield ((*at, "match"), f"is no regular expression: {error}")
        return
    if group.match.lstrip("^").startswith("/"):
        yield ((*at, "match"), "is matched against the path below /dev: write net/tun for /dev/net/tun")
    elif not rule.dangerous and (reason := dangerous.node_expression(search, group.anchored)):
        yield ((*at, "match"), f"{reason}: narrow it, or {dangerous.OVERRIDE}")


def _path(rule: DeviceRule, path: PathRule, at: KeyPath) -> Iterator[Problem]:
    mount = path.type == "Mount"
    try:
        glob = globs.parse(_checked(path.path))
    except ValueError as error:
        yield ((*at, "path"), str(error))
    else:
        reason = dangerous.node_pattern(glob)
        if mount:
            reason = dangerous.mount_pattern(glob, path.read_only) or reason
        if reason and not rule.dangerous:
            yield ((*at, "path"), f"{reason}: {'' if glob.is_literal else 'narrow it, or '}{dangerous.OVERRIDE}")
    if path.mount_path:
        yield from _container_path(path.mount_path, (*at, "mountPath"), folder=True)
    if mount and path.permissions:
        yield ((*at, "permissions"), "belongs to type: Device; for a Mount say readOnly: true or false")
    if not mount and path.read_only:
        yield ((*at, "readOnly"), "belongs to type: Mount; for a Device say permissions: r")
    yield from _permissions(path.permissions, (*at, "permissions"))


def _extra_mount(rule: DeviceRule, mount: ExtraMount, at: KeyPath) -> Iterator[Problem]:
    try:
        path = _checked(mount.host_path)
        _normal(path)
    except ValueError as error:
        yield ((*at, "hostPath"), str(error))
    else:
        reason = dangerous.mount(path, mount.read_only)
        if reason and not rule.dangerous:
            yield ((*at, "hostPath"), f"{reason}: {dangerous.OVERRIDE}")
    if mount.container_path:
        yield from _container_path(mount.container_path, (*at, "containerPath"), folder=False)


def _container_path(path: str, at: KeyPath, folder: bool) -> Iterator[Problem]:
    try:
        trimmed = path[:-1] if folder and len(path) > 1 and path.endswith("/") else path
        _normal(_checked(trimmed))
    except ValueError as error:
        yield (at, str(error))
        return
    if trimmed == "/":
        yield (at, "would replace the container's whole file system")
    elif trimmed == "/proc" or trimmed.startswith("/proc/"):
        yield (at, "container runtimes refuse mounts in /proc")


def _permissions(letters: str, at: KeyPath) -> Iterator[Problem]:
    if letters and (set(letters) - set("rwm") or len(set(letters)) != len(letters)):
        yield (at, f"{letters!r} is not made of r, w and m, each at most once")


def _text(parts: Parts, value: str, at: KeyPath) -> Iterator[Problem]:
    """A key, checked as the composer will check it, and its value's placeholders."""
    try:
        compose([parts])
    except ComposeError as error:
        yield (at, str(error))
    try:
        templates.parse(_without_nul(value))
    except ValueError as error:
        yield (at, str(error))


def _cdi(name: str, at: KeyPath) -> Iterator[Problem]:
    try:
        template = templates.parse(_without_nul(name))
        compose([Parts(cdi=(template.render(dict.fromkeys(templates.NAMES, "x")),))])
    except (ValueError, ComposeError) as error:
        yield (at, str(error))
        return
    if template.names & {"path", "host_path"}:
        yield (at, "a CDI name cannot hold a path; use {name}, {index}, {copy} or {id}")


def _checked(path: str) -> str:
    if len(path.encode("utf-8", "replace")) > LONGEST_PATH:
        raise ValueError(f"is longer than {LONGEST_PATH} bytes")
    if not path:
        raise ValueError("is empty")
    return _without_nul(path)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character")
    return text


def _normal(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError("must be absolute: start it with /")
    if posixpath.normpath(path) != path or path.startswith("//"):
        raise ValueError(f"must be written in its plain form: {posixpath.normpath(path.replace('//', '/'))}")
