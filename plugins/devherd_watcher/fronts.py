"""The programs supervisord runs, known before they are needed, and the signal to the fronts among them.

They are supervisord's children, so the kernel lists them: nobody has to be asked, and a process that is not
supervised is never signalled. Each is held by a pidfd where the kernel has one.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple

from devherd.process import Handle, children_of, read_command, read_signals, read_stat

FRONT = "devherd.front"


class Program:
    """One child of supervisord. `front` is None until it has exec'd; `safe` once the signal cannot kill it.

    `supervised` is the name supervisord has for it, `plugin` the one of its control socket.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.name = ""
        self.plugin = ""
        self.supervised = ""
        self.front: bool | None = None
        self.safe = False

    def control(self, run: str) -> str:
        """Path of its control socket."""
        return os.path.join(run, f"{self.plugin or self.name}.control.sock")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.handle.pid


class Round(NamedTuple):
    """Whom one round of signals reached. `starting` could not have handled it, and looks for itself anyway."""

    reached: tuple[Program, ...]
    starting: tuple[Program, ...]


class Fronts:
    """The children of one supervisord."""

    def __init__(self, supervisor: int) -> None:
        self.supervisor = supervisor
        stat = read_stat(supervisor)
        self.identity = (supervisor, stat.start if stat is not None else 0)
        self._programs: dict[int, Program] = {}
        self._before_exec = read_command(supervisor)

    def programs(self) -> list[Program]:
        """All that live, by name."""
        return sorted(self._programs.values(), key=lambda program: (program.name, program.pid))

    def fds(self) -> list[int]:
        """Descriptors that become readable when a program ends; `refresh` closes them then."""
        return [program.handle.fd for program in self._programs.values() if program.handle.fd >= 0]

    def refresh(self) -> bool:
        """Look at supervisord's children. False: one of them has not become what it will be; look again soon."""
        for pid in [pid for pid, program in self._programs.items() if program.handle.wait(0)]:
            self._programs.pop(pid).handle.close()
        for pid in children_of(self.supervisor):
            if pid not in self._programs:
                self._add(pid)
        for program in self._programs.values():
            # What is no front may still exec one.
            if not program.front:
                self._classify(program)
        return all(program.front is not None for program in self._programs.values())

    def signal(self, number: int) -> Round:
        """Signal every front. Those known go first; then one look for any that came since."""
        known = set(self._programs)
        first = self._send(number, known)
        self.refresh()
        # One that had not exec'd in the first round may be a front now.
        second = self._send(number, {pid for pid in self._programs if pid not in {p.pid for p in first.reached}})
        return Round(first.reached + second.reached, second.starting)

    def close(self) -> None:
        """Let go of all of them."""
        for program in self._programs.values():
            program.handle.close()
        self._programs.clear()

    def _send(self, number: int, pids: set[int]) -> Round:
        reached, starting = [], []
        for pid in pids:
            program = self._programs[pid]
            if not program.front:
                continue
            if not program.safe:
                signals = read_signals(pid)
                # Blocked or caught once, it stays so: the mask survives exec, and the handler comes before its end.
                program.safe = signals is not None and signals.harmless(number)
            if not program.safe:
                starting.append(program)
            elif program.handle.send(number):
                reached.append(program)
        return Round(tuple(reached), tuple(starting))

    def _add(self, pid: int) -> None:
        try:
            handle = Handle(pid)
        except OSError:
            return
        if handle.stat.parent == self.supervisor and pid != os.getpid():
            self._programs[pid] = Program(handle)
        else:
            handle.close()

    def _classify(self, program: Program) -> None:
        command = read_command(program.pid)
        if not command or command == self._before_exec:
            return
        program.front = FRONT in command
        program.plugin = _option(command, "--plugin")
        program.supervised = _supervised(program.pid) or program.name
        program.name = _option(command, "--name") or _option(command, "--plugin") or os.path.basename(command[0])


def _supervised(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = dict(word.partition(b"=")[::2] for word in file.read().split(b"\0"))
    except OSError:
        return ""
    name, group = words.get(b"SUPERVISOR_PROCESS_NAME", b""), words.get(b"SUPERVISOR_GROUP_NAME", b"")
    return os.fsdecode(name if group in (b"", name) else group + b":" + name)


def _option(command: list[str], name: str) -> str:
    return dict(pairwise(command)).get(name, "")
