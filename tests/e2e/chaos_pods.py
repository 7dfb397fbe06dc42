"""The pods of the chaos: what each must keep, which may be refused, and what the kubelet may give to the next."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from devherd_generic.units import device_id
from support.turmoil import Broken

from e2e.chaos_site import COPIES, FAMILIES, Hardware, KeptKubelet
from e2e.node import NAME
from e2e.pods import PodView
from e2e.programs import wait

Requests = Mapping[str, int]
Number = tuple[int, int]
REFUSALS = ("UnexpectedAdmissionError", "OutOf", "TopologyAffinityError")
"""Reasons for which a kubelet refuses a pod that came while things happened. Nobody promises it a device then."""
SETTLES = 90.0
"""Seconds for a pod that came while things happened: the kubelet's own pauses after a failed start are long."""


@dataclass(frozen=True)
class Held:
    """A pod that runs. `ids` it must keep, in the container `container`, which is the same until a reboot."""

    name: str
    requests: Requests
    uid: str
    container: str
    ids: Mapping[str, frozenset[str]]
    born: float = field(default_factory=time.monotonic)


class Pods:
    """All of them, by name. `may_be_lost`: a reboot's pod that the kubelet admits too early is counted, no more."""

    def __init__(self, kubelet: KeptKubelet, hardware: Hardware, may_be_lost: bool) -> None:
        self.held: dict[str, Held] = {}
        self.coming: dict[str, Requests] = {}
        self.going: set[str] = set()
        self.outcomes = {"ran": 0, "refused": 0, "stuck": 0, "lost by a reboot": 0}
        self._may_be_lost = may_be_lost
        self._kubelet = kubelet
        self._hardware = hardware
        self._number = 0
        # What was behind an id's node when it was last given away; what was behind each since the last pod came.
        self._given: dict[str, Number] = {}
        self._past: dict[str, set[Number]] = {}
        # Nodes that were something else while a pod came: it may have been given that and have gone unseen.
        self._unsure: set[str] = set()

    # Coming and going

    def come(self, requests: Requests) -> str:
        """A pod is wanted; nobody waits for it."""
        self._number += 1
        name = f"pod{self._number}"
        self.coming[name] = requests
        for path in set(self._hardware.path_of.values()):
            self._past[path] = set()
            self.changed(path)
        self._kubelet.static(name, requests)
        return name

    def add(self, requests: Requests) -> str:
        """A pod on a calm node: it must run, and what it gets is what it must keep."""
        name = self.come(requests)
        view = self._kubelet.wait_pod(f"{name}-{NAME}", timeout=SETTLES)
        del self.coming[name]
        self._take(name, requests, view)
        return name

    def go(self, name: str) -> None:
        """A pod is not wanted any more; nobody waits."""
        self.held.pop(name, None)
        self.coming.pop(name, None)
        self.going.add(name)
        with contextlib.suppress(FileNotFoundError):
            (self._kubelet.manifests / f"{name}.json").unlink()

    def settle(self) -> None:
        """Wait until every pod that came meanwhile runs or is refused, and every other one is gone."""
        end = time.monotonic() + SETTLES
        while self.coming or self.going:
            pods = self._kubelet.pods()
            if pods or self._kubelet.metrics():
                self._resolve(pods)
                self.going = {name for name in self.going if f"{name}-{NAME}" in pods}
            if time.monotonic() > end:
                left = {name: pods.get(f"{name}-{NAME}") for name in (*self.coming, *self.going)}
                raise Broken(f"after {SETTLES:g} s these pods neither run nor are refused, or do not go: {left}")
            if self.coming or self.going:
                time.sleep(0.1)

    def _resolve(self, pods: Mapping[str, PodView]) -> None:
        for name, requests in list(self.coming.items()):
            view = pods.get(f"{name}-{NAME}")
            if view is None:
                continue
            if view.running:
                del self.coming[name]
                self._take(name, requests, view)
                self.outcomes["ran"] += 1
            elif view.failed:
                if not view.reason.startswith(REFUSALS):
                    raise Broken(f"pod {name} failed: {view.reason}: {view.message}")
                self.outcomes["refused"] += 1
                self.go(name)
            elif self._waits_for_what_is_gone(view):
                self.outcomes["stuck"] += 1
                self.go(name)

    def _waits_for_what_is_gone(self, view: PodView) -> bool:
        """Its device was pulled between the kubelet's choice and the container: it may wait until that is back."""
        waiting = [one.waiting for one in view.containers.values()]
        if not any(word.endswith(("Error", "BackOff")) for word in waiting):
            return False
        ids = [id for some in self._kubelet.held().get(view.uid, {}).values() for id in some]
        return any(id in self._hardware.path_of and self._now(self._hardware.path_of[id]) is None for id in ids)

    # What a pod got

    def _take(self, name: str, requests: Requests, view: PodView) -> None:
        ids = self._kubelet.held().get(view.uid, {})
        if {resource: len(some) for resource, some in ids.items()} != dict(requests):
            raise Broken(f"pod {name} asked for {dict(requests)} and runs with {ids}")
        for resource, some in ids.items():
            if not some <= self._hardware.ids[resource]:
                raise Broken(f"pod {name} was given an id of {resource} that does not exist: {some}")
            taken = {id: one.name for one in self.held.values() for id in one.ids.get(resource, ()) if id in some}
            if taken:
                raise Broken(f"pod {name} was given what others hold: {taken}")
        self.held[name] = Held(name, requests, view.uid, view.containers["c"].id, ids)
        for path, number in self.look_inside(name, self._past).items():
            for copy in range(COPIES.get(self._resource(path), 1)):
                if (id := device_id(copy, (path,))) in ids.get(self._resource(path), ()):
                    self._given[id] = number

    def look_inside(self, name: str, right: Mapping[str, set[Number]] | None = None) -> dict[str, Number]:
        """The device nodes in a pod's container; Broken unless they are those of its ids.

        `right`: what may be behind each path; usually what was there when the id was given.
        """
        held = self.held[name]
        # On a busy machine containerd 1.6 may lose the end of what a program in a container says; mounts come last.
        seen = wait(
            lambda: one if (one := self._kubelet.look(f"{name}-{NAME}")).mounts else None, 20, f"{name} answers"
        )
        assert seen is not None
        ours = {path: number for path, number in seen.nodes.items() if path in self._hardware.path_of.values()}
        ids = self._ids(held)
        wanted = {self._hardware.path_of[id] for id in ids}
        if set(ours) != wanted:
            raise Broken(f"pod {name} holds {sorted(wanted)} and has {ours} inside: {seen}")
        for id in ids:
            path = self._hardware.path_of[id]
            fine = right[path] if right is not None else {self._given[id]}
            if ours[path] not in fine:
                raise Broken(f"pod {name} has {ours[path]} behind {path}, and {fine} is right")
        return ours

    # What must hold

    def unsettled(self) -> str:
        """What a pod that must run lacks just now; Broken where that can never become right again."""
        pods, held = self._kubelet.pods(), self._kubelet.held()
        for one in self.held.values():
            view = pods.get(f"{one.name}-{NAME}")
            if view is None:
                return f"the kubelet does not know pod {one.name} yet"
            if view.failed:
                raise Broken(f"pod {one.name} is lost: {view.reason}: {view.message}")
            container = view.containers.get("c")
            if container is None or not container.running:
                return f"pod {one.name} does not run: {container}"
            if container.id != one.container:
                raise Broken(f"pod {one.name} has another container: {container.id} instead of {one.container}")
            if held.get(view.uid) != one.ids:
                return f"pod {one.name} holds {held.get(view.uid)} instead of {one.ids}"
        return ""

    def doomed(self) -> list[str]:
        """Pods that a reboot may not start again: what they hold is absent, or another device has its place."""
        return [
            name
            for name, one in self.held.items()
            if any(self._now(self._hardware.path_of[id]) != self._given[id] for id in self._ids(one))
        ]

    def after_reboot(self, doomed: list[str]) -> None:
        """Every pod runs again with what it had, in another container; the doomed ones failed, and are taken away."""
        for name in doomed:
            view = self._kubelet.wait_pod(f"{name}-{NAME}", "Failed", SETTLES)
            if view.reason not in REFUSALS:
                raise Broken(f"pod {name}, whose device is gone, failed: {view.reason}: {view.message}")
            self.go(name)
        for name, one in list(self.held.items()):
            view = self._after_reboot(f"{name}-{NAME}")
            if view.failed and self._may_be_lost:
                self.outcomes["lost by a reboot"] += 1
                self.go(name)
                continue
            if not view.running:
                raise Broken(f"pod {name} is lost by a reboot: {view.phase} {view.reason}: {view.message}")
            self.held[name] = Held(name, one.requests, view.uid, view.containers["c"].id, one.ids)
            self.look_inside(name)

    def _after_reboot(self, name: str) -> PodView:
        def look() -> PodView | None:
            view = self._kubelet.pod(name)
            return view if view is not None and (view.running or view.failed) else None

        found = wait(look, SETTLES, f"pod {name} runs again", every=0.1)
        assert found is not None
        return found

    # What the kubelet should have

    def truth(self, resource: str) -> tuple[frozenset[str], frozenset[str]]:
        """Ids that must be healthy, and those that may be: to be sure that a pod has let go takes minutes."""
        if resource not in FAMILIES:
            return self._hardware.ids[resource], frozenset()
        held = {id for one in self.held.values() for id in self._ids(one)}
        must, may = set(), set()
        for id in self._hardware.ids[resource]:
            path = self._hardware.path_of[id]
            now = self._now(path)
            if now is None:
                continue
            as_given = now == self._given.get(id, now)
            if id in held:
                must |= {id} if as_given else set()
            elif as_given and now == self._hardware.first_number(path) and path not in self._unsure:
                must.add(id)
            else:
                may.add(id)
        return frozenset(must), frozenset(may)

    def free(self, resource: str) -> int:
        """How many more a calm node can give away."""
        held = {id for one in self.held.values() for id in one.ids.get(resource, ())}
        return len(self.truth(resource)[0] - held)

    def changed(self, path: str) -> None:
        """Something else is behind a path now: whoever comes meanwhile may get the one or the other."""
        number = self._now(path)
        if number is None:
            return
        self._past.setdefault(path, set()).add(number)
        if self.coming and number != self._hardware.first_number(path):
            self._unsure.add(path)

    def holders(self, path: str) -> list[str]:
        """Who holds the device behind a path."""
        return [
            one.name for one in self.held.values() if any(self._hardware.path_of[id] == path for id in self._ids(one))
        ]

    def _ids(self, one: Held) -> list[str]:
        return [id for resource, some in one.ids.items() if resource in FAMILIES for id in some]

    def _resource(self, path: str) -> str:
        return "example.com/" + path.split("/")[2]

    def _now(self, path: str) -> Number | None:
        return self._hardware.number(path)
