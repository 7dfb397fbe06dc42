"""A simulated node to which everything happens, in an order that a seed decides, and what must hold all the while."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from devherd.control import ControlError
from devherd.sim.client import SimError
from devherd.sim.node import Node

from support import naughty_vendor
from support.rival import RivalProcess
from support.turmoil import Action, Broken, Turmoil
from support.two_vendors import TwoVendors

TOTALS = {"example.com/accelerator": 8, "example.com/serial": 4, "example.com/kvm": 10}
PODS = {"example.com/accelerator": 3, "example.com/serial": 2}
CONTESTED = "example.com/kvm"
"""No pod holds it: a kubelet whose list loses an id in use may crash, whoever took it away."""
BREAKABLE = tuple(f"/dev/accel/accel{n}" for n in range(8))
CALM = 25.0
"""Seconds within which everything must be right again after whatever happened."""


class Storm(Turmoil):
    """A simulated node's turmoil: `start`, `run` for a while, `finish`."""

    node: TwoVendors

    def __init__(self, node: TwoVendors, seed: int, disks: bool) -> None:
        super().__init__(node, seed)
        self.pods = 0
        self._disks = disks
        self._held: dict[str, Any] = {}
        self._broken: set[str] = set()
        self._frozen_life = 0
        self._rival_at = 0.0

    def actions(self) -> list[tuple[Action, int]]:
        """What may happen, and how often beside the others."""
        return [
            (self.restart_kubelet, 6),
            (self.start_kubelet_twice, 3),
            (self.kubelet_away, 2),
            (self.kill_kubelet_during_register, 2),
            (self.slow_to_listen, 2),
            (self.freeze_kubelet, 2),
            (self.cut_stream, 3),
            (self.skip_stream, 1),
            (self.move_socket_away, 1),
            (self.replace_folder, 2),
            (self.remove_own_socket, 2),
            (self.kill_front, 4),
            (self.end_front, 1),
            (self.signals, 2),
            (self.kill_probe, 2),
            (self.stop_probe, 2),
            (self.kill_watcher, 3),
            (self.kill_supervisord, 2),
            (self.reboot, 2),
            (self.break_device, 4),
            (self.break_configuration, 2),
            (self.misbehave, 3),
            (self.move_clock, 1),
            (self.no_descriptors, 2),
            (self.no_memory_for_the_probe, 1),
            (self.rival, 2),
            *([(self.fill_state, 2), (self.fill_run, 2)] if self._disks else []),
        ]

    def start(self) -> None:
        """Pods that must live through all of it."""
        for name, total in TOTALS.items():
            self.client.wait_resource(name, allocatable=total, timeout=20)
        self.client.wait_resource(naughty_vendor.RESOURCE, allocatable=naughty_vendor.COUNT, timeout=20)
        for name, count in PODS.items():
            self.add_pod(name, count)
        self.start_watching()

    def before_each(self) -> None:
        """A kubelet."""
        if not self.node.kubelet.alive:
            self.node.kubelet.start()

    def in_between(self) -> None:
        """Pods come and go."""
        self.turn_over_pods()

    def finish(self) -> None:
        """The last look: nothing is left that should not be."""
        self.stop_watching()
        fronts = self.fronts()
        if {name: len(pids) for name, pids in fronts.items()} != {"generic": 1, "naughty": 1}:
            raise Broken(f"fronts at the end: {fronts}")

    @property
    def client(self) -> Any:
        """The kubelet's control."""
        return self.node.kubelet.client

    # What must hold

    def calm(self) -> None:
        """Wait until all is well; Broken when it does not become so."""
        end = time.monotonic() + CALM
        why = "nothing was looked at"
        while time.monotonic() < end:
            self.check_processes()
            try:
                why = self.unsettled()
            except (SimError, ControlError) as error:
                why = str(error)
            if not why:
                self.check_registrations()
                return
            time.sleep(0.03)
        raise Broken(f"after {CALM:g} s still: {why}")

    def unsettled(self) -> str:
        """What is not as it should be yet. Broken where it can never become right again."""
        seen = self.client.node()
        if not seen["sources_ready"]:
            return "the kubelet does not know all its pods yet, and frees nothing until it does"
        shown = seen["resources"]
        accelerators = TOTALS["example.com/accelerator"] - len(self._broken)
        wanted = {**TOTALS, "example.com/accelerator": accelerators, naughty_vendor.RESOURCE: naughty_vendor.COUNT}
        for name, count in wanted.items():
            if name not in shown or shown[name]["allocatable"] != count or shown[name]["stopped"]:
                return f"{name}: {shown.get(name)} instead of {count}"
        pods = self.holdings()
        for name, (phase, devices, nodes) in pods.items():
            if phase == "Failed":
                raise Broken(f"pod {name} failed: {self.client.pods(name)[0]['message']}")
            if name not in self._held or (phase, devices) != self._held[name][:2] or set(nodes) != self._held[name][2]:
                return f"pod {name}: {phase} {devices} {nodes} instead of {self._held.get(name)}"
        if set(pods) != set(self._held):
            raise Broken(f"pods {sorted(pods)} instead of {sorted(self._held)}")
        node = Node.open(self.node.layout.node)
        for name, (_, _, nodes) in pods.items():
            for path, thing in nodes.items():
                if thing != node.thing(path):
                    raise Broken(f"pod {name} has {thing} behind {path}, where {node.thing(path)} is")
        for plugin in ("generic", "naughty"):
            for row in self.node.front(plugin)["resources"]:
                if row["state"] != "registered":
                    return f"{row['name']}: {row['state']} {row.get('error', '')}"
        return ""

    def holdings(self) -> dict[str, Any]:
        """Each pod's phase, ids, and the thing behind each node that its container was given."""
        found = {}
        for pod in self.client.pods():
            container = pod["containers"][0]
            nodes = {given["host_path"]: given["thing"] for given in (container["record"] or {"nodes": []})["nodes"]}
            found[pod["name"]] = (pod["phase"], container["devices"], nodes)
        return found

    def check_registrations(self) -> None:
        """Never a Register while a stream of ours for that resource is open on the same kubelet."""
        if self._frozen_life == self.node.kubelet.pid:
            # What came while it was stopped, it saw in any order.
            return
        streams: dict[str, int] = {}
        for event in self.client.events():
            ours = event.get("endpoint", "").startswith("devherd")
            if event["what"] in ("stream-open", "stream-end") and ours:
                step = 1 if event["what"] == "stream-open" else -1
                streams[event["resource"]] = streams.get(event["resource"], 0) + step
            elif event["what"] == "register" and ours and streams.get(event["resource"], 0) > 0:
                raise Broken(f"registered with a stream open: {event}")

    # Pods

    def add_pod(self, name: str, count: int) -> None:
        """One that must run; what it gets is what it must keep."""
        self.pods += 1
        pod = self.client.pod_add(f"pod{self.pods}", {name: count}, wait=10)
        if pod["phase"] != "Running":
            raise Broken(f"a pod on a calm node: {pod['phase']} {pod['message']}")
        phase, devices, nodes = self.holdings()[pod["name"]]
        self._held[pod["name"]] = (phase, devices, set(nodes))

    def turn_over_pods(self) -> None:
        """Some pods end, others come; on a calm node each of them must run."""
        if self.random.random() < 0.6:
            return
        name = self.random.choice(sorted(self._held))
        kind, ids = next(iter(self._held.pop(name)[1].items()))
        self.client.pod_rm(name)
        self.add_pod(kind, len(ids))
        if self.random.random() < 0.5:
            running = self.random.choice(sorted(self._held))
            self.client.ask("container-restart", within=15, name=running, wait=10)

    # What happens: the kubelet

    def restart_kubelet(self) -> None:
        """Soft or hard, at once or after a while."""
        self.node.kubelet.restart(hard=self.chance(), downtime=self.random.choice((0.0, 0.0, 0.1, 0.6)))

    def start_kubelet_twice(self) -> None:
        """Two within milliseconds."""
        self.node.kubelet.restart(hard=True, wait=False)
        time.sleep(self.random.random() * 0.05)
        self.node.kubelet.restart(hard=True)

    def kubelet_away(self) -> None:
        """For seconds, while other things go on."""
        self.node.kubelet.stop()
        time.sleep(self.random.random() * 2)
        if self.chance():
            self.kill_front()
        self.node.kubelet.start()

    def kill_kubelet_during_register(self) -> None:
        """It has the call and never answers."""
        self.node.kubelet.stop()
        self.node.kubelet.set(register_delay_ms=20_000)
        self.node.kubelet.start()
        with contextlib.suppress(SimError):
            self.client.wait(2, event="register")
        self.node.kubelet.kill()
        self.node.kubelet.set(register_delay_ms=0)
        self.node.kubelet.start()

    def slow_to_listen(self) -> None:
        """Bound long before it listens."""
        self.node.kubelet.stop()
        self.node.kubelet.set(listen_delay_ms=self.random.choice((5, 50, 400)))
        self.node.kubelet.start()
        self.node.kubelet.set(listen_delay_ms=0)

    def freeze_kubelet(self) -> None:
        """It accepts and answers nothing for a while."""
        self._frozen_life = self.node.kubelet.pid
        self.node.kubelet.freeze()
        time.sleep(self.random.random() * 1.5)
        self.node.kubelet.unfreeze()

    def cut_stream(self) -> None:
        """By a kubelet that lives on."""
        with contextlib.suppress(SimError):
            self.client.ask("cut", resource=self.random.choice(sorted(TOTALS)))

    def skip_stream(self) -> None:
        """OK to Register, and no ListAndWatch."""
        self.node.kubelet.set(skip_streams=1)
        self.node.kubelet.restart()
        with contextlib.suppress(SimError):
            self.client.wait(3, event="stream-skipped")
        # It counts down in its own memory; the next kubelet would begin anew.
        self.node.kubelet.set(skip_streams=0)

    def move_socket_away(self) -> None:
        """In one kubelet's life."""
        away = self.node.kubelet.socket + ".away"
        os.rename(self.node.kubelet.socket, away)
        time.sleep(self.random.random())
        os.rename(away, self.node.kubelet.socket)

    def replace_folder(self) -> None:
        """Deleted and made again, with only the checkpoint kept."""
        folder = self.node.layout.device_plugins
        self.node.kubelet.stop()
        checkpoint = Path(folder, "kubelet_internal_checkpoint")
        kept = checkpoint.read_bytes()
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
        checkpoint.write_bytes(kept)
        time.sleep(self.random.choice((0.0, 0.3)))
        self.node.kubelet.start()

    def remove_own_socket(self) -> None:
        """Somebody tidies up."""
        folder = Path(self.node.layout.device_plugins, "devherd")
        for path in folder.glob("*.sock"):
            if self.chance():
                path.unlink(missing_ok=True)

    def reboot(self) -> None:
        """From a calm node: what was lost before is not the reboot's."""
        self.calm()
        self.node.reboot()
        # A front that is killed before the first pod is admitted again costs pods, whoever wrote it.
        self.calm()

    # What happens: the node

    def break_device(self) -> None:
        """One that nobody holds; or a broken one comes back."""
        node = Node.open(self.node.layout.node)
        if self._broken and (self.chance() or len(self._broken) > 2):
            path = self.random.choice(sorted(self._broken))
            node.heal_device(path)
            self._broken.discard(path)
            return
        held = {path for _, _, paths in self._held.values() for path in paths}
        free = sorted(set(BREAKABLE) - held - self._broken)
        if len(free) > 2:
            path = self.random.choice(free)
            node.break_device(path)
            self._broken.add(path)

    def rival(self) -> None:
        """Another server takes a resource, and goes again. Seldom: its return is meant to take ever longer."""
        if time.monotonic() - self._rival_at < 90 or not self.node.kubelet.alive:
            self.counts["rival"] -= 1
            return
        self.calm()
        with RivalProcess(self.node.layout.device_plugins, CONTESTED, ids="theirs"):
            end = time.monotonic() + 20
            while True:
                rows = {row["name"]: row for row in self.node.front("generic")["resources"]}
                if rows[CONTESTED]["state"] == "taken":
                    break
                if time.monotonic() > end:
                    raise Broken(f"a rival has {CONTESTED}, and we say {rows[CONTESTED]}")
                time.sleep(0.05)
        self._rival_at = time.monotonic()
