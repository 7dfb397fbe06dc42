"""What must hold on a real node all the while, and the calm in which the kubelet has to know the truth."""

from __future__ import annotations

import time

import grpc
from devherd.control import ControlError
from support import naughty_vendor
from support.turmoil import Broken, Turmoil

from e2e.chaos_checks import Census, check_log
from e2e.chaos_pods import Pods, Requests
from e2e.chaos_site import CARD, EXTRA, PORT, SHARED, ChaosSuite, Hardware, KeptKubelet
from e2e.node import DEVICE_PLUGINS, NAME
from e2e.programs import TookTooLong, wait

CALM = 5.0
"""Seconds within which the kubelet must know the truth, from when everything that was ended runs again."""
BACK = 90.0
"""Seconds for that: kubelets, containerd and supervisord have pauses of their own for what ends again and again."""
FIRST: tuple[Requests, ...] = ({CARD: 2}, {CARD: 1, PORT: 1}, {SHARED: 3}, {PORT: 1, naughty_vendor.RESOURCE: 1})
PODS_MAX = 8
LOOK = 1.0


class Calm(Turmoil):
    """A real node between two bursts: `start`, `run` for a while, `finish`. What happens is for others to add."""

    node: ChaosSuite

    def __init__(self, suite: ChaosSuite, kubelet: KeptKubelet, hardware: Hardware, seed: int, busy: bool) -> None:
        super().__init__(suite, seed)
        self.calm_seconds = CALM * (3 if busy else 1)
        self.kubelet = kubelet
        self.hardware = hardware
        self.pods = Pods(kubelet, hardware, may_be_lost=busy)
        self.census = Census(suite.layout.folder, DEVICE_PLUGINS, suite.expected_fronts)
        self.calms: list[tuple[float, str]] = []
        self.registers = 0
        self.extra = False
        self._calm_before = 0
        self._checked_lives = 0
        self.steady: dict[str, str] = {}

    # The run

    def start(self) -> None:
        """Pods that must live through all of it."""
        self._wait_back()
        self.node.wait_registered(CARD, PORT, SHARED)
        self._wait_truth(30.0)
        for requests in FIRST:
            self.pods.add(requests)
        self._wait_truth(self.calm_seconds)
        self.start_watching()

    def before_each(self) -> None:
        """A runtime, a kubelet and devherd's service: systemd starts again what ended, whoever ended it."""
        if self.node.supervisor.pid is None:
            self.note("supervisord had ended")
            self.node.supervisor.start()
        if not self.kubelet.containerd.program.running:
            self.kubelet.containerd.start()
        if not self.kubelet.kubelet.running:
            self.kubelet.kubelet_start()

    def in_between(self) -> None:
        """On a calm node pods come and go, and each that comes must run; one is looked into."""
        for requests in FIRST[len(self.pods.held) :]:
            self._add(requests)
        if self.pods.held and self.chance():
            self._turn_over()
        if self.pods.held:
            self.pods.look_inside(self.random.choice(sorted(self.pods.held)))
        self.census.check_growth()

    def _turn_over(self) -> None:
        name = self.random.choice(sorted(self.pods.held))
        requests = self.pods.held[name].requests
        self.steady = {}
        if len(self.pods.held) > len(FIRST) or self.chance():
            self.pods.go(name)
            self.pods.settle()
        if len(self.pods.held) < PODS_MAX:
            self._add(requests)

    def _add(self, requests: Requests) -> None:
        if all(self.pods.free(one) >= count for one, count in requests.items()):
            self.note(f"a pod comes in peace: {requests}")
            self.pods.add(requests)

    def finish(self) -> None:
        """The last look: nothing is left that should not be."""
        self.calm()
        self.stop_watching()
        self._check_logs(last=True)

    # What must hold

    def calm(self) -> None:
        """Wait until everything runs again, then until the kubelet knows the truth; Broken when it does not."""
        self.before_each()
        self._wait_back()
        seconds = self._wait_truth(self.calm_seconds)
        self.calms.append((seconds, "; ".join(line.strip() for line in self.history[self._calm_before :])))
        self.note(f"calm: the truth after {seconds:.2f} s")
        self._calm_before = len(self.history)
        self.pods.settle()
        self._wait_truth(self.calm_seconds)
        self._check_logs()
        self.check_processes()
        self.steady = {f"{one.name}-{NAME}": one.container for one in self.pods.held.values()}

    def _wait_back(self) -> None:
        def back() -> bool:
            self.before_each()
            fronts = {plugin: len(pids) for plugin, pids in self.fronts().items()}
            return fronts == self.node.expected_fronts

        try:
            self.kubelet.wait_healthy(BACK)
            wait(back, BACK, "every front runs")
        except TookTooLong as problem:
            raise Broken(f"{problem}; fronts: {self.fronts()}") from None

    def _wait_truth(self, seconds: float) -> float:
        """How long it took. No look counts as more than `LOOK`: a machine that stands still is not calm."""
        took = 0.0
        while True:
            began = time.monotonic()
            self.check_processes()
            why = self.unsettled()
            if not why:
                return took
            if took > seconds:
                raise Broken(f"after {seconds:g} s of calm still: {why}")
            time.sleep(0.05)
            took += min(time.monotonic() - began, LOOK)

    def unsettled(self) -> str:
        """What is not as it should be yet. Broken where it can never become right again."""
        try:
            allocatable = self.kubelet.allocatable()
            rows = [row for plugin in self.node.expected_fronts for row in self.node.front(plugin)["resources"]]
        except (grpc.RpcError, ControlError) as error:
            return str(error)
        for resource in (CARD, PORT, SHARED, EXTRA, naughty_vendor.RESOURCE):
            must, may = self.pods.truth(resource) if resource != EXTRA or self.extra else (frozenset(), frozenset())
            has = allocatable.get(resource, frozenset())
            if not must <= has <= must | may:
                lacks, wrong = self._names(must - has), self._names(has - must - may)
                return f"{resource}: the kubelet lacks {lacks}, and has {wrong} though it should not"
        for row in rows:
            if row["state"] != "registered" and not row["draining"]:
                return f"{row['name']}: {row['state']} {row.get('error', '')}"
        return self.pods.unsettled() or self.census.unsettled([row["socket"] for row in rows])

    def _names(self, ids: frozenset[str]) -> list[str]:
        return sorted(self.hardware.path_of.get(id, id) for id in ids)

    def _check_logs(self, last: bool = False) -> None:
        """The kubelet's lives that are over; the last one too at the end."""
        while self._checked_lives < self.kubelet.lives - 1:
            self._checked_lives += 1
            path = self.kubelet.life_log(self._checked_lives)
            self.registers += check_log(path, self._checked_lives not in self.kubelet.frozen_lives)
        if last:
            self.registers += check_log(self.kubelet.kubelet.log, self.kubelet.lives not in self.kubelet.frozen_lives)

    def watch(self) -> None:
        """Never two fronts of a plugin; and pods that nobody touches keep their containers."""
        super().watch()
        steady = self.steady
        pods = self.kubelet.pods() if steady else {}
        for name, container in steady.items():
            view = pods.get(name)
            if self.steady is not steady or view is None or not view.containers:
                continue
            now = view.containers["c"]
            if view.failed or (now.id and now.id != container):
                self.violated(f"pod {name}: {view.phase} {view.reason} {view.message} {now}, it had {container}")
