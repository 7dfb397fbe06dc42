"""Who owns which physical thing on this node: one file under one lock, shared by all plugins.

Two plugins that offer the same hardware would hand it to two pods. Each plugin writes what it wants; whoever
came first keeps it, and the later one learns who that is. The file lives in the run folder, so a reboot
empties it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from devherd.values import Resource

EXCLUSIVE = "exclusive"
SHARED = "shared"

# How long a vanished plugin keeps its claims (monotonic seconds): a restart must not lose held hardware to another.
LINGER = 60.0
_LOCK_WAIT = 2.0
_LOCK_PAUSE = 0.01


class ClaimsError(Exception):
    """The claim file cannot be used; the text says why."""


class ClaimsBusy(ClaimsError):
    """Another process held the lock for the whole wait; try again later."""


class Owner(Struct, frozen=True, omit_defaults=True):
    """One plugin's claim on one thing."""

    plugin: str
    resource: str
    mode: str = EXCLUSIVE


class _Holder(Struct, omit_defaults=True):
    """One plugin's claims. `start_time` is the process's in clock ticks; `gone_at` is when it was first missed."""

    pid: int
    start_time: int
    claims: dict[str, tuple[str, str]] = {}
    gone_at: float | None = None


class _File(Struct, omit_defaults=True):
    version: int = 1
    plugins: dict[str, _Holder] = {}


def alive(pid: int, start_time: int) -> bool:
    """Whether this very process still runs (field 22 of /proc/PID/stat is its start, in clock ticks since boot)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except FileNotFoundError:
        return False
    except OSError:
        # Not readable is not dead; keeping a claim too long is the harmless side.
        return True
    fields = stat.rpartition(")")[2].split()
    return len(fields) > 19 and fields[0] not in ("Z", "X") and int(fields[19]) == start_time


class Planned(Struct, frozen=True):
    """What one plugin wants of the registry, and the ids of its own resources that contradict each other.

    `claims` maps a thing to (resource, mode); `conflicts` maps a resource to id -> reason.
    """

    claims: dict[str, tuple[str, str]]
    conflicts: dict[str, dict[str, str]]


def plan(resources: Sequence[Resource]) -> Planned:
    """Gather the claims of a plugin's inventory. Within it the first device in order keeps a thing."""
    claims: dict[str, tuple[str, str]] = {}
    first: dict[str, str] = {}
    conflicts: dict[str, dict[str, str]] = {}
    for resource in resources:
        for device in resource.devices:
            for claim in device.claims:
                known = claims.get(claim.thing)
                if known is None:
                    claims[claim.thing] = (resource.name, claim.mode)
                    first[claim.thing] = device.id
                elif not _together(claim.mode, known[1]):
                    conflicts.setdefault(resource.name, {})[device.id] = (
                        f"{claim.thing} already belongs to {known[0]} device {first[claim.thing]} of this plugin: "
                        "take it out of one of the two"
                    )
    return Planned(claims, conflicts)


class ClaimRegistry:
    """The registry below a run folder. Every call may block for up to 2 s: not for an event loop.

    `is_alive` and `clock` (monotonic seconds) are what tests replace.
    """

    def __init__(
        self,
        run_dir: str,
        linger: float = LINGER,
        is_alive: Callable[[int, int], bool] = alive,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = os.path.join(run_dir, "claims.json")
        self._lock_path = os.path.join(run_dir, "claims.lock")
        self._linger = linger
        self._alive = is_alive
        self._clock = clock

    def replace(self, plugin: str, pid: int, start_time: int, claims: Mapping[str, tuple[str, str]]) -> dict[str, str]:
        """Put a plugin's claims (thing -> (resource, mode)) in place of its earlier ones.

        Returns thing -> reason for those it does not get because somebody else came first; calling again
        later gets them once they are free. Raises ClaimsBusy or ClaimsError; nothing is changed then.
        """
        with self._locked():
            content = self._read()
            before = msgspec.json.encode(content)
            self._drop_dead(content, except_for=plugin)
            others = _owners(content, except_for=plugin)
            granted: dict[str, tuple[str, str]] = {}
            conflicts: dict[str, str] = {}
            for thing, (resource, mode) in claims.items():
                rival = next((owner for owner in others.get(thing, ()) if not _together(mode, owner.mode)), None)
                if rival is None:
                    granted[thing] = (resource, mode)
                else:
                    conflicts[thing] = _conflict(thing, rival, Owner(plugin, resource, mode))
            content.plugins[plugin] = _Holder(pid, start_time, granted)
            self._write(content, before)
        return conflicts

    def release(self, plugin: str) -> None:
        """Give all of a plugin's claims back (it was removed, or its hardware is absent; not for a restart)."""
        with self._locked():
            content = self._read()
            before = msgspec.json.encode(content)
            content.plugins.pop(plugin, None)
            self._write(content, before)

    def owners(self) -> dict[str, tuple[Owner, ...]]:
        """Who claims what now; for people, so it needs no lock."""
        return {thing: tuple(owners) for thing, owners in _owners(self._read()).items()}

    def _drop_dead(self, content: _File, except_for: str) -> None:
        now = self._clock()
        for plugin, holder in list(content.plugins.items()):
            if plugin == except_for or self._alive(holder.pid, holder.start_time):
                holder.gone_at = None
            elif holder.gone_at is None or holder.gone_at > now:
                holder.gone_at = now
            if holder.gone_at is not None and now - holder.gone_at >= self._linger:
                del content.plugins[plugin]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ClaimsError(
                f"{self._lock_path}: {error.strerror}; claims are not kept until it can be opened"
            ) from error
        try:
            deadline = time.monotonic() + _LOCK_WAIT
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise ClaimsBusy(f"{self._lock_path}: another process has held the lock for 2 s") from None
                    time.sleep(_LOCK_PAUSE)
            yield
        finally:
            os.close(lock)

    def _read(self) -> _File:
        """The content; an unreadable one counts as empty, because every plugin claims again with its next scan."""
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=_File)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return _File()
        except OSError as error:
            raise ClaimsError(f"{self._path}: {error.strerror}") from error

    def _write(self, content: _File, before: bytes) -> None:
        data = msgspec.json.encode(content)
        if data == before and os.path.exists(self._path):
            return
        temporary = os.path.splitext(self._path)[0] + ".tmp"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, self._path)
        except OSError as error:
            raise ClaimsError(f"{self._path}: {error.strerror}") from error


def _together(one: str, other: str) -> bool:
    return one == SHARED and other == SHARED


def _owners(content: _File, except_for: str = "") -> dict[str, list[Owner]]:
    owners: dict[str, list[Owner]] = {}
    for plugin, holder in content.plugins.items():
        if plugin != except_for:
            for thing, (resource, mode) in holder.claims.items():
                owners.setdefault(thing, []).append(Owner(plugin, resource, mode))
    return owners


def _conflict(thing: str, first: Owner, second: Owner) -> str:
    return (
        f"{thing} belongs to {first.resource} of plugin {first.plugin} ({first.mode}), "
        f"so {second.resource} of plugin {second.plugin} ({second.mode}) cannot have it: "
        "take it out of one of the two configurations"
    )


def conflicts_by_id(resource: Resource, conflicts: Mapping[str, str]) -> dict[str, str]:
    """Turn thing -> reason into id -> reason for a resource's devices, by what they claim."""
    found: dict[str, str] = {}
    for device in resource.devices if conflicts else ():
        reason = _first(conflicts.get(claim.thing, "") for claim in device.claims)
        if reason:
            found[device.id] = reason
    return found


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")
