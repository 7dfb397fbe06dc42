"""The kubelet ends, starts, freezes; the node boots."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import time

from e2e.compare.plugin import device
from e2e.compare.scenario import Run, scenario
from e2e.compare.side import Ctr


@scenario("A start removes sockets directly in the folder, and nothing else", 2, 3, 5)
def cleanup(run: Run) -> None:
    folder = run.side.device_plugins
    run.side.stop(kill=False)
    run.note("stale socket refuses", _connect(f"{folder}/kubelet.sock"))
    os.makedirs(f"{folder}/cleanup-sub", exist_ok=True)
    with socket.socket(socket.AF_UNIX) as top, socket.socket(socket.AF_UNIX) as below:
        top.bind(f"{folder}/cleanup-top.sock")
        below.bind(f"{folder}/cleanup-sub/below.sock")
        with open(f"{folder}/cleanup-file.sock", "w", encoding="utf-8"):
            pass
        os.symlink("cleanup-sub/below.sock", f"{folder}/cleanup-link")
        os.symlink("nothing", f"{folder}/cleanup-broken")
        run.side.start()
    left = [name for name in os.listdir(folder) if name.startswith("cleanup")]
    run.note("left", sorted(left) + sorted(os.listdir(f"{folder}/cleanup-sub")))
    run.note("kubelet.sock", stat.S_ISSOCK(os.stat(f"{folder}/kubelet.sock").st_mode))
    shutil.rmtree(f"{folder}/cleanup-sub")
    for name in left:
        if os.path.lexists(f"{folder}/{name}") and name != "cleanup-sub":
            os.unlink(f"{folder}/{name}")


@scenario("The folder is made before the socket is there", 1)
def folder_first(run: Run) -> None:
    folder = run.side.device_plugins
    run.side.stop()
    shutil.rmtree(folder)
    run.side.start()
    found = os.stat(folder)
    run.note("mode", oct(stat.S_IMODE(found.st_mode)))
    run.note("socket", _connect(f"{folder}/kubelet.sock"))
    run.note("mode of the socket", oct(stat.S_IMODE(os.stat(f"{folder}/kubelet.sock").st_mode)))


@scenario("A kubelet.sock that is a folder ends the kubelet at its start")
def socket_is_a_folder(run: Run) -> None:
    path = f"{run.side.device_plugins}/kubelet.sock"
    run.side.stop()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.mkdir(path)
    run.side.start(wait=False)
    run.until("alive", run.side.alive, False, timeout=60)
    os.rmdir(path)
    run.side.start()
    run.note("alive again", run.side.alive())


@scenario("A kubelet's end cuts every stream; running pods run on and keep their devices", 21, 23, 24, 37)
def restart(run: Run) -> None:
    plugin = run.registered(2)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    held = run.held()
    run.side.stop()
    run.until("streams", lambda: plugin.open_streams, 0)
    run.side.start()
    run.until("known, with nothing", run.counts, [0, 0])
    run.note("calls before it registers", plugin.kinds())
    run.note("runs on", run.outcome(pod))
    run.note("held", run.held() == held)
    run.note("a new pod", run.outcome(run.pod("q", {plugin.resource: 1})))
    run.note("listed", list(run.listed()))
    run.note("register", run.register(plugin))
    run.until("counts", run.counts, [2, 2])
    run.note("restarts", run.settled(pod).containers["c"]["restarts"])
    run.note("calls", plugin.kinds())
    run.note("a newer pod", run.outcome(run.pod("r", {plugin.resource: 1})))


@scenario("A container that dies before its plugin is back is made again from the cache, without PreStart", 28)
def restart_then_crash(run: Run) -> None:
    plugin = run.plugin(1)
    plugin.options.pre_start_required = True
    assert run.register(plugin) == "OK"
    run.known(plugin)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    run.note("calls", plugin.kinds())
    run.restart()
    run.until("counts", run.counts, [0, 0])
    run.settled(pod)
    run.side.kill_container(pod, "c")
    run.until("restarted", lambda: _restarts(run, pod), 1, timeout=60)
    run.note("outcome", run.outcome(pod))
    run.note("got", run.side.got(pod, "c")["env"])
    run.note("calls later", plugin.kinds())


def _restarts(run: Run, pod: str) -> int:
    view = run.side.view(pod)
    return int(view.containers["c"]["restarts"]) if view and view.containers else 0


@scenario(
    "A pod with a completed init container that had a device does not survive a restart without the plugin", 22, 23
)
def restart_with_init(run: Run) -> None:
    plugin = run.registered(1)
    res = plugin.resource
    pod = run.pod("p", init=[Ctr("init", {res: 1})], containers=[Ctr("c", {res: 1})])
    run.note("outcome", run.outcome(pod))
    run.restart()
    run.until("counts", run.counts, [0, 0])
    run.note("outcome after", run.outcome(pod))


@scenario("A pod whose container ended while the kubelet was down needs its plugin at the start", 22, 23)
def ended_while_down(run: Run) -> None:
    plugin = run.registered(2)
    pod = run.pod("p", {plugin.resource: 1})
    both = run.pod("q", containers=[Ctr("c", {plugin.resource: 1}), Ctr("plain")])
    run.note("outcome", [run.outcome(pod), run.outcome(both)])
    run.side.stop()
    run.side.kill_container(pod, "c")
    run.side.kill_container(both, "plain")
    run.side.start()
    run.until("known, with nothing", run.counts, [0, 0])
    run.until("had the device", lambda: run.outcome(pod)[0], "Failed")
    run.note("its outcome", run.outcome(pod))
    run.note("had none", run.outcome(both))
    run.note("calls", plugin.kinds())


@scenario("Pods of one kubelet's life are the next one's; new ones wait for nobody", 21, 22)
def pod_added_while_down(run: Run) -> None:
    plugin = run.registered(1)
    run.side.stop()
    pod = run.pod("p", {plugin.resource: 1})
    run.side.start()
    run.until("known, with nothing", run.counts, [0, 0])
    run.note("outcome", run.outcome(pod))
    run.note("register", run.register(plugin))
    run.until("counts", run.counts, [1, 1])
    run.note("it stays so", run.outcome(pod))
    run.restart()
    run.note("tried again by the next kubelet", run.outcome(pod))


@scenario("After a boot without its plugin a pod fails, and stays failed when the plugin comes", 22)
def reboot_too_early(run: Run) -> None:
    plugin = run.registered(1)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    run.side.stop()
    run.side.lose_containers()
    run.side.start()
    run.until("failed", lambda: run.outcome(pod)[0], "Failed")
    run.note("outcome after", run.outcome(pod))
    run.note("register", run.register(plugin))
    run.until("counts", run.counts, [1, 1])
    run.note("it stays so", run.outcome(pod))
    run.note("calls", plugin.kinds())
    run.until("listed", lambda: [run.listed(), run.listed("v1alpha1")], [{}, {"p": {"c": {}}}])


@scenario("After a boot with its plugin in time a pod gets its devices again, from the cache", 24)
def reboot_in_time(run: Run) -> None:
    plugin = run.registered(1)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    run.boot(plugin)
    run.note("outcome after", run.outcome(pod))
    run.note("calls", plugin.kinds())
    run.note("got", run.side.got(pod, "c")["env"])
    run.note("checkpoint", [run.held(), run.answers()])


@scenario("After a boot with its device sick a pod fails, and says so", 22)
def reboot_sick(run: Run) -> None:
    plugin = run.registered(2)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    mine = next(iter(run.held().values()))["-1"]
    plugin.devices = [device(one.ID, "Unhealthy" if one.ID in mine else "Healthy") for one in plugin.devices]
    run.boot(plugin)
    run.note("outcome after", run.outcome(pod))
    run.note("calls", plugin.kinds())


@scenario("A pod taken away while the kubelet is down leaves nothing behind")
def removed_while_down(run: Run) -> None:
    plugin = run.registered(1)
    pod = run.pod("p", {plugin.resource: 1})
    run.note("outcome", run.outcome(pod))
    run.side.stop()
    run.side.remove(pod)
    run.side.start()
    run.note("register", run.register(plugin))
    run.until("counts", run.counts, [1, 1])
    run.until("listed", run.listed, {})
    run.note("freed", run.outcome(run.pod("q", {plugin.resource: 1})))
    run.note("calls", plugin.kinds())


@scenario("A checkpoint that cannot be read: the kubelet starts without it")
def corrupt_checkpoint(run: Run) -> None:
    plugin = run.registered(1)
    path = f"{run.side.device_plugins}/kubelet_internal_checkpoint"
    run.side.stop()
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    document["Checksum"] += 1
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)
    run.side.start()
    run.until("the resource is not known", run.counts, None)
    run.note("register", run.register(plugin))
    run.until("counts", run.counts, [1, 1])


@scenario("A frozen kubelet accepts and answers nothing; streams stay open", 38)
def frozen(run: Run) -> None:
    plugin = run.registered(1)
    other = run.plugin(1, name="other")
    run.side.freeze()
    run.note("connects", _connect(f"{run.side.device_plugins}/kubelet.sock"))
    run.note("register", run.register(other, timeout=1.0).partition(":")[0])
    plugin.send([device("a0"), device("a1")])
    time.sleep(1)
    run.note("stream", plugin.open_streams)
    run.side.thaw()
    run.until("counts", run.counts, [2, 2])


@scenario("An id that leaves the list while its Allocate runs ends the kubelet", 40)
def vanishes_during_allocate(run: Run) -> None:
    plugin = run.registered(1)

    def vanish() -> None:
        plugin.send([])
        time.sleep(0.5)

    plugin.during_allocate = vanish
    pod = run.pod("p", {plugin.resource: 1})
    run.until("alive", run.side.alive, False, timeout=15)
    run.side.remove(pod)
    run.side.start()
    run.note("alive again", run.side.alive())


def _connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        try:
            client.connect(path)
        except OSError as error:
            return type(error).__name__
        return "accepted"
