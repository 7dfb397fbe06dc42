"""What others can see: pod status, PodResources, the registration watcher."""

from __future__ import annotations

import time
from functools import partial

from devherd.api import podresources_v1_pb2 as prpb

from e2e.compare.plugin import Plugin, device, plugin_info
from e2e.compare.scenario import Run, scenario


def _health(run: Run, pod: str) -> object:
    view = run.side.view(pod)
    return None if view is None else {k.partition("/")[2]: v for k, v in view.containers["c"]["health"].items()}


@scenario("Pod status shows a device's health; one that left the list is called healthy", 35, 40, since=(1, 36))
def pod_health(run: Run) -> None:
    plugin = run.registered(2)
    pod = run.pod("p", {plugin.resource: 2})
    run.note("outcome", run.outcome(pod))
    run.until("healthy", lambda: _health(run, pod), {"dev": {"a0": "Healthy", "a1": "Healthy"}})
    plugin.send([device("a0", "Unhealthy"), device("a1")])
    run.until("one is sick", lambda: _health(run, pod), {"dev": {"a0": "Unhealthy", "a1": "Healthy"}})
    plugin.send([device("a1", "odd")])
    run.until("one is gone", lambda: _health(run, pod), {"dev": {"a0": "Healthy", "a1": "Unhealthy"}})
    plugin.stop()
    time.sleep(1.5)
    run.note("the plugin is gone", _health(run, pod))
    run.note("it runs on", run.outcome(pod))


@scenario("PodResources names a device once for each NUMA node, and hides one whose topology names none", 34)
def numa_in_podresources(run: Run) -> None:
    plugin = run.registered(
        devices=[device("a0", nodes=[0]), device("a1", nodes=[0, 1]), device("a2", nodes=[7]), device("a3")]
    )
    run.note("allocatable", run.allocatable(plugin.resource))
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 4})))
    run.note("checkpoint", run.held())
    run.note("listed", [run.listed(), run.listed("v1alpha1")])
    plugin.send([device("a0", nodes=[]), device("a1", nodes=[0]), device("a2", "Unhealthy", nodes=[0])])
    run.until("counts", run.counts, [3, 2])
    run.note("allocatable", run.allocatable(plugin.resource))
    run.note("listed", run.listed())


@scenario("PodResources Get knows active pods only, and says which it does not know", 34)
def get_one(run: Run) -> None:
    plugin = run.registered(1)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    run.note("there", run.one(pod))
    run.note("not there", run.one("nobody"))
    refused = run.pod("q", {plugin.resource: 1})
    run.note("refused", run.outcome(refused)[0])
    run.note("v1 and v1alpha1", [run.listed(), run.listed("v1alpha1")])
    run.side.remove(pod)
    run.note("after its end", [run.one(pod), run.listed()])


@scenario("PodResources Get does not know a pod that was refused", 34, since=(1, 35))
def get_refused(run: Run) -> None:
    refused = run.pod("p", {run.registered(1).resource: 2})
    run.note("outcome", run.outcome(refused))
    run.note("Get", run.one(refused))


@scenario("Ten PodResources calls at once and a hundred a second, for all clients together", 34)
def rate_limit(run: Run) -> None:
    time.sleep(0.3)
    answers = [run.ask("List", prpb.ListPodResourcesRequest(), prpb.ListPodResourcesResponse) for _ in range(80)]
    refused = {text for text in answers if isinstance(text, str)}
    run.note("in words", sorted(refused))
    run.note("the first ten", [isinstance(text, str) for text in answers[:10]])
    run.note("one version's calls count for the other", _exhausted(run))


def _exhausted(run: Run) -> bool:
    for _ in range(60):
        run.ask("GetAllocatableResources", prpb.AllocatableResourcesRequest(), prpb.AllocatableResourcesResponse)
        answer = run.ask("List", prpb.ListPodResourcesRequest(), prpb.ListPodResourcesResponse, "v1alpha1")
        if isinstance(answer, str):
            return "rejected by rate limit" in answer
    return False


@scenario("A socket in plugins_registry is asked who it is, registered, told so, and gone when its file is", 36)
def registry(run: Run) -> None:
    plugin = run.plugin(2)
    path = f"{run.side.registry}/registry/reg.sock"
    plugin.announce(path, plugin_info("DevicePlugin", plugin.resource, plugin.path, "v1beta1", "v1"))
    wanted = [["info", "0 s"], ["options"], ["list", "no deadline"], ["notify", "registered"]]
    run.until("calls", lambda: sorted(plugin.calls), sorted(wanted))
    run.until("counts", run.counts, [2, 2])
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 1})))
    plugin.withdraw()
    run.until("without its socket", run.counts, [2, 0])
    run.until("stream", lambda: plugin.open_streams, 0)
    plugin.announce(path, plugin_info("DevicePlugin", plugin.resource, plugin.path, "v1beta1"))
    run.until("and back", run.counts, [2, 2])
    run.restart()
    run.until("after a restart of the kubelet, by itself", run.counts, [2, 2])


def _begin(plugin: Plugin) -> list[str]:
    return plugin.kinds()[:2]


@scenario("Why a socket in plugins_registry is not registered; one with a dot is not even asked", 36)
def registry_refusals(run: Run) -> None:
    cases = {
        "type": ("Other", run.resource("type"), "v1beta1"),
        "version": ("DevicePlugin", run.resource("version"), "v1"),
        "name": ("DevicePlugin", "nameless", "v1beta1"),
        ".dot": ("DevicePlugin", run.resource("dot"), "v1beta1"),
    }
    for case, (kind, name, version) in cases.items():
        plugin = run.plugin(1, name=case.removeprefix("."))
        plugin.announce(f"{run.side.registry}/{case}.sock", plugin_info(kind, name, plugin.path, version))
        wanted = [] if case == ".dot" else ["info", "notify"]
        run.until(case, partial(_begin, plugin), wanted)
        texts = [call[1] for call in plugin.calls if call[0] == "notify"]
        run.note(f"{case}: told", [text.replace(run.side.registry, "<registry>") for text in texts[:1]])
        if case == ".dot":
            time.sleep(1.5)
            run.note("later", plugin.kinds())
