"""A machine with two NUMA nodes and a policy: hints, aligned choices, refusals."""

from __future__ import annotations

from devherd.api import deviceplugin_v1beta1_pb2 as pb

from e2e.compare.plugin import Plugin, device
from e2e.compare.scenario import Run, scenario

_BEST = {"topology_policy": "best-effort"}
_SINGLE = {"topology_policy": "single-numa-node"}
_RESTRICTED = {"topology_policy": "restricted"}


def _plugin(run: Run, nodes: dict[str, list[int] | None], name: str = "dev") -> Plugin:
    plugin = run.plugin(name=name, devices=[device(one, nodes=of) for one, of in nodes.items()])
    plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
    assert run.register(plugin) == "OK"
    run.known(plugin)
    return plugin


@scenario("Case A: aligned devices are more than enough, and only they are offered", 26, options=_BEST)
def case_a(run: Run) -> None:
    plugin = _plugin(run, {"a0": [0], "a1": [0], "a2": [0], "b0": [1], "n0": None})
    plugin.preferred = ["a1", "b0"]
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 2})))
    run.note("asked", [c for c in plugin.calls if c[0] == "preferred"])
    run.note("has the preferred one", "a1" in plugin.calls[-1][1][0])
    run.note("all aligned", {name[0] for name in plugin.calls[-1][1][0]} == {"a"})


@scenario("Case B: all aligned devices are taken first, then the plugin is asked for the rest", 26, options=_BEST)
def case_b(run: Run) -> None:
    plugin = _plugin(run, {"a0": [0], "a1": [0], "b0": [1], "n0": None, "n1": None})
    plugin.preferred = ["n1", "a0", "b0", "a1"]
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 4})))
    run.note("asked", [c for c in plugin.calls if c[0] == "preferred"])
    run.note("got", plugin.calls[-1])


@scenario("Node numbers that the machine lacks join no hint", 26, options=_BEST)
def unknown_nodes(run: Run) -> None:
    plugin = _plugin(run, {"a0": [7], "a1": [7], "b0": [1], "b1": [1]})
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 1})))
    run.note("asked", [c for c in plugin.calls if c[0] == "preferred"])
    run.note("on node 1", plugin.calls[-1][1][0][0][0])
    run.note("allocatable", run.allocatable(plugin.resource))


@scenario("A device with several nodes is aligned with each", 26, options=_BEST)
def many_nodes(run: Run) -> None:
    plugin = _plugin(run, {"a0": [0, 1], "a1": [0], "b0": [1]})
    plugin.preferred = ["a0"]
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 2})))
    run.note("has the shared one", "a0" in plugin.calls[-1][1][0])
    run.note("asked", [[c[0], len(c[1]), c[2] != [], c[3]] for c in plugin.calls if c[0] == "preferred"])


@scenario("single-numa-node refuses what fits on no node, before any call", 22, options=_SINGLE)
def single_node(run: Run) -> None:
    plugin = _plugin(run, {"a0": [0], "a1": [0], "b0": [1], "b1": [1]})
    run.note("three", run.outcome(run.pod("p", {plugin.resource: 3})))
    run.note("calls", plugin.kinds())
    run.note("more than there is", run.outcome(run.pod("q", {plugin.resource: 5})))
    run.note("two", run.outcome(run.pod("r", {plugin.resource: 2})))
    run.note("of one node", len({name[0] for name in plugin.calls[-1][1][0]}))
    run.note("one", run.outcome(run.pod("s", {plugin.resource: 1})))
    run.note("two are left, one a node", run.outcome(run.pod("t", {plugin.resource: 2})))


@scenario("restricted refuses what could fit on one node and does not", 22, options=_RESTRICTED)
def restricted(run: Run) -> None:
    plugin = _plugin(run, {"a0": [0], "a1": [0], "b0": [1], "b1": [1]})
    run.note("three need both nodes", run.outcome(run.pod("p", {plugin.resource: 3})))
    run.note("calls", [c[0] for c in plugin.calls])
    other = _plugin(run, {"a0": [0], "b0": [1]}, "other")
    run.note("two of one a node", run.outcome(run.pod("q", {other.resource: 2})))
    plain = run.registered(2, name="plain")
    run.note("no topology, no opinion", run.outcome(run.pod("r", {plain.resource: 2})))


@scenario("Two resources of one container meet on one node", 26, options=_SINGLE)
def two_resources(run: Run) -> None:
    one = _plugin(run, {"a0": [0], "b0": [1]}, "one")
    two = _plugin(run, {"a0": [0], "a1": [0]}, "two")
    run.note("outcome", run.outcome(run.pod("p", {one.resource: 1, two.resource: 1})))
    run.note("got", [one.calls[-1], sorted(name[0] for name in two.calls[-1][1][0])])
    run.note("not any more", run.outcome(run.pod("q", {one.resource: 1, two.resource: 1})))


@scenario("An id in use that left the list ends a kubelet with a policy at its next start", 40, options=_SINGLE)
def vanished_before_restart(run: Run) -> None:
    plugin = _plugin(run, {"a0": [0], "a1": [0]})
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    mine = next(iter(run.held().values()))["0"]
    plugin.send([one for one in plugin.devices if one.ID not in mine])
    run.until("counts", run.counts, [1, 1])
    run.note("runs on", run.outcome(pod))
    run.boot(plugin)
    run.until("alive", run.side.alive, False, timeout=20)
    run.side.remove(pod)
    run.side.start()
    run.note("alive again", run.side.alive())
