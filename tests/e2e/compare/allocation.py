"""What pods get, and what becomes of those that get nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from devherd.api import deviceplugin_v1beta1_pb2 as pb

from e2e.compare.plugin import Plugin, device
from e2e.compare.scenario import Run, scenario
from e2e.compare.side import Ctr


def full_answer(ids: Sequence[str]) -> pb.ContainerAllocateResponse:
    """One of everything that works on any machine."""
    return pb.ContainerAllocateResponse(
        envs={"IDS": ",".join(sorted(ids)), "EMPTY": ""},
        annotations={"example.com/ids": ",".join(sorted(ids))},
        devices=[pb.DeviceSpec(container_path="/dev/inside", host_path="/dev/null", permissions="rw")],
        mounts=[pb.Mount(container_path="/mnt/inside", host_path="/etc", read_only=True)],
    )


@scenario("One Allocate a container, without deadline; what the container gets is the answer", 25, 33)
def allocate(run: Run) -> None:
    plugin = run.registered(3)
    plugin.answer = full_answer
    pod = run.pod("p", containers=[Ctr("one", {plugin.resource: 3}), Ctr("none")])
    run.note("outcome", run.outcome(pod))
    run.note("calls", plugin.calls)
    run.note("got", run.side.got(pod, "one"))
    run.note("got without", run.side.got(pod, "none"))
    run.note("checkpoint", [run.held(), run.answers(), run.registered_ids()])
    run.note("PodResources", [run.listed(), run.listed("v1alpha1")])
    run.until("counts stay", run.counts, [3, 3])
    run.side.remove(pod)
    run.note("freed for the next", run.outcome(run.pod("q", {plugin.resource: 3})))


@scenario("Containers are asked for one after the other, each with ids of its own", 25)
def two_containers(run: Run) -> None:
    plugin = run.registered(3)
    pod = run.pod("p", containers=[Ctr("one", {plugin.resource: 1}), Ctr("two", {plugin.resource: 2})])
    run.note("outcome", run.outcome(pod))
    run.note("sizes", [len(call[1][0]) for call in plugin.calls if call[0] == "allocate"])
    asked = [one for call in plugin.calls if call[0] == "allocate" for one in call[1][0]]
    run.note("all ids once", sorted(asked))


@scenario("A request of nothing asks for nothing; one of a resource nobody knows is ignored", 25)
def nothing(run: Run) -> None:
    plugin = run.registered(1)
    run.note("zero", run.outcome(run.pod("p", {plugin.resource: 0})))
    run.note("unknown", run.outcome(run.pod("q", {run.resource("never"): 1})))
    run.note("calls", plugin.kinds())


@scenario("Why a pod is refused, in the kubelet's words", 22)
def refusals(run: Run) -> None:
    plugin = run.registered(2)
    run.note("more than there is", run.outcome(run.pod("p", {plugin.resource: 3})))
    plugin.send([device("a0"), device("a1", "Unhealthy")])
    run.until("counts", run.counts, [2, 1])
    run.note("more than is healthy", run.outcome(run.pod("q", {plugin.resource: 2})))
    plugin.send([device("a0", "Unhealthy"), device("a1", "Unhealthy")])
    run.until("counts", run.counts, [2, 0])
    pod = run.pod("r", {plugin.resource: 1})
    run.note("nothing healthy", run.outcome(pod))
    plugin.send([device("a0"), device("a1")])
    run.until("counts", run.counts, [2, 2])
    run.note("it stays so", run.outcome(pod))
    run.note("calls", plugin.kinds())
    run.note("PodResources", run.listed())


@scenario("The plugin's error text ends up in the pod's status", 22)
def allocate_error(run: Run) -> None:
    plugin = run.registered(1)
    plugin.allocate_error = 'a "quoted" text'
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 1})))
    plugin.allocate_error = ""
    run.note("the device is free", run.outcome(run.pod("q", {plugin.resource: 1})))


@scenario("No container response fails the pod, and its ids stay marked; of two the first counts", 27)
def response_counts(run: Run) -> None:
    plugin = run.registered(1)
    plugin.responses = 0
    run.note("none", run.outcome(run.pod("p", {plugin.resource: 1})))
    plugin.responses = 2
    run.note("still marked", run.outcome(run.pod("q", {plugin.resource: 1})))
    other = run.registered(1, name="other")
    other.responses = 2
    pod = run.pod("r", {other.resource: 1})
    run.note("two", run.outcome(pod))
    run.note("got", run.side.got(pod, "c")["env"])


@scenario("GetPreferredAllocation is asked with all that is free, and its answer is advice", 26)
def preferred(run: Run) -> None:
    plugin = _preferring(run, 4)
    plugin.preferred = ["a3", "nonsense", "a1", "a0"]
    run.note("surplus and nonsense", run.outcome(run.pod("p", {plugin.resource: 1})))
    run.note("in the answer", plugin.calls[-1][1][0][0] in plugin.preferred)
    plugin = _preferring(run, 4, "two")
    plugin.preferred = ["b9", "a2"]
    run.note("too few", run.outcome(run.pod("q", {plugin.resource: 2})))
    run.note("has the one", "a2" in plugin.calls[-1][1][0])
    plugin.preferred = []
    run.note("empty", run.outcome(run.pod("r", {plugin.resource: 2})))
    run.note("all are out", len({i for c in plugin.calls if c[0] == "allocate" for i in c[1][0]}))
    run.note("calls", next(c for c in plugin.calls if c[0] == "preferred"))
    run.note("kinds", plugin.kinds())


@scenario("An error in GetPreferredAllocation fails the pod", 26)
def preferred_error(run: Run) -> None:
    plugin = _preferring(run, 2)
    plugin.preferred_error = "cannot choose"
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 1})))
    run.note("calls", plugin.kinds())


def _preferring(run: Run, count: int, name: str = "dev") -> Plugin:
    plugin = run.plugin(count, name=name)
    plugin.options = pb.DevicePluginOptions(get_preferred_allocation_available=True)
    assert run.register(plugin) == "OK"
    run.known(plugin)
    return plugin


@scenario("Init containers pass their devices on; sidecars keep theirs", 29, 34)
def init_and_sidecar(run: Run) -> None:
    plugin = _preferring(run, 3)
    plugin.preferred = ["a0", "a1", "a2"]
    res = plugin.resource
    init = [Ctr("init", {res: 1}), Ctr("side", {res: 1}, sidecar=True), Ctr("init2", {res: 1})]
    pod = run.pod("p", init=init, containers=[Ctr("main", {res: 1})])
    run.note("outcome", run.outcome(pod))
    held = {key.partition("/")[0]: next(iter(ids.values())) for key, ids in run.held().items()}
    run.note("sidecar reuses init's", held["side"] == held["init"])
    run.note("main reuses init2's", held["main"] == held["init2"])
    run.note("main has another than the sidecar", held["main"] != held["side"])
    run.note("calls", plugin.kinds())
    run.note("must include", [c[2] for c in plugin.calls if c[0] == "preferred"])
    run.note(
        "listed", {v: {c: len(d.get("dev", ())) for c, d in run.listed(v)["p"].items()} for v in ("v1", "v1alpha1")}
    )


@scenario("Answers of two resources are merged; of two that disagree, either wins", 30)
def merge(run: Run) -> None:
    one, two = run.registered(1, name="one"), run.registered(1, name="two")
    one.answer = lambda ids: _answer("one", "/dev/null", "/etc")
    two.answer = lambda ids: _answer("two", "/dev/zero", "/bin")
    pod = run.pod("p", {one.resource: 1, two.resource: 1})
    run.note("outcome", run.outcome(pod))
    got = run.side.got(pod, "c")
    run.note("names", {kind: sorted(got[kind]) for kind in got})
    run.note("one of both", got["env"]["SAME"] in ("one", "two"))
    run.note("one of both", got["annotations"]["example.com/same"] in ("one", "two"))
    run.note("agreed", got["env"]["AGREED"])


def _answer(name: str, node: str, folder: str) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs={"SAME": name, "AGREED": "yes", name.upper(): name},
        annotations={"example.com/same": name, f"example.com/{name}": name},
        devices=[
            pb.DeviceSpec(container_path="/dev/same", host_path=node, permissions="rw"),
            pb.DeviceSpec(container_path=f"/dev/{name}", host_path=node, permissions="rw"),
        ],
        mounts=[pb.Mount(container_path="/mnt/same", host_path=folder)],
    )


@scenario("A pod may be refused after Allocate; its devices are free for the next", 31)
def refused_after_allocate(run: Run) -> None:
    plugin = run.registered(1)
    pod = run.pod("p", {plugin.resource: 1}, misplaced=True)
    run.note("outcome", run.outcome(pod))
    run.note("calls", plugin.kinds())
    run.note("PodResources", run.listed())
    run.note("next", run.outcome(run.pod("q", {plugin.resource: 1})))


@scenario("A hung Allocate stops every other pod until it returns", 32)
def hung_allocate(run: Run) -> None:
    plugin = run.registered(1)
    plugin.hold = True
    first = run.pod("p", {plugin.resource: 1})
    run.until("asked", plugin.kinds, ["options", "list", "allocate"])
    second = run.pod("q")
    time.sleep(2)
    view = run.side.view(second)
    run.note("the other has not begun", view is None or view.phase == "Pending")
    plugin.send([device("a0", "Unhealthy")])
    plugin.release()
    run.note("outcome", run.outcome(first))
    run.note("the other", run.outcome(second))


@scenario("PreStartContainer comes before each creation, has 30 seconds, and its errors are tried again", 28)
def prestart(run: Run) -> None:
    plugin = run.plugin(1)
    plugin.options = pb.DevicePluginOptions(pre_start_required=True)
    plugin.prestart_error = "not yet"
    assert run.register(plugin) == "OK"
    run.known(plugin)
    pod = run.pod("p", {plugin.resource: 1})
    view = run.settled(pod)
    run.note("waits", [view.phase, view.containers["c"]["state"], view.containers["c"]["reason"]])
    run.note("text", view.containers["c"]["message"])
    run.note("calls", plugin.calls[:4])
    plugin.prestart_error = ""
    run.until("runs", lambda: _running(run, pod), True, timeout=60)
    count = plugin.kinds().count("prestart")
    run.side.kill_container(pod, "c")
    run.until("again", lambda: plugin.kinds().count("prestart") > count, True, timeout=60)
    run.note("no other Allocate", plugin.kinds().count("allocate"))


def _running(run: Run, pod: str) -> bool:
    view = run.side.view(pod)
    return (
        view is not None
        and view.phase == "Running"
        and all(one["state"] == "running" for one in view.containers.values())
    )


@scenario("A container that restarts gets the same answer without a call, also on a sick device", 24)
def container_restart(run: Run) -> None:
    plugin = run.registered(1)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    plugin.answer = lambda ids: pb.ContainerAllocateResponse(envs={"IDS": "another"})
    plugin.send([device("a0", "Unhealthy")])
    run.until("counts", run.counts, [1, 0])
    run.side.kill_container(pod, "c")
    run.until("restarted", lambda: _restarts(run, pod), 1, timeout=60)
    run.until("runs", lambda: _running(run, pod), True, timeout=60)
    run.note("got", run.side.got(pod, "c")["env"])
    run.note("calls", plugin.kinds())


def _restarts(run: Run, pod: str) -> int:
    view = run.side.view(pod)
    return int(view.containers["c"]["restarts"]) if view else 0


@scenario("A device node or mount that cannot be made keeps the container waiting")
def impossible_answers(run: Run) -> None:
    plugin = run.registered(1)
    plugin.answer = lambda ids: pb.ContainerAllocateResponse(
        devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/is-not-there", permissions="rw")]
    )
    view = run.settled(run.pod("p", {plugin.resource: 1}))
    run.note("waits", [view.phase, view.containers["c"]["state"], view.containers["c"]["reason"]])
    run.note("no such file", "no such file or directory" in view.containers["c"]["message"])
    other = run.registered(1, name="other")
    other.answer = lambda ids: pb.ContainerAllocateResponse(
        devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/null", permissions="")]
    )
    view = run.settled(run.pod("q", {other.resource: 1}))
    run.note("refused permissions", [view.phase, view.containers["c"]["state"], view.containers["c"]["reason"]])


@scenario("A pod that came before its resource was known gets its devices when its container is made again", 24, 25)
def late_allocation(run: Run) -> None:
    pod = run.pod("p", {run.resource(): 1})
    run.note("runs without", run.outcome(pod))
    plugin = run.registered(1)
    run.note("nothing yet", [plugin.kinds(), run.held()])
    run.side.kill_container(pod, "c")
    run.until("restarted", lambda: _restarts(run, pod), 1, timeout=60)
    run.until("runs", lambda: _running(run, pod), True, timeout=60)
    run.note("got", run.side.got(pod, "c")["env"])
    run.note("calls", plugin.calls)
    run.note("checkpoint", run.held())


@scenario("The same with PreStartContainer: the container cannot be made any more", 28)
def late_with_prestart(run: Run) -> None:
    pod = run.pod("p", {run.resource(): 1})
    run.note("runs without", run.outcome(pod))
    plugin = run.plugin(1)
    plugin.options = pb.DevicePluginOptions(pre_start_required=True)
    assert run.register(plugin) == "OK"
    run.known(plugin)
    run.side.kill_container(pod, "c")
    run.until("waits", lambda: _waits(run, pod), ["waiting", "CreateContainerConfigError"], timeout=60)
    view = run.settled(pod)
    run.note("text", view.containers["c"]["message"])
    run.note("calls", plugin.kinds())


def _waits(run: Run, pod: str) -> list[str]:
    view = run.side.view(pod)
    return [view.containers["c"]["state"], view.containers["c"]["reason"]] if view else []
