"""The kubelet comes, goes, hangs, forgets and is replaced: one test for each way (the contract's section 8b, 1 to 18).

A real front and probe; the kubelet is simulated. Each test fails if the reaction is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator

import pytest
from support.frontnode import RESOURCE, FrontNode, xdevs
from support.situation import Caller, cpu_seconds, healthy, pid_of, registered, registers

POLL = {"kubelet": {"poll": 0.5}}
SIX = {"allocatable": 6, "capacity": 6}


@pytest.fixture
def node() -> Iterator[FrontNode]:
    with FrontNode(xdevs(6), settings=POLL) as running:
        running.up(allocatable=6)
        registered(running)
        yield running


@pytest.fixture
def quiet() -> Iterator[FrontNode]:
    """Nothing runs yet."""
    with FrontNode(xdevs(6), settings=POLL) as one:
        yield one


# The kubelet is away, or not yet ready.


def test_kubelet_away_at_start(quiet: FrontNode) -> None:
    """No kubelet is normal: the front serves, waits without burning CPU, and never leaves."""
    os.makedirs(quiet.kubelet.places.device_plugins)
    pid = quiet.start_front()
    quiet.until(lambda: quiet.status()["kubelet"]["state"] == "away")
    # Past the first eager second.
    time.sleep(1.5)
    before = cpu_seconds(pid)
    time.sleep(2.0)
    assert cpu_seconds(pid) - before < 0.1
    assert pid_of(quiet) == pid
    quiet.kubelet.set(admit_gap_ms=100)
    quiet.kubelet.pod_add_offline("p", {RESOURCE: 2})
    quiet.kubelet.start()
    quiet.kubelet.client.wait_pod("p")
    assert len(quiet.ids("p")) == 2


def test_folder_missing_at_start_is_left_to_the_kubelet(quiet: FrontNode) -> None:
    folder = quiet.kubelet.places.device_plugins
    quiet.start_front()
    quiet.until(lambda: quiet.resource()["state"] == "waiting")
    time.sleep(0.3)
    assert not os.path.exists(folder)
    assert folder in quiet.resource()["error"]
    quiet.kubelet.start()
    quiet.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=3)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(f"{folder}/devherd").st_mode) == 0o700


def test_stale_socket_of_a_dead_kubelet(quiet: FrontNode) -> None:
    os.makedirs(quiet.kubelet.places.device_plugins)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(quiet.kubelet.socket)
        dead.listen()
    pid = quiet.start_front()
    status = quiet.until(lambda: (now := quiet.status())["kubelet"]["error"] and now)
    assert status["kubelet"]["state"] == "away"
    assert "refused" in status["kubelet"]["error"].lower()
    time.sleep(1.5)
    before = cpu_seconds(pid)
    time.sleep(2.0)
    assert cpu_seconds(pid) - before < 0.1
    quiet.kubelet.start()
    quiet.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=2)


def test_socket_seen_long_before_it_listens(node: FrontNode) -> None:
    """The create event comes first; gRPC's own reconnect would wait a second."""
    node.kubelet.set(listen_delay_ms=400)
    for _ in range(3):
        node.kubelet.restart()
        node.kubelet.client.wait_resource(RESOURCE, **SIX)
        took = node.kubelet.client.node()["resources"][RESOURCE]["registered_ms"]
        assert took < 500, took
        assert registers(node) == 1


def test_kubelet_sock_is_a_folder(quiet: FrontNode) -> None:
    """A pod that mounts the single socket makes Docker create a folder in its place: the kubelet cannot start."""
    os.makedirs(quiet.kubelet.socket)
    quiet.start_front()
    error = quiet.until(lambda: quiet.status()["kubelet"]["error"])
    assert quiet.kubelet.socket in error
    os.rmdir(quiet.kubelet.socket)
    quiet.kubelet.start()
    quiet.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=3)


# The kubelet restarts.


def test_kubelet_killed_during_register(quiet: FrontNode) -> None:
    quiet.kubelet.set(register_delay_ms=60_000)
    quiet.kubelet.start()
    pid = quiet.start_front()
    for _ in range(3):
        quiet.kubelet.client.wait(10, event="register", resource=RESOURCE)
        quiet.kubelet.restart(hard=True)
    quiet.kubelet.client.wait(10, event="register", resource=RESOURCE)
    quiet.kubelet.kill()
    quiet.kubelet.set(register_delay_ms=0)
    quiet.kubelet.start()
    quiet.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=2)
    assert registers(quiet) == 1
    assert pid_of(quiet) == pid


def test_kubelet_created_twice_within_milliseconds(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 2})
    for pause in (0.0, 0.001, 0.003, 0.01, 0.03):
        node.kubelet.restart(hard=True, wait=False)
        end = time.monotonic() + 10
        while not os.path.exists(node.kubelet.socket) and time.monotonic() < end:
            pass
        time.sleep(pause)
        node.kubelet.restart(hard=True)
        node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=3)
        registered(node)
        assert registers(node) == 1
        assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


def test_signals_and_events_many_times_over_register_once(node: FrontNode) -> None:
    pid, stopping = pid_of(node), threading.Event()

    def storm() -> None:
        while not stopping.wait(0.002):
            os.kill(pid, signal.SIGUSR1)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(20):
            node.ask("register")
        assert registers(node) == 1
        for _ in range(3):
            node.kubelet.restart()
            node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=3)
            registered(node)
            assert registers(node) == 1
    finally:
        stopping.set()
        thread.join()


def test_a_reused_inode_is_no_reason_to_miss_a_kubelet(node: FrontNode) -> None:
    """Nobody signals, and the slow poll alone has to see it: by the change time, where the inode number is the same."""
    reused = 0
    for _ in range(6):
        before = os.stat(node.kubelet.socket).st_ino
        node.kubelet.restart()
        node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=3)
        reused += os.stat(node.kubelet.socket).st_ino == before
        registered(node)
        assert registers(node) == 1
    print(f"the inode number was used again {reused} times of 6")


def test_socket_created_anew_in_one_kubelets_life(node: FrontNode) -> None:
    """The file comes again, the process is the same: nothing to do while the stream is open, and all to do when not."""
    away = node.kubelet.socket + ".away"
    os.rename(node.kubelet.socket, away)
    os.rename(away, node.kubelet.socket)
    for _ in range(5):
        os.kill(pid_of(node), signal.SIGUSR1)
        time.sleep(0.05)
    assert registers(node) == 1
    os.rename(node.kubelet.socket, away)
    node.kubelet.client.ask("cut", resource=RESOURCE)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=0)
    node.until(lambda: node.status()["kubelet"]["state"] == "away")
    assert registers(node) == 1
    os.rename(away, node.kubelet.socket)
    node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=2)
    assert registers(node) == 2


# Register goes wrong.


def test_ok_without_a_stream_is_registered_again(quiet: FrontNode) -> None:
    quiet.kubelet.set(skip_streams=2)
    quiet.kubelet.start()
    quiet.start_front()
    quiet.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=10)
    assert registers(quiet) == 3
    registered(quiet)


def test_register_that_hangs_harms_nobody_and_ends_with_the_kubelet(quiet: FrontNode) -> None:
    quiet.kubelet.start()
    quiet.kubelet.freeze()
    pid = quiet.start_front()
    quiet.until(lambda: quiet.resource()["state"] == "registering")
    assert quiet.ask("ping")["pid"] == pid
    quiet.kubelet.restart(hard=True)
    quiet.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=2)
    assert pid_of(quiet) == pid


@pytest.mark.timeout(60)
def test_register_that_hangs_longer_than_its_deadline_is_made_again(quiet: FrontNode) -> None:
    quiet.kubelet.start()
    quiet.kubelet.client.ask("freeze")
    quiet.start_front()
    error = quiet.until(lambda: quiet.resource().get("error"), timeout=25)
    assert "in time" in error
    quiet.kubelet.client.ask("unfreeze")
    quiet.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=10)


def test_a_refused_name_is_told_and_others_live(quiet: FrontNode) -> None:
    """The kubelet takes no name with `kubernetes.io/` anywhere in it; only another configuration helps."""
    bad = {"name": "mykubernetes.io/bad", "groups": [{"paths": [{"path": "/dev/x0"}]}]}
    good = {"name": "xdev", "groups": [{"paths": [{"path": "/dev/x1"}]}]}
    quiet.configure({"domain": "example.com", "devices": [bad, good]})
    quiet.kubelet.start()
    pid = quiet.start_front()
    quiet.kubelet.client.wait_resource(RESOURCE, allocatable=1)
    row = quiet.until(lambda: (row := quiet.resource("mykubernetes.io/bad"))["state"] == "refused" and row)
    assert "invalid" in row["error"]
    time.sleep(0.5)
    assert registers(quiet, "mykubernetes.io/bad") == 1
    assert pid_of(quiet) == pid


# Streams.


def test_stream_cancelled_by_a_living_kubelet(node: FrontNode) -> None:
    for _ in range(2):
        since = node.kubelet.client.events()[-1]["seq"]
        node.kubelet.client.ask("cut", resource=RESOURCE)
        node.kubelet.client.wait(5, event="register", since=since, resource=RESOURCE)
        node.kubelet.client.wait_resource(RESOURCE, **SIX, stopped=False, timeout=2)
    ends = [event["t"] for event in node.kubelet.client.events(what="stream-end")]
    again = [event["t"] for event in node.kubelet.client.events(what="register")][1:]
    for end, back in zip(ends, again, strict=True):
        # Earlier, and the kubelet's disconnect by name may hit the new connection.
        assert 0.05 < back - end < 1.0, (ends, again)


def test_old_and_new_stream_at_once_of_two_kubelets(node: FrontNode) -> None:
    """The old kubelet is stopped in its tracks with its stream open, and the new one has come already."""
    node.run_pod("p", {RESOURCE: 1})
    old = node.kubelet.pid
    node.kubelet.freeze()
    new = node.another_kubelet()
    try:
        new.start()
        new.client.wait_resource(RESOURCE, **SIX, timeout=3)
        node.until(lambda: node.status()["kubelet"]["pid"] == new.pid)
        node.node.break_device("/dev/x5")
        new.client.wait_resource(RESOURCE, allocatable=5, timeout=3)
        # The old one ends, and with it its stream: no concern of the new registration.
        os.kill(old, signal.SIGKILL)
        node.node.heal_device("/dev/x5")
        new.client.wait_resource(RESOURCE, allocatable=6, timeout=3)
        events = new.client.events(what="register")
        assert len(events) == 1
        assert new.client.pods("p")[0]["phase"] == "Running"
    finally:
        new.close()


def test_two_streams_at_once_on_one_socket_are_both_fed(node: FrontNode) -> None:
    with Caller(node) as caller:
        stream = caller.watch()
        assert healthy(next(stream)) == 6
        node.node.break_device("/dev/x1")
        assert healthy(next(stream)) == 5
        node.kubelet.client.wait_resource(RESOURCE, allocatable=5)
        stream.cancel()
        node.node.heal_device("/dev/x1")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=6)
    assert registered(node)["registrations"] == 1
    assert registers(node) == 1


def test_kubelet_frozen_while_devices_change(node: FrontNode) -> None:
    """Its stream is kept, whatever it does not read; it gets the newest list, and no registration, when it goes on."""
    stream = node.resource()["stream_seconds"]
    node.kubelet.freeze()
    for _ in range(3):
        node.node.break_device("/dev/x0")
        node.until(lambda: node.resource()["healthy"] == 5)
        node.node.heal_device("/dev/x0")
        node.until(lambda: node.resource()["healthy"] == 6)
    node.node.break_device("/dev/x4")
    node.until(lambda: node.resource()["healthy"] == 5)
    os.kill(pid_of(node), signal.SIGUSR1)
    time.sleep(1.0)
    assert node.resource()["stream_seconds"] > stream
    node.kubelet.unfreeze()
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=3)
    assert registers(node) == 1


def test_pings_and_silence_cut_no_stream(node: FrontNode) -> None:
    """A server that punishes pings or ends idle connections would take the devices away for a moment each time."""
    pings = (
        ("grpc.keepalive_time_ms", 100),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_sent_ping_interval_without_data_ms", 100),
    )
    with Caller(node, *pings) as caller:
        stream = caller.watch()
        assert healthy(next(stream)) == 6
        time.sleep(4.0)
        node.node.break_device("/dev/x1")
        assert healthy(next(stream)) == 5
        stream.cancel()
    assert registers(node) == 1


def test_many_dead_streams_do_not_starve_allocate(node: FrontNode) -> None:
    id = next(iter(node.devices().values()))["id"]
    with Caller(node) as caller:
        streams = [caller.watch() for _ in range(60)]
        for stream in streams:
            assert healthy(next(stream)) == 6
        took = []
        for _ in range(50):
            start = time.monotonic()
            caller.allocate(id)
            took.append(time.monotonic() - start)
        assert sorted(took)[25] < 0.05, took
        for stream in streams:
            stream.cancel()
    node.kubelet.restart()
    node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=3)


# Our own sockets, and the folder.


def test_own_socket_removed_by_somebody_is_put_back(node: FrontNode) -> None:
    path = f"{node.kubelet.places.device_plugins}/{registered(node)['socket']}"
    os.unlink(path)
    node.kubelet.client.ask("cut", resource=RESOURCE)
    node.until(lambda: registers(node) >= 2)
    node.kubelet.client.wait_resource(RESOURCE, **SIX, stopped=False, timeout=5)
    assert node.run_pod("p", {RESOURCE: 1})["phase"] == "Running"


def test_own_socket_removed_while_the_kubelet_is_down(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 2})
    node.kubelet.stop()
    shutil.rmtree(f"{node.kubelet.places.device_plugins}/devherd")
    node.kubelet.start()
    node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=5)
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


@pytest.mark.parametrize("layout", ["auto", "top"])
@pytest.mark.parametrize("moved", [False, True])
def test_folder_replaced(moved: bool, layout: str) -> None:
    """Deleted or moved away and made anew, with the kubelet running; then the next kubelet comes."""
    with FrontNode(xdevs(6), settings={"kubelet": {"poll": 0.5, "layout": layout}}) as node:
        node.up(allocatable=6)
        registered(node)
        folder = node.kubelet.places.device_plugins
        node.run_pod("p", {RESOURCE: 2})
        checkpoint = f"{folder}/kubelet_internal_checkpoint"
        shutil.copy(checkpoint, f"{node.folder}/kept")
        os.rename(folder, folder + ".old")
        if not moved:
            shutil.rmtree(folder + ".old")
        os.mkdir(folder, 0o755)
        shutil.copy(f"{node.folder}/kept", checkpoint)
        node.until(lambda: os.path.isdir(f"{folder}/devherd"), timeout=3)
        # Its stream is open and it has no socket any more: it can still allocate.
        assert node.run_pod("q", {RESOURCE: 1})["phase"] == "Running"
        node.kubelet.restart()
        node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=5)
        registered(node)
        assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


def test_podresources_empty_after_a_restart_releases_nothing(node: FrontNode) -> None:
    """A held device that is missing would leave the list; its pod's status would then call it healthy."""
    node.run_pod("p", {RESOURCE: 1})
    held = next(path for path, row in node.devices().items() if row["id"] in node.ids("p"))
    node.node.break_device(held)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, capacity=6)
    node.kubelet.set(sources_delay_ms=2500, admit_gap_ms=1000)
    node.kubelet.restart()
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, capacity=6)
    time.sleep(3.0)
    assert node.kubelet.client.node()["resources"][RESOURCE]["capacity"] == 6
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"
