"""What every supervised program goes through before it is itself: `python -I -m devherd.launcher OPTIONS -- COMMAND`.

In this order: the signals a front handles are blocked (a mask survives exec, so one that comes while Python
still starts and imports waits for its handler instead of killing), the kernel is asked to end us with our
parent, limits and priority are set, the instance lock is taken, the command is exec'd under the same pid.

The lock is a POSIX record lock: it survives exec, is never inherited by a child, ends with the process however
that ends, and the kernel names its holder. A holder whose parent is gone (supervisord was killed) is an orphan
and is ended; one that somebody still supervises is waited for, then named.

Standard library only: it runs before each start and must cost milliseconds.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from devherd.process import LOCK_FD, Handle, alive, close_all_but, die_with_parent, read_stat

BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
BLOCKED_SUPERVISOR = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""For supervisord itself (`--supervisor`): its children are then born with these blocked, so not even the first
milliseconds of a program can lose one. Its own SIGHUP (stop everything, start everything) is better unreachable."""

USAGE = 2
TAKEN = 75
"""Exit status when somebody else holds the lock for good (EX_TEMPFAIL): worth another try later."""
NOT_FOUND = 127

ABSENT = 69
"""Exit status when the hardware is not there (EX_UNAVAILABLE), the only expected one."""
ABSENT_AFTER = 12.0
"""Seconds before that: supervisord takes an end within `startsecs` (10) for a failed start."""
WAIT = 10
"""Seconds to wait for a supervised holder to go. An orphan has half of it after SIGTERM, and half after SIGKILL."""
STEP = 0.1
HOLD_MAX = 3600.0
"""A hold that would last longer than so many seconds is of another boot, or no hold."""
HOLD_STOPPED = 10.0
"""Seconds a watcher has to stop again what was stopped under an earlier supervisord."""

NUMBERS = ("--nice", "--nofile", "--memory", "--oom", "--wait")
HELP = (
    "usage: devherd.launcher --name NAME --lock FILE [--supervisor] [--nice N] [--nofile N] [--memory MIB] [--oom N]"
    " [--wait SECONDS] [--hardware WORD,... [--sys DIR] [--known FILE]] -- COMMAND [ARGUMENT...]"
)
TEXTS = ("--name", "--lock", "--hardware", "--sys", "--known")

_FLOCK = struct.Struct("hhqqi4x")


class Options(NamedTuple):
    """The command line."""

    name: str
    lock: str
    command: list[str]
    supervisor: bool = False
    nice: int | None = None
    nofile: int | None = None
    memory: int | None = None
    oom: int | None = None
    wait: int = WAIT
    hardware: str = ""
    sys: str = "/sys"
    known: str = ""


class Holder(NamedTuple):
    """What a holder of the lock wrote into it: itself and its parent, each by pid and start time."""

    pid: int
    start: int
    parent: int
    parent_start: int

    def orphaned(self) -> bool:
        """True when the parent that started it is gone."""
        stat = read_stat(self.pid)
        return stat is not None and (stat.parent != self.parent or not alive(self.parent, self.parent_start))


class Hold(NamedTuple):
    """A hold file's content."""

    kind: bytes
    values: tuple[float, ...]
    why: str

    def left(self, began: float) -> float:
        """Seconds still to wait for a program whose wait began at a monotonic time."""
        if self.kind == b"until" and len(self.values) == 1:
            left = self.values[0] - time.monotonic()
            return left if left <= HOLD_MAX else 0.0
        if self.kind == b"stopped" and len(self.values) == 2:
            parent = read_stat(os.getppid())
            if parent is not None and (parent.pid, parent.start) != self.values:
                return began + HOLD_STOPPED - time.monotonic()
        return 0.0


class Stop(Exception):
    """Cannot or need not go on: exit status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def parse(arguments: list[str]) -> Options:
    """Read the command line. Raises Stop."""
    values: dict[str, str] = {}
    rest = list(arguments)
    supervisor = False
    while rest and rest[0] != "--":
        option = rest.pop(0)
        if option == "--supervisor":
            supervisor = True
        elif option in (*TEXTS, *NUMBERS) and rest:
            values[option] = rest.pop(0)
        else:
            raise Stop(USAGE, f"unknown or incomplete option {option!r}; {HELP}")
    command = rest[1:]
    if not command or not values.get("--name") or not values.get("--lock"):
        raise Stop(USAGE, HELP)
    numbers: dict[str, Any] = {key[2:]: _number(key, values[key]) for key in NUMBERS if key in values}
    texts: dict[str, Any] = {key[2:]: values[key] for key in TEXTS[2:] if key in values}
    return Options(values["--name"], values["--lock"], command, supervisor, **numbers)._replace(**texts)


def _number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Stop(USAGE, f"{option} wants a number, not {text!r}") from None


def leave_with_parent() -> None:
    """Have the kernel end us with our parent, and notice one that is gone already. Raises Stop."""
    if os.getppid() != 1:
        die_with_parent(signal.SIGTERM)
    if os.environ.get("SUPERVISOR_ENABLED") and _hung_up(0):
        # Only supervisord holds the other end of our stdin.
        raise Stop(0, "supervisord is gone already")


def _hung_up(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))


def set_limits(options: Options, warn: Callable[[str], None]) -> None:
    """Priority, descriptors, memory, out-of-memory score. What this user may not set is said and skipped."""
    if options.nice is not None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, options.nice)
        except OSError as error:
            warn(f"cannot set nice {options.nice}: {error.strerror}")
    if options.nofile is not None:
        _set_nofile(options.nofile, warn)
    if options.memory is not None:
        _set_memory(options.memory << 20, warn)
    if options.oom is not None:
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(options.oom))
        except OSError as error:
            warn(f"cannot set oom_score_adj {options.oom}: {error.strerror}")


def _set_memory(wanted: int, warn: Callable[[str], None]) -> None:
    """Private writable memory, for the program and each of its children by itself (RLIMIT_DATA, getrlimit(2))."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    except (OSError, ValueError) as error:
        warn(f"cannot limit memory to {limit >> 20} MiB: {error}")


def _set_nofile(wanted: int, warn: Callable[[str], None]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard if unlimited else max(hard, wanted)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        warn(f"cannot allow {wanted} open files, the hard limit is {hard}")


def take_lock(path: str, name: str, wait: float, say: Callable[[str], None]) -> int:
    """Hold the lock and return its descriptor, which exec keeps. Ends an orphan that holds it. Raises Stop."""
    os.makedirs(os.path.dirname(path) or ".", mode=0o750, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait
    while not _try_lock(fd):
        pid = _holder_pid(fd)
        recorded = _recorded(fd)
        if recorded is not None and recorded.pid == pid and recorded.orphaned():
            end_orphan(recorded, name, wait / 2, say)
            deadline = time.monotonic() + wait
        elif pid and time.monotonic() >= deadline:
            parent = f", supervised by pid {recorded.parent}" if recorded is not None else ""
            raise Stop(TAKEN, f"{name} already runs as pid {pid}{parent}; stop that one first")
        _wait_stoppable(STEP)
    if not _still_there(fd, path):
        # Removed or replaced while we waited: another one would lock the new file beside us.
        os.close(fd)
        return take_lock(path, name, wait, say)
    _record(fd)
    os.set_inheritable(fd, True)
    return fd


def _still_there(fd: int, path: str) -> bool:
    try:
        ours, there = os.fstat(fd), os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def wait_while_held(path: str, name: str, say: Callable[[str], None]) -> None:
    """Wait as the watcher's hold file says: `until TIME` (monotonic seconds: a crash loop), or `stopped PID START`.

    The latter is of a program that was stopped under the supervisord PID: another one starts it only because its
    configuration says so, and the watcher is about to stop it again. A watcher that is gone holds nothing up for
    long, and whoever removes the file ends the wait.
    """
    began, said = time.monotonic(), False
    while (hold := _read_hold(path)) is not None:
        left = hold.left(began)
        if left <= 0:
            return
        if not said:
            said = True
            say(f"{name} is held back for up to {left:.0f} s: {hold.why} (at once: remove {path})")
        _wait_stoppable(min(STEP, left))


def _read_hold(path: str) -> Hold | None:
    try:
        with open(path, "rb") as file:
            first, _, rest = file.read(2000).partition(b"\n")
        kind, *numbers = first.split()
        values = tuple(float(number) for number in numbers)
    except (OSError, ValueError):
        return None
    return Hold(kind, values, rest.decode(errors="replace").strip())


def _try_lock(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _holder_pid(fd: int) -> int:
    """Who holds the lock, 0 when nobody does any more."""
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)))
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def _recorded(fd: int) -> Holder | None:
    fields = os.pread(fd, 200, 0).split()
    try:
        return Holder(*(int(field) for field in fields))
    except (ValueError, TypeError):
        return None


def _record(fd: int) -> None:
    me, parent = read_stat("self"), read_stat(os.getppid())
    os.ftruncate(fd, 0)
    if me is not None:
        parent_start = parent.start if parent is not None else 0
        os.pwrite(fd, b"%d %d %d %d\n" % (me.pid, me.start, me.parent, parent_start), 0)


def end_orphan(holder: Holder, name: str, grace: float, say: Callable[[str], None]) -> None:
    """TERM, then KILL, `grace` seconds for each; returns when it is gone. Raises Stop when not even that helps."""
    try:
        handle = Handle(holder.pid)
    except ProcessLookupError:
        return
    try:
        if handle.stat.start != holder.start:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            say(f"{name} of a supervisord that is gone still runs as pid {holder.pid}: {number.name}")
            handle.send(number)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline:
                if handle.wait(STEP):
                    return
                _wait_stoppable(0)
    finally:
        handle.close()
    raise Stop(TAKEN, f"{name}: pid {holder.pid} survives SIGKILL (stuck in the kernel); not starting beside it")


def look_for_hardware(options: Options) -> None:
    """Go on only where the program may have something to serve; else wait as long as a good start takes, and stop.

    `--hardware pci:10de:03,path:/dev/dxg`: a PCI function of a vendor (and a class that begins so), or a path, is
    there. `--known` is the program's last inventory: one that is not empty is looked after, whatever is there now.
    A look costs a millisecond; the program itself, with its probe, half a second of a processor at every boot of a
    node that has no such hardware. Raises Stop.
    """
    if has_hardware(options):
        return
    _wait_stoppable(ABSENT_AFTER)
    raise Stop(ABSENT, f"no hardware for {options.name} here ({options.hardware}); it is started when some appears")


def has_hardware(options: Options) -> bool:
    """Whether there is anything to start for, or no condition."""
    words = [word for word in options.hardware.split(",") if word]
    return not words or _known(options.known) or any(_there(word, options.sys) for word in words)


def _known(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b'"resources":[' in file.read()
    except OSError:
        return False


def _there(word: str, sysfs: str) -> bool:
    kind, _, rest = word.partition(":")
    if kind == "path":
        return os.path.exists(rest)
    vendor, _, of_class = rest.partition(":")
    folder = os.path.join(sysfs, "bus/pci/devices")
    try:
        return any(_function(os.path.join(folder, name), vendor, of_class) for name in os.listdir(folder))
    except OSError:
        return False


def _function(folder: str, vendor: str, of_class: str) -> bool:
    return _attribute(folder, "vendor") == f"0x{vendor}" and _attribute(folder, "class").startswith(f"0x{of_class}")


def _attribute(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _wait_stoppable(seconds: float) -> None:
    """Sleep; a stop request that is pending behind our mask ends us, as it would have without the mask."""
    number = signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, seconds)
    if number is not None:
        raise Stop(128 + number.si_signo, "stopped while waiting for the lock")


def launch(arguments: list[str]) -> NoReturn:
    """All of it; returns only by exception."""
    options = parse(arguments)

    def say(text: str) -> None:
        print(f"launcher: {text}", file=sys.stderr, flush=True)

    # Nothing of whoever starts us goes on; and the lock gets a low number, which supervisord's own restart leaves open.
    close_all_but((0, 1, 2))
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SUPERVISOR if options.supervisor else BLOCKED)
    leave_with_parent()
    set_limits(options, say)
    fd = take_lock(options.lock, options.name, options.wait, say)
    wait_while_held(os.path.splitext(options.lock)[0] + ".hold", options.name, say)
    look_for_hardware(options)
    os.environ[LOCK_FD] = str(fd)
    try:
        os.execvp(options.command[0], options.command)
    except OSError as error:
        raise Stop(NOT_FOUND, f"cannot start {options.command[0]}: {error.strerror}") from None


def main() -> int:
    """Entry point: exit statuses are those of Stop, else the command's own."""
    try:
        launch(sys.argv[1:])
    except Stop as stop:
        print(f"launcher: {stop}", file=sys.stderr, flush=True)
        return stop.status
    except OSError as error:
        print(f"launcher: {error}", file=sys.stderr, flush=True)
        return TAKEN


if __name__ == "__main__":
    sys.exit(main())
