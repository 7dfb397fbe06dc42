"""What happens in the chaos: to a real kubelet and its runtime, to the hardware, the configuration, memory and pods."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from support.turmoil import Action

from e2e.chaos_calm import FIRST, PODS_MAX, Calm
from e2e.chaos_pods import Requests
from e2e.chaos_site import CARD, EXTRA, EXTRA_RULE, PORT, RULES, SHARED
from e2e.node import DEVICE_PLUGINS, NAME, SOCKET
from e2e.programs import TookTooLong, wait

LATER: tuple[Requests, ...] = ({CARD: 1}, {PORT: 1}, {SHARED: 2}, {CARD: 1, SHARED: 1})


class Chaos(Calm):
    """A real node to which everything happens; `only`: the names of what may happen, none for everything."""

    only: Sequence[str] = ()

    def actions(self) -> list[tuple[Action, int]]:
        """What may happen, and how often beside the others."""
        known = {action.__name__: (action, weight) for action, weight in self._all_actions()}
        return [known[name] for name in self.only] if self.only else list(known.values())

    def _all_actions(self) -> list[tuple[Action, int]]:
        return [
            (self.restart_kubelet, 6),
            (self.start_kubelet_twice, 3),
            (self.kubelet_away, 2),
            (self.freeze_kubelet, 3),
            (self.move_socket_away, 1),
            (self.wipe_sockets, 2),
            (self.remove_own_socket, 2),
            (self.replace_folder, 2),
            (self.kill_containerd, 2),
            (self.reboot, 2),
            (self.kill_front, 4),
            (self.end_front, 1),
            (self.signals, 2),
            (self.kill_probe, 2),
            (self.stop_probe, 2),
            (self.kill_watcher, 2),
            (self.kill_supervisord, 2),
            (self.hot_plug, 6),
            (self.flap, 2),
            (self.renumber, 3),
            (self.reload, 3),
            (self.break_configuration, 2),
            (self.misbehave, 2),
            (self.move_clock, 1),
            (self.no_descriptors, 1),
            (self.no_memory_for_the_probe, 1),
            (self.pod_comes, 6),
            (self.pod_goes, 4),
            *([(self.fill_state, 2), (self.fill_run, 1)] if self.node.disks else []),
            *([(self.squeeze_memory, 2)] if self.node.memory else []),
        ]

    # What happens: the kubelet and containerd

    def restart_kubelet(self) -> None:
        """Soft or hard, at once or after a while."""
        self.kubelet.kubelet_stop(self.random.choice((signal.SIGKILL, signal.SIGTERM)))
        time.sleep(self.random.choice((0.0, 0.0, 0.1, 0.6)))
        self.kubelet.kubelet_start()
        self.kubelet.wait_healthy()

    def start_kubelet_twice(self) -> None:
        """The first dies while it starts: before, just after, or long after its socket."""
        self.kubelet.kubelet_stop(signal.SIGKILL)
        self.kubelet.kubelet_start()
        if self.chance():
            with contextlib.suppress(TookTooLong):
                wait(lambda: self.kubelet.log().listening() is not None, 20, "a socket", every=0.002)
            time.sleep(self.random.random() * 0.05)
        else:
            time.sleep(self.random.random() * 2)
        self.kubelet.kubelet_stop(signal.SIGKILL)
        self.kubelet.kubelet_start()

    def kubelet_away(self) -> None:
        """For seconds, while other things go on."""
        self.kubelet.kubelet_stop()
        time.sleep(self.random.random() * 2)
        if self.chance():
            self.kill_front()
        self.kubelet.kubelet_start()

    def freeze_kubelet(self) -> None:
        """It accepts and answers nothing for a while."""
        self.kubelet.kubelet_freeze()
        time.sleep(self.random.random() * 2)
        if self.chance():
            self.kill_front()
            time.sleep(self.random.random())
        self.kubelet.kubelet_thaw()

    def kill_containerd(self) -> None:
        """Containers go on without it; now and then a kubelet starts meanwhile."""
        self.kubelet.containerd.stop(signal.SIGKILL)
        time.sleep(self.random.random())
        if self.chance():
            self.kubelet.kubelet_stop(signal.SIGKILL)
            self.kubelet.kubelet_start()
            time.sleep(self.random.random())
        self.kubelet.containerd.start()

    def move_socket_away(self) -> None:
        """In one kubelet's life."""
        away = SOCKET.with_name("kubelet.sock.away")
        with contextlib.suppress(FileNotFoundError):
            os.rename(SOCKET, away)
            time.sleep(self.random.random())
            os.rename(away, SOCKET)

    def wipe_sockets(self) -> None:
        """Somebody removes every socket, the kubelet's too; only another kubelet has one again."""
        for path in (*DEVICE_PLUGINS.glob("*.sock"), *DEVICE_PLUGINS.glob("devherd/*.sock")):
            path.unlink(missing_ok=True)
        time.sleep(self.random.random())
        self.restart_kubelet()

    def remove_own_socket(self) -> None:
        """Somebody tidies up."""
        for path in sorted(DEVICE_PLUGINS.glob("devherd/*.sock")):
            if self.chance():
                path.unlink(missing_ok=True)

    def replace_folder(self) -> None:
        """Deleted and made again, with only the checkpoint kept; before the kubelet ends, or after it."""
        early = self.chance()
        if not early:
            self.kubelet.kubelet_stop()
        checkpoint = DEVICE_PLUGINS / "kubelet_internal_checkpoint"
        kept = checkpoint.read_bytes()
        shutil.rmtree(DEVICE_PLUGINS, ignore_errors=True)
        DEVICE_PLUGINS.mkdir(exist_ok=True)
        checkpoint.write_bytes(kept)
        time.sleep(self.random.choice((0.0, 0.3)))
        if early:
            self.kubelet.kubelet_stop(signal.SIGKILL)
        self.kubelet.kubelet_start()

    def reboot(self) -> None:
        """From a calm node: what was lost before is not the reboot's."""
        self.calm()
        self.steady = {}
        doomed = self.pods.doomed()
        self.note(f"reboot with {len(self.pods.held)} pods, {doomed} have no device any more")
        self.kubelet.kubelet_stop(signal.SIGKILL)
        self.node.crash()
        self.kubelet.reboot(before_kubelet=self._boot)
        self.kubelet.wait_healthy()
        self.pods.after_reboot(doomed)
        self.calm()

    def _boot(self) -> None:
        """devherd first, and a kubelet when there is something to register: what the unit before it waits for."""
        self.node.boot()
        wait(self.node.ready, 60, "every front has its resources", every=0.01)

    # What happens: the hardware

    def hot_plug(self) -> None:
        """A device goes, held or not; or one that is away comes back. At least two of each kind stay."""
        path = self.random.choice(self.hardware.paths(CARD, PORT))
        self._plug(path) if self.hardware.number(path) is None else self._pull(path)

    def flap(self) -> None:
        """Away and back, some times, quickly."""
        path = self.random.choice(self.hardware.paths(CARD, PORT))
        for _ in range(self.random.randrange(1, 5)):
            self._pull(path)
            time.sleep(self.random.choice((0.0, 0.005, 0.1, 0.5)))
            self._plug(path)
            time.sleep(self.random.choice((0.0, 0.005, 0.1)))

    def renumber(self) -> None:
        """Another device appears under a path, as when one is lost and its neighbours move up; or the old one again."""
        path = self.random.choice(self.hardware.paths(CARD, PORT))
        other = self.hardware.number(path) in (None, self.hardware.first_number(path))
        self.note(f"{path}, held by {self.pods.holders(path)}, becomes {'another' if other else 'what it was'}")
        self.hardware.pull(path)
        time.sleep(self.random.choice((0.0, 0.0, 0.3)))
        self.hardware.plug(path, other)
        self.pods.changed(path)

    def _pull(self, path: str) -> None:
        self.note(f"{path}, held by {self.pods.holders(path)}, goes")
        self.hardware.pull(path)

    def _plug(self, path: str) -> None:
        self.note(f"{path} comes")
        self.hardware.plug(path)
        self.pods.changed(path)

    # What happens: configuration, memory, pods

    def reload(self) -> None:
        """A good configuration: a resource more, or one fewer."""
        self.extra = not self.extra
        rules = [*RULES, *([EXTRA_RULE] if self.extra else [])]
        path = Path(self.node.layout.at("etc", "plugins.d", "generic.yaml"))
        path.write_text(json.dumps({"domain": "example.com", "devices": rules}))
        self.send(self.fronts().get("generic", []), signal.SIGHUP)
        self.note(f"{EXTRA} is {'in' if self.extra else 'not in'} the configuration")

    def squeeze_memory(self) -> None:
        """Next to nothing is left, somebody else wants it too, and the kernel ends whom it likes."""
        assert self.node.memory is not None
        self.node.memory.squeeze(self.random.choice((1, 4, 16)) << 20, self.random.randrange(1, 4))

    def pod_comes(self) -> None:
        """Whatever goes on: it may be refused, but if it runs, then with what it asked for."""
        requests = self.random.choice(LATER)
        if len(self.pods.held) + len(self.pods.coming) < PODS_MAX:
            self.note(f"{self.pods.come(requests)} comes: {requests}")

    def pod_goes(self) -> None:
        """Whatever goes on. The oldest stay."""
        names = sorted(self.pods.held, key=lambda name: self.pods.held[name].born)[len(FIRST) :]
        if names:
            name = self.random.choice(names)
            self.steady = {pod: id for pod, id in self.steady.items() if pod != f"{name}-{NAME}"}
            self.note(f"{name} goes")
            self.pods.go(name)
