"""Who may register, how the kubelet dials back, and what a second registration does."""

from __future__ import annotations

import os
import socket
import threading
import time

from devherd.api import deviceplugin_v1beta1_pb2 as pb

from e2e.compare.plugin import device
from e2e.compare.scenario import Run, scenario

_BAD_NAMES = (
    "dev",
    "a.kubernetes.io/dev",
    "requests.example.com/dev",
    "Example.com/dev",
    "example.com/-dev",
    "example.com/dev/one",
    "example.com/" + "d" * 64,
    "",
)


@scenario("Register refuses other versions, before it looks at the name", 6)
def versions(run: Run) -> None:
    plugin = run.plugin()
    for version in ("v1alpha", "v1beta2", ""):
        run.note(f"version {version!r}", run.register(plugin, version=version))
    run.note("bad name as well", run.register(plugin, version="v1", resource_name="dev"))
    run.note("calls", plugin.kinds())


@scenario("Register refuses names that are no extended resources", 7)
def names(run: Run) -> None:
    plugin = run.plugin()
    for name in _BAD_NAMES:
        run.note(f"name {name!r}", run.register(plugin, resource_name=name))
    for name in ("x--y.names.example.com/A_b.c-9", "names.example.com/" + "d" * 63):
        run.note(f"name {name!r}", run.register(plugin, resource_name=name))
    run.note("calls", plugin.kinds()[:2])


@scenario("An endpoint is joined to the folder and cleaned; it may be in a subfolder, or outside", 8)
def endpoints(run: Run) -> None:
    plugin = run.plugin(socket="compare/endpoints/a.sock")
    run.note("subfolder", run.register(plugin))
    outside = run.plugin(name="outside", socket="../endpoints-outside.sock")
    run.note("outside", run.register(outside))
    nested = run.plugin(name="nested", socket="compare/endpoints/n.sock")
    run.note("absolute path", run.register(nested, endpoint="/compare/./endpoints//n.sock"))
    run.until("calls", lambda: [p.kinds() for p in (plugin, outside, nested)], [["options", "list"]] * 3)


@scenario("Register waits ten seconds for a plugin that cannot be dialled, and says so", 9)
def dial_back(run: Run) -> None:
    plugin = run.plugin()
    answers: dict[str, str] = {}

    def register(endpoint: str) -> None:
        answers[endpoint] = run.register(plugin, endpoint=endpoint)

    begun = time.monotonic()
    threads = [threading.Thread(target=register, args=(name,)) for name in ("compare/nobody.sock", "")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.note("seconds, by tens", round((time.monotonic() - begun) / 10))
    run.note("answers", answers)


@scenario("The plugin is dialled with the authority localhost", 10)
def authority(run: Run) -> None:
    path = os.path.join(run.side.device_plugins, "raw.sock")
    plugin = run.plugin()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen()
        answers: list[str] = []
        caller = threading.Thread(target=lambda: answers.append(run.register(plugin, endpoint="raw.sock")))
        caller.start()
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5)
            connection.sendall(b"\0\0\0\4\0\0\0\0\0")  # an empty SETTINGS frame: the server's preface
            seen = b""
            while not any(word in seen for word in _LOCALHOST) and (piece := connection.recv(4096)):
                seen += piece
        caller.join()
    os.unlink(path)
    run.note("localhost", any(word in seen for word in _LOCALHOST))
    run.note("refused", answers[0].partition(":")[0])


# As plain text, and as Go writes it: in HPACK's Huffman code.
_LOCALHOST = (b"localhost", bytes.fromhex("a0e41d139d09"))


@scenario("Options come from the plugin, before the list; those in the request do not count", 11, 13)
def options(run: Run) -> None:
    plugin = run.plugin()
    plugin.mute = True
    run.note("register", run.register(plugin, options=pb.DevicePluginOptions(pre_start_required=True)))
    run.until("calls", lambda: plugin.calls, [["options"], ["list", "no deadline"]])
    plugin.send(plugin.devices)
    run.known(plugin)
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 1})))
    run.note("calls", plugin.kinds())


@scenario("An error in GetDevicePluginOptions fails Register, and no list is asked for", 12)
def options_error(run: Run) -> None:
    plugin = run.plugin()
    plugin.options_error = "no options today"
    run.note("register", run.register(plugin))
    run.note("calls", plugin.kinds())
    run.note("counts", run.counts())


@scenario("A second server takes over, both feed the list, and what the end of the first does", 19)
def second_server(run: Run) -> None:
    first = run.registered(devices=[device("a0"), device("a1")])
    second = run.plugin(devices=[device("b0")])
    second.mute = True
    run.note("register", run.register(second))
    run.until("streams", lambda: [first.open_streams, second.open_streams], [1, 1])
    run.note("counts before the second's list", run.counts())
    second.send([device("b0"), device("b1"), device("b2")])
    run.until("its list replaces", run.counts, [3, 3])
    first.send([device("a0")])
    run.until("the first still feeds", run.counts, [1, 1])
    run.note("outcome", run.outcome(run.pod("p", {first.resource: 1})))
    run.note("who was asked", [first.kinds().count("allocate"), second.kinds().count("allocate")])
    first.stop()
    time.sleep(1)
    run.note("counts after the first's end", run.counts())
    run.until("the second's stream", lambda: second.open_streams, 1 if run.by_socket else 0)
    if run.by_socket:
        second.send([device("b0"), device("b1")])
        run.until("the second goes on", run.counts, [2, 2])


@scenario("The newest server ends while an older one is connected", 19)
def older_server_again(run: Run) -> None:
    first = run.registered(devices=[device("a0"), device("a1")])
    second = run.registered(devices=[device("b0"), device("b1"), device("b2")])
    second.stop()
    time.sleep(1)
    run.note("counts", run.counts())
    run.note("streams", first.open_streams)
    first.send([device("a0")])
    run.until("the first feeds", run.counts, [1, 1])
    run.note("outcome", run.outcome(run.pod("p", {first.resource: 1})))
    run.note("who was asked", first.kinds().count("allocate"))


@scenario("Registering one socket twice while its stream is open", 19, 20)
def same_socket_twice(run: Run) -> None:
    plugin = run.registered()
    run.note("again", run.register(plugin))
    time.sleep(0.5)
    run.note("calls", plugin.kinds())
    run.note("counts", run.counts())
    plugin.end_stream()
    time.sleep(1)
    run.note("counts when the stream has ended", run.counts())
    run.note("and again", run.register(plugin))
    time.sleep(0.5)
    run.note("calls then", plugin.kinds())
    run.note("outcome", run.outcome(run.pod("p", {plugin.resource: 1})))
    other = run.plugin()
    run.note("with another socket", run.register(other))
    run.until("counts", run.counts, [2, 2])


@scenario("A second registration that fails: what becomes of the first", 20)
def failed_second(run: Run) -> None:
    first = run.registered()
    second = run.plugin(devices=[device("b0")])
    second.options_error = "not yet"
    run.note("register", run.register(second))
    run.note("counts", run.counts())
    first.stop()
    time.sleep(1)
    run.until("the first's end is noticed", run.counts, [2, 0] if run.by_socket else [2, 2])
