"""ListAndWatch: what each kind of list, and each kind of end, does to capacity and allocatable."""

from __future__ import annotations

import os
import stat
import time
from functools import partial

from e2e.compare.plugin import device
from e2e.compare.scenario import Run, scenario


@scenario("A stream that fails at once is never asked for again", 14)
def list_fails_at_once(run: Run) -> None:
    plugin = run.plugin()
    plugin.list_error = "no list today"
    run.note("register", run.register(plugin))
    run.until("calls", plugin.kinds, ["options", "list"])
    run.until("counts", run.counts, [0, 0])
    time.sleep(1)
    run.note("calls later", plugin.kinds())


@scenario("A stream that ends, cleanly or not, leaves capacity only, and is never asked for again", 14, 18)
def list_ends(run: Run) -> None:
    clean = run.registered(2, name="clean")
    cut = run.registered(3, name="cut")
    clean.end_stream()
    cut.stop()
    run.until("clean end", lambda: run.counts("clean"), [2, 0])
    run.until("cut", lambda: run.counts("cut"), [3, 0])
    time.sleep(1)
    run.note("calls later", [clean.kinds(), cut.kinds()])
    run.note("pod", run.outcome(run.pod("p", {clean.resource: 1})))
    run.note("register again", run.register(clean))
    run.until("counts", lambda: run.counts("clean"), [2, 2])


@scenario("After five minutes without a registration a resource is forgotten", 18, 21, long=340, scaled={"grace": 3.0})
def grace(run: Run) -> None:
    plugin = run.registered()
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    plugin.stop()
    run.until("counts", run.counts, [2, 0])
    run.until("forgotten", run.counts, None, timeout=330)
    run.note("checkpoint", [run.registered_ids(), run.held() != {}])
    run.note("still runs", run.settled(pod).phase)
    run.note("a new pod", run.outcome(run.pod("q", {plugin.resource: 1})))


@scenario("A list over 4 MiB ends the stream", 15)
def oversize(run: Run) -> None:
    plugin = run.registered(1)
    plugin.send([device(f"{'x' * 90}{n:06}") for n in range(44000)])
    run.until("counts", run.counts, [1, 0])
    run.until("stream", lambda: plugin.open_streams, 0)
    run.note("calls", plugin.kinds())


@scenario("Each list is complete: it replaces what was; an empty one leaves nothing at once", 16)
def complete_lists(run: Run) -> None:
    plugin = run.registered(devices=[device("a0"), device("a1", "Unhealthy"), device("a2")])
    run.until("first", run.counts, [3, 2])
    plugin.send([device("a1")])
    run.until("second", run.counts, [1, 1])
    run.note("checkpoint", run.registered_ids())
    plugin.send([])
    run.until("empty", run.counts, [0, 0])
    run.note("stream", plugin.open_streams)
    run.note("checkpoint of nothing", run.registered_ids())
    run.note("pod", run.outcome(run.pod("p", {plugin.resource: 1})))
    plugin.send([device("a1"), device("a3")])
    run.until("and back", run.counts, [2, 2])


@scenario("How duplicates and odd health words count", 17)
def odd_lists(run: Run) -> None:
    plugin = run.registered(1)
    plugin.send([device("a0"), device("a0"), device("a1")])
    run.until("the same twice", run.counts, [2, 2])
    plugin.send([device("a0"), device("a0", "Unhealthy"), device("a1")])
    run.until("once healthy, once not", run.counts, [3, 2])
    plugin.send([device("a0", "healthy"), device("a1", ""), device("a2", "Sick"), device("a3")])
    run.until("odd words", run.counts, [4, 1])
    plugin.send([device(""), device("a b/ü"), device("x" * 300)])
    run.until("odd ids", run.counts, [3, 3])
    run.note("checkpoint", run.registered_ids())


@scenario("Allocatable follows health, up and down", 17)
def health_steps(run: Run) -> None:
    plugin = run.registered(4)
    for sick in ((0,), (), (1, 2), (2,), ()):
        plugin.send([device(f"a{n}", "Unhealthy" if n in sick else "Healthy") for n in range(4)])
        run.until(f"sick {sick}", run.counts, [4, 4 - len(sick)])


@scenario("Each list is written to a new checkpoint file, beside the sockets", 33)
def checkpoint_each_list(run: Run) -> None:
    plugin = run.registered(1)
    path = os.path.join(run.side.device_plugins, "kubelet_internal_checkpoint")
    before = os.stat(path).st_ino
    plugin.send(plugin.devices)
    run.until("another file, for the same list", lambda: os.stat(path).st_ino != before, True)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    run.note("mode", oct(mode))
    run.until("hidden files left", partial(_hidden, run.side.device_plugins), [])


def _hidden(folder: str) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]
