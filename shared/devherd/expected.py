"""What a node is expected to have: what its configuration says, else what its last run had.

Each front keeps its own part of the latter in a state file, and is the only one to write it; everybody else reads. The
rules are pure functions on that file's value, so that they can be tested without a boot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from devherd.settings import Expected, Paths, Settings
from devherd.state import StateFile, machine_id

SUFFIX = ".expected.json"
BEFORE, AFTER = "before", "after"
GIVEN_UP = 2
"""Boots in a row without it after which a resource no longer delays one."""


class Known(Struct, frozen=True, omit_defaults=True):
    """What is known of one resource.

    `count`: the healthy devices that the kubelet confirmed. `when`: whether they were there before the kubelet came, or
    only after it (a driver from a DaemonSet: late by design); empty: no boot has shown it yet. `missed`: boots in a row
    in which the kubelet came without them, `missed_in` the last of these. `reached_in`: the last boot that had them.
    """

    count: int
    when: str = ""
    missed: int = 0
    missed_in: str = ""
    reached_in: str = ""


class Record(Struct, frozen=True, omit_defaults=True):
    """One plugin's part.

    `configuration` is a fingerprint: what another configuration led to says nothing. `kubelet_in` is the boot whose
    first kubelet has been seen, `in_time` whether the front was there before it, and `early` what it had by then.
    """

    configuration: str = ""
    kubelet_in: str = ""
    in_time: bool = False
    early: tuple[str, ...] = ()
    resources: dict[str, Known] = {}


class Expectation(Struct, frozen=True):
    """One resource that should be there. `plugin` may be unknown (empty) for one that only the configuration names."""

    resource: str
    count: int
    plugin: str = ""
    configured: bool = False
    where: bool = False
    late: bool = False
    missed: int = 0

    @property
    def spared(self) -> str:
        """Why no boot is delayed for it; empty: it is waited for."""
        if self.missed >= GIVEN_UP:
            return f"missed in {self.missed} boots in a row"
        return "late by design: only came after the kubelet last time" if self.late and not self.configured else ""


def expected_file(paths: Paths, plugin: str) -> StateFile[Record]:
    """The file of one plugin's part."""
    return StateFile(f"{paths.state}/{plugin}{SUFFIX}", "expected", codec=Record, machine_id=machine_id(paths))


def expectations(settings: Settings) -> tuple[list[Expectation], list[str]]:
    """Everything this node should have, and notes on files that are not used. Reads only, and never raises."""
    found: dict[str, Expectation] = {}
    records, notes = _records(settings.paths)
    for plugin, record in records.items():
        for name, known in record.resources.items():
            found[name] = Expectation(name, known.count, plugin, late=known.when == AFTER, missed=known.missed)
    for name, wanted in settings.expect.items():
        where = isinstance(wanted, Expected) and bool(wanted.where)
        known_as = found.get(name) or Expectation(name, 0)
        found[name] = replace(known_as, count=count_of(wanted), configured=True, where=where)
    return [found[name] for name in sorted(found)], notes


def _records(paths: Paths) -> tuple[dict[str, Record], list[str]]:
    records: dict[str, Record] = {}
    notes: list[str] = []
    try:
        names = sorted(name for name in os.listdir(paths.state) if name.endswith(SUFFIX) and name[0] != ".")
    except FileNotFoundError:
        names = []
    except OSError as error:
        return {}, [f"{paths.state} cannot be read: {error.strerror}; what the last run had is not known"]
    for name in names:
        plugin = name.removesuffix(SUFFIX)
        loaded = expected_file(paths, plugin).load(set_aside=False)
        if loaded.value is not None:
            records[plugin] = loaded.value
        elif loaded.reason:
            notes.append(f"{loaded.reason}; nothing is expected of {plugin}")
    return records, notes


def count_of(wanted: int | Expected) -> int:
    """The number in an entry of `expect:`."""
    return wanted.count if isinstance(wanted, Expected) else wanted


def fits(attributes: Mapping[str, str], where: Mapping[str, str]) -> bool:
    """Whether a device's attributes are those that an expectation is about."""
    return all(name in attributes and fnmatchcase(str(attributes[name]), text) for name, text in where.items())


# What a front learns


def kubelet_came(
    record: Record, boot: str, have: Mapping[str, int], in_time: bool, wanted: Mapping[str, int]
) -> Record:
    """The first kubelet of a boot listens, and `have` is what there is by now; later ones of that boot say nothing.

    `in_time`: this front was there before it. `wanted`: what the configuration says instead of the counts known.
    """
    if not boot or record.kubelet_in == boot:
        return record
    resources = {
        name: _at_kubelet(known, boot, have.get(name, 0) >= wanted.get(name, known.count))
        for name, known in record.resources.items()
    }
    early = tuple(sorted(name for name, count in have.items() if count > 0))
    return replace(record, kubelet_in=boot, in_time=in_time, early=early, resources=resources)


def _at_kubelet(known: Known, boot: str, there: bool) -> Known:
    if there:
        return replace(known, when=BEFORE, missed=0, missed_in="", reached_in=boot)
    if known.when == AFTER:
        return known
    return replace(known, missed=known.missed + 1, missed_in=boot)


def confirmed(record: Record, boot: str, counts: Mapping[str, int], wanted: Mapping[str, int]) -> Record:
    """The kubelet has these healthy devices. More than known is the new count at once; fewer is for `settled`."""
    resources = dict(record.resources)
    for name, count in counts.items():
        known = resources.get(name)
        if known is None and count > 0:
            resources[name] = Known(count, _first_seen(record, boot, name), reached_in=boot)
        elif known is not None:
            grown = replace(known, count=max(count, known.count))
            full = count >= wanted.get(name, known.count)
            resources[name] = _reached(grown, boot) if full and known.reached_in != boot else grown
    return record if resources == record.resources else replace(record, resources=resources)


def _first_seen(record: Record, boot: str, name: str) -> str:
    """Before or after the kubelet; not known where the kubelet was there before devherd, as after an installation."""
    if not boot or record.kubelet_in != boot:
        return ""
    if name in record.early:
        return BEFORE
    return AFTER if record.in_time else ""


def _reached(known: Known, boot: str) -> Known:
    """It came, and if this boot's kubelet came first: one slow boot does not make late what used to be in time."""
    late = known.missed_in == boot and (known.when != BEFORE or known.missed >= GIVEN_UP)
    return replace(known, when=AFTER if late else known.when, reached_in=boot)


def falling(record: Record, boot: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Resources that were complete in this boot and are no longer, with what they have now.

    One that this boot never had is not among them: it is missed, which `kubelet_came` counts.
    """
    return {
        name: counts.get(name, 0)
        for name, known in record.resources.items()
        if known.reached_in == boot and counts.get(name, 0) < known.count
    }


def settled(record: Record, name: str, count: int) -> Record:
    """What is left of a resource has been so for long: that is what the next boot should have."""
    resources = dict(record.resources)
    known = resources.pop(name, None)
    if known is not None and count > 0:
        resources[name] = replace(known, count=count)
    return replace(record, resources=resources)
