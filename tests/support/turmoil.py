"""What can happen to devherd's own processes, files and limits on any node, in an order that a seed decides.

The kubelet, the pods and what must hold are the business of those who use it: support.storm has a simulated kubelet,
e2e.chaos a real one.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from devherd.control import ControlError
from devherd.process import read_command, read_stat
from devherd.run import leftovers

from support.situation import full, limited
from support.two_vendors import WithNaughty

Action = Callable[[], None]


class Broken(AssertionError):
    """An invariant did not hold."""


class Turmoil(ABC):
    """Things happen in `run`; what does not hold raises Broken. `history` is what happened, for people;
    `diary` is a file that gets it as it happens.

    The same seed gives the same things in the same order, however long each of them takes: what comes next is drawn
    from one generator, and what each does from another, `random`, which begins anew with each of them.
    """

    def __init__(self, node: WithNaughty, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.history: list[str] = []
        self.diary: Path | None = None
        self.counts: dict[str, int] = {}
        self._seed = seed
        self._steps = 0
        self._began = time.monotonic()
        self._violations: list[str] = []
        self._over = threading.Event()
        self._monitor = threading.Thread(target=self._watch, daemon=True)

    # What the others bring

    @abstractmethod
    def actions(self) -> Sequence[tuple[Action, int]]:
        """What may happen, and how often beside the others."""

    @abstractmethod
    def restart_kubelet(self) -> None:
        """Another kubelet, somehow."""

    @abstractmethod
    def calm(self) -> None:
        """Wait until all is well; Broken when it does not become so."""

    @abstractmethod
    def before_each(self) -> None:
        """What must be there for anything to happen to it."""

    @abstractmethod
    def in_between(self) -> None:
        """What goes on between two bursts, on a calm node."""

    # The run

    def run(self, seconds: float) -> None:
        """One thing after the other, now and then without a rest in between, until the time is up."""
        end = time.monotonic() + seconds
        order = random.Random(self._seed)
        names, weights = zip(*self.actions(), strict=True)
        while time.monotonic() < end:
            for action in order.choices(names, weights, k=order.choice((1, 1, 1, 2, 3))):
                self.happen(action)
            self.calm()
            self._next_step()
            self.in_between()

    def happen(self, action: Action) -> None:
        """Have one thing happen."""
        self._next_step()
        self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
        self.note(action.__name__)
        self.before_each()
        action()

    def note(self, text: str) -> None:
        """Add a line to the history."""
        line = f"{time.monotonic() - self._began:8.2f} {text}"
        self.history.append(line)
        if self.diary is not None:
            with open(self.diary, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def story(self, lines: int = 40) -> str:
        """For a person who wants to know why: what happened last, and the end of each log."""
        logs = [
            f"{path.name}:\n{path.read_text(errors='replace')[-5000:]}"
            for path in sorted(Path(self.node.layout.log).glob("*.log"))
        ]
        return "\n".join(["what happened last:", *self.history[-lines:], *logs])

    def summary(self) -> str:
        """What happened how often."""
        happened = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return f"{sum(self.counts.values())} things happened: {happened}"

    def chance(self) -> bool:
        """Heads or tails."""
        return self.random.random() < 0.5

    def _next_step(self) -> None:
        self._steps += 1
        self.random = random.Random(f"{self._seed} {self._steps}")

    # What is watched all the time

    def start_watching(self) -> None:
        """From now on, never two fronts of one plugin."""
        self._monitor.start()

    def stop_watching(self) -> None:
        """The last look."""
        self._over.set()
        self._monitor.join()
        self.check_processes()

    def check_processes(self) -> None:
        """What the monitor saw."""
        if self._violations:
            raise Broken(self._violations[0])

    def _watch(self) -> None:
        while not self._over.wait(0.15):
            self.watch()

    def watch(self) -> None:
        """Look once, from the monitor's own thread."""
        for plugin, pids in self.fronts().items():
            if len(pids) > 1:
                self.violated(f"two fronts for {plugin}: {pids}")

    def violated(self, text: str) -> None:
        """Note what the monitor saw; the next check raises it."""
        self._violations.append(text)

    def fronts(self) -> dict[str, list[int]]:
        """Fronts that run now, by plugin: not those that still wait in the launcher, or that are ending.

        A front that starts its probe is, for a moment, two processes that look the same: its own fork is none either.
        """
        seen: dict[int, tuple[str, int]] = {}
        for pid in leftovers.marked(self.node.layout.folder):
            command, stat = read_command(pid), read_stat(pid)
            if "devherd.front" not in command or "devherd.launcher" in command or stat is None or stat.state in "ZX":
                continue
            seen[pid] = (command[command.index("--plugin") + 1], stat.parent)
        found: dict[str, list[int]] = {}
        for pid, (plugin, parent) in seen.items():
            if parent not in seen:
                found.setdefault(plugin, []).append(pid)
        return found

    # What happens: our processes

    def kill_front(self) -> None:
        """SIGKILL."""
        self.signal_front(signal.SIGKILL)

    def end_front(self) -> None:
        """SIGTERM, as supervisorctl would."""
        self.signal_front(signal.SIGTERM)

    def signals(self) -> None:
        """Many, at any moment of a front's life."""
        if self.chance():
            self.kill_front()
        for _ in range(60):
            self.send(self.fronts().get("generic", []), self.random.choice((signal.SIGUSR1, signal.SIGHUP)))
            time.sleep(0.005)

    def kill_probe(self) -> None:
        """SIGKILL."""
        self.signal_probe(signal.SIGKILL)

    def stop_probe(self) -> None:
        """It hangs; nobody ever wakes it."""
        self.signal_probe(signal.SIGSTOP)

    def kill_watcher(self) -> None:
        """Once, or so often that it crash-loops."""
        for _ in range(self.random.choice((1, 1, 4))):
            marked = leftovers.marked(self.node.layout.folder)
            self.send([pid for pid in marked if "devherd_watcher" in read_command(pid)], signal.SIGKILL)
            time.sleep(0.05)

    def kill_supervisord(self) -> None:
        """And start it again, at once or while its orphans still go."""
        pid = self.node.supervisor.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        time.sleep(self.random.choice((0.0, 0.02, 0.3)))
        self.node.supervisor.start()

    def signal_front(self, number: int) -> None:
        """To one of them."""
        self.send(self.fronts().get(self.random.choice(("generic", "generic", "naughty")), []), number)

    def signal_probe(self, number: int) -> None:
        """To the generic plugin's."""
        with contextlib.suppress(ControlError):
            self.send([self.node.front("generic")["probe"]["pid"]], number)

    def send(self, pids: Sequence[int | None], number: int) -> None:
        """To those that still live."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, number)

    def misbehave(self) -> None:
        """The other vendor, for a while."""
        self.node.mood(self.random.choice(("crash", "hang", "memory", "kill")))
        time.sleep(0.5 + self.random.random())
        self.node.mood("good")

    # What happens: files, limits, clocks

    def break_configuration(self) -> None:
        """A typo, loaded, and mended."""
        path = Path(self.node.layout.at("etc", "plugins.d", "generic.yaml"))
        good = path.read_text(encoding="utf-8")
        path.write_text(self.random.choice(("{", "devices: 7\n", good + "\nnonsense: 1\n")), encoding="utf-8")
        self.send(self.fronts().get("generic", []), signal.SIGHUP)
        if self.chance():
            self.kill_front()
        time.sleep(0.3)
        path.write_text(good, encoding="utf-8")
        self.send(self.fronts().get("generic", []), signal.SIGHUP)

    def move_clock(self) -> None:
        """The other vendor's, by hours or years."""
        self.node.move_clock(self.random.choice((-1.0, 1.0)) * 10 ** self.random.randrange(3, 8))

    def no_descriptors(self) -> None:
        """For a second, with a kubelet that comes just then."""
        self._limited(resource.RLIMIT_NOFILE, 3, self.fronts().get("generic", []))

    def no_memory_for_the_probe(self) -> None:
        """Any allocation may fail."""
        with contextlib.suppress(ControlError, ProcessLookupError):
            pid = self.node.front("generic")["probe"]["pid"]
            if pid:
                self._limited(resource.RLIMIT_AS, 1 << 20, [pid])

    def _limited(self, kind: int, soft: int, pids: list[int]) -> None:
        with contextlib.ExitStack() as stack:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    stack.enter_context(limited(pid, kind, soft))
            if self.chance():
                self.restart_kubelet()
            time.sleep(0.7)

    def fill_state(self) -> None:
        """/var is full."""
        self._filled(self.node.layout.state)

    def fill_run(self) -> None:
        """/run is full."""
        self._filled(self.node.layout.run)

    def _filled(self, place: str) -> None:
        with full(place):
            if self.chance():
                self.restart_kubelet()
            if self.chance():
                self.kill_front()
            time.sleep(0.5 + self.random.random())
