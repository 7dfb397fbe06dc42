"""What happens to a front and to its node: killed, starved, a full disk, a moved clock, a broken configuration."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from devherd.control import ControlError
from support.frontnode import RESOURCE, XDEV, FrontNode, write, xdevs
from support.situation import (
    Caller,
    cpu_seconds,
    full,
    launched,
    limited,
    pid_of,
    registered,
    registers,
    small_disk,
)

POLL = {"kubelet": {"poll": 0.5}}
SIX = {"allocatable": 6, "capacity": 6}
CLOCK = str(Path(__file__).parents[1] / "support" / "clock")


@pytest.fixture
def node() -> Iterator[FrontNode]:
    with FrontNode(xdevs(6), settings=POLL) as running:
        running.up(allocatable=6)
        registered(running)
        yield running


# The front's own life.


def test_front_killed_at_any_moment_of_its_start(node: FrontNode) -> None:
    """Whatever it leaves half done (private sockets, locks, state) is no obstacle for its successor."""
    node.run_pod("p", {RESOURCE: 2})
    ids = node.ids("p")
    node.end_front(signal.SIGKILL)
    for pause in (0.05, 0.12, 0.16, 0.2, 0.24, 0.3, 0.4):
        node.start_front()
        time.sleep(pause)
        node.end_front(signal.SIGKILL)
    node.start_front()
    node.kubelet.client.wait_resource(RESOURCE, **SIX, stopped=False)
    registered(node)
    assert node.ids("p") == ids
    folder = f"{node.kubelet.places.device_plugins}/devherd"
    assert os.listdir(folder) == ["generic.example.com_xdev.sock"]
    node.kubelet.restart()
    node.kubelet.client.wait_resource(RESOURCE, **SIX)
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


def test_signals_during_import_neither_kill_nor_get_lost() -> None:
    with FrontNode(xdevs(6), settings=POLL) as node:
        node.kubelet.start()
        node.front = launched(node)
        pid, stopping = node.front.pid, threading.Event()

        def storm() -> None:
            while not stopping.wait(0.001):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                    os.kill(pid, signal.SIGHUP)

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            node.until(lambda: node.ask("ping"), what="handlers")
        finally:
            stopping.set()
            thread.join()
        registered(node)
        assert pid_of(node) == pid
        assert registers(node) == 1


def test_a_second_front_started_beside_a_living_one_leaves_with_a_clear_text() -> None:
    """An upgrade, or somebody with the command line of `ps`: the launcher's lock lets one in."""
    with FrontNode(xdevs(6), settings=POLL) as node:
        node.kubelet.start()
        node.front = launched(node)
        node.kubelet.client.wait_resource(RESOURCE, **SIX)
        second = launched(node)
        assert second.wait(15) == 75
        assert f"already runs as pid {pid_of(node)}" in Path(node.log).read_text(encoding="utf-8")
        assert registers(node) == 1
        assert node.run_pod("p", {RESOURCE: 1})["phase"] == "Running"
        node.end_front(signal.SIGKILL)
        node.front = launched(node)
        node.kubelet.client.wait_resource(RESOURCE, **SIX, stopped=False)


def test_the_probe_holds_neither_lock_nor_socket_of_its_front() -> None:
    with FrontNode(xdevs(2), settings=POLL) as node:
        node.kubelet.start()
        node.front = launched(node)
        node.kubelet.client.wait_resource(RESOURCE, allocatable=2)
        probe = node.status()["probe"]["pid"]
        held = [os.readlink(f"/proc/{probe}/fd/{fd}") for fd in os.listdir(f"/proc/{probe}/fd")]
        assert not [target for target in held if node.folder in target and "front.log" not in target], held
        assert sum(target.startswith("socket:") for target in held) == 1, held


def test_sigterm_in_the_middle_of_allocations_ends_in_time(node: FrontNode) -> None:
    ids = [row["id"] for row in node.devices().values()]
    stopping = threading.Event()
    odd: list[Any] = []

    def ask() -> None:
        with Caller(node) as caller:
            try:
                while not stopping.is_set():
                    caller.allocate(*ids[:2])
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    odd.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    start = time.monotonic()
    assert node.end_front() == 0
    assert time.monotonic() - start < 5
    stopping.set()
    for thread in threads:
        thread.join()
    assert not odd
    node.kubelet.client.wait_resource(RESOURCE, allocatable=0, capacity=6)


def test_kubelet_gone_in_the_middle_of_allocate(node: FrontNode) -> None:
    """Answered or not: asked again, the answer is the same, and nothing is lost."""
    node.kubelet.set(admit_gap_ms=100)
    for round_ in range(4):
        node.kubelet.client.pod_add(f"p{round_}", {RESOURCE: 1})
        node.kubelet.client.wait(5, event="allocate", resource=RESOURCE)
        node.kubelet.restart(hard=True)
        node.kubelet.client.wait_resource(RESOURCE, **SIX)
        node.kubelet.client.wait(10, event="sources-ready")
        node.kubelet.client.wait_pod(f"p{round_}")
        node.kubelet.client.pod_rm(f"p{round_}")
    id = next(iter(node.devices().values()))["id"]
    with Caller(node) as caller:
        first = caller.allocate(id)
        for timeout in (0.0001, 0.0005, 0.001):
            with contextlib.suppress(grpc.RpcError):
                caller.allocate(id, timeout=timeout)
        assert caller.allocate(id) == first


def test_an_unhealthy_or_unknown_id_is_refused_shortly(node: FrontNode) -> None:
    gone = node.devices()["/dev/x3"]["id"]
    node.node.break_device("/dev/x3")
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5)
    with Caller(node) as caller:
        with pytest.raises(grpc.RpcError) as refused:
            caller.allocate(gone)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert 0 < len(refused.value.details() or "") < 200
        with pytest.raises(grpc.RpcError) as refused:
            caller.allocate("nobody")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_flapping_device_is_unhealthy_at_once_and_healthy_ever_later(node: FrontNode) -> None:
    downs = []
    for _ in range(4):
        node.node.break_device("/dev/x2")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=5)
        start = time.monotonic()
        node.node.heal_device("/dev/x2")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=6, timeout=20)
        downs.append(time.monotonic() - start)
    assert downs[-1] > 2 * downs[0], downs
    lists = node.kubelet.client.events(what="list")
    assert len(lists) <= 1 + 2 * 4, lists


# Limits.


def test_descriptors_exhausted(node: FrontNode) -> None:
    """None free when the kubelet restarts: the front survives, says so, and goes on when there are some."""
    pid = pid_of(node)
    node.run_pod("p", {RESOURCE: 1})
    used = len(os.listdir(f"/proc/{pid}/fd"))
    with limited(pid, resource.RLIMIT_NOFILE, 3):
        node.kubelet.restart(hard=True)
        time.sleep(2.0)
        assert pid_of(node) == pid
        before = cpu_seconds(pid)
        time.sleep(1.0)
        assert cpu_seconds(pid) - before < 0.5, "it must not spin"
    node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=10)
    registered(node)
    node.node.break_device("/dev/x0")
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=10)
    node.until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= used + 2, what="descriptors back to what they were")


def test_probe_runs_out_of_descriptors_and_memory(node: FrontNode) -> None:
    registrations = registered(node)["registrations"]
    for kind, soft in ((resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_AS, 1 << 20)):
        probe = node.status()["probe"]["pid"]
        with limited(probe, kind, soft):
            for n in range(3):
                node.ask("rescan")
                assert node.run_pod(f"p{n}", {RESOURCE: 1})["phase"] == "Running"
                node.kubelet.client.pod_rm(f"p{n}")
        node.until(lambda: node.status()["probe"]["state"] == "idle")
        node.node.break_device("/dev/x1")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=10)
        node.node.heal_device("/dev/x1")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=6, timeout=15)
    assert node.resource()["registrations"] == registrations


def test_front_hits_its_memory_limit(node: FrontNode) -> None:
    """It may fail a call, it may even end; it never serves something wrong, and its successor takes over."""
    node.run_pod("p", {RESOURCE: 2})
    ids, pid = node.ids("p"), pid_of(node)
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        size = next(int(line.split()[1]) for line in file if line.startswith("VmSize:")) * 1024
    with limited(pid, resource.RLIMIT_AS, size):
        for _ in range(30):
            with contextlib.suppress(ControlError):
                node.ask("devices")
        node.kubelet.restart(hard=True)
        time.sleep(1.0)
        assert node.front is not None
        ended = node.front.poll()
    print(f"the front {'ended: ' + str(ended) if ended is not None else 'lived'}")
    if ended is not None:
        node.front = None
        node.start_front()
    node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=10)
    assert node.ids("p") == ids
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


def test_inotify_limit_reached() -> None:
    """Neither front nor probe gets an inotify instance: the slow polls do the work, and it is said."""
    quick = {"kubelet": {"poll": 0.3}, "probe": {"scan_interval": 0.5}}
    with FrontNode(xdevs(6), settings=quick) as node:
        os.makedirs(node.kubelet.places.device_plugins)
        front = ["-m", "devherd.front", "--plugin", node.plugin, "--manifest", node.manifest]
        command = [sys.executable, "-I", *front, "--config", node.config_path]
        limit = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
        namespace = ["unshare", "--user", "--map-root-user", "sh", "-c", limit, "sh"]
        if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], capture_output=True).returncode:
            pytest.skip("no user namespaces here, and the limit of everybody must not be touched")
        with open(node.log, "ab") as log:
            node.front = subprocess.Popen([*namespace, *command], stdout=log, stderr=log)
        node.until(lambda: node.status()["kubelet"]["state"] == "away")
        for _ in range(3):
            node.kubelet.restart()
            node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=5)
        node.node.break_device("/dev/x1")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=5)
        assert "max_user_instances" in Path(node.log).read_text(encoding="utf-8")


# The disk.


@pytest.mark.parametrize("which", ["state", "run"])
def test_disk_full(which: str) -> None:
    """/var or /run: nothing that the kubelet asks for needs the disk; what cannot be saved is said."""
    with FrontNode(xdevs(6), settings=POLL) as node, small_disk(f"{node.folder}/{which}"):
        node.up(allocatable=6)
        registered(node)
        with full(f"{node.folder}/{which}"):
            assert node.run_pod("p", {RESOURCE: 2})["phase"] == "Running"
            node.node.break_device("/dev/x5")
            node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=5)
            node.kubelet.restart(hard=True)
            node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=5)
            assert node.kubelet.client.pods("p")[0]["phase"] == "Running"
            if which == "state":
                assert node.until(lambda: node.status()["state_problems"], what="status says what is not saved")
            # A front that starts now has no place to write anything.
            node.end_front(signal.SIGKILL)
            node.start_front()
            node.kubelet.client.wait_resource(RESOURCE, allocatable=5, stopped=False, timeout=10)
            assert node.ids("p")
            assert node.run_pod("q", {RESOURCE: 1})["phase"] == "Running"
        node.node.heal_device("/dev/x5")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=6, timeout=10)


def test_the_kubelets_disk_is_full(node: FrontNode) -> None:
    """It fails admissions whose Allocate we answered: our side must tolerate devices that nobody then holds."""
    node.kubelet.set(disk_full=True)
    pod = node.kubelet.client.pod_add("p", {RESOURCE: 2}, wait=5)
    assert pod["phase"] == "Failed"
    node.kubelet.set(disk_full=False)
    for n in range(3):
        node.kubelet.client.pod_add(f"q{n}", {RESOURCE: 6}, wait=5)
        node.kubelet.client.wait_pod(f"q{n}")
        node.kubelet.client.pod_rm(f"q{n}")


def test_a_file_in_the_way_of_our_folder_is_named_and_healed() -> None:
    """As with a denied bind: this plugin waits with a clear text; nothing exits."""
    with FrontNode(xdevs(6), settings=POLL) as node:
        node.kubelet.start()
        place = f"{node.kubelet.places.device_plugins}/devherd"
        write(place, "")
        pid = node.start_front()
        error = node.until(lambda: node.resource().get("error"))
        assert place in error
        time.sleep(1.5)
        assert pid_of(node) == pid
        os.unlink(place)
        node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=5)


# The clock.


def test_clock_moved() -> None:
    """Forward by a year and back by two: no verdict, no registration, no device changes by that."""
    with tempfile.TemporaryDirectory(prefix="dh", dir="/tmp") as folder:
        clock = f"{folder}/clock"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TEST_CLOCK", clock)
            with FrontNode(xdevs(6), settings=POLL, pythonpath=CLOCK) as node:
                node.up(allocatable=6)
                before = registered(node)
                node.run_pod("p", {RESOURCE: 2})
                held = next(path for path, row in node.devices().items() if row["id"] in node.ids("p"))
                for offset in (365 * 86400.0, -2 * 365 * 86400.0, 0.0):
                    write(clock, str(offset))
                    assert 0 <= registered(node)["stream_seconds"] < 600
                    node.node.break_device(held)
                    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, capacity=6, timeout=5)
                    # A held id stays, however long ago a jump says it was seen last.
                    node.ask("rescan")
                    time.sleep(0.6)
                    assert node.kubelet.client.node()["resources"][RESOURCE]["capacity"] == 6
                    node.node.heal_device(held)
                    node.kubelet.client.wait_resource(RESOURCE, allocatable=6, timeout=20)
                    node.kubelet.restart()
                    node.kubelet.client.wait_resource(RESOURCE, **SIX, timeout=5)
                    # What one clock saved, another one reads.
                    node.end_front(signal.SIGKILL)
                    node.start_front()
                    node.kubelet.client.wait_resource(RESOURCE, **SIX, stopped=False, timeout=10)
                after = registered(node)
                assert after["healthy"] == before["healthy"]
                assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


# Configuration.


@pytest.mark.parametrize(
    "text",
    ["devices: 7\n", "devices:\n- nmae: x\n", "{", "\x00\x01", "a: &x [*x]\n", "devices:\n" + "- " * 5000 + "x\n", ""],
    ids=["type", "unknown key", "syntax", "binary", "alias", "deep", "empty"],
)
def test_configuration_broken_at_reload(node: FrontNode, text: str) -> None:
    """It is told with its place, and the last good one stays in force: over a reload, and over a restart."""
    node.run_pod("p", {RESOURCE: 1})
    node.until(lambda: os.path.exists(f"{node.folder}/state/generic.config.json"))
    node.configure(text)
    os.kill(pid_of(node), signal.SIGHUP)
    if text:
        problems = node.until(lambda: node.status()["config"]["problems"])
        assert all(problem["file"].endswith("generic.yaml") for problem in problems)
        node.kubelet.restart()
        node.kubelet.client.wait_resource(RESOURCE, **SIX)
        node.end_front(signal.SIGKILL)
        node.start_front()
        node.kubelet.client.wait_resource(RESOURCE, **SIX, stopped=False)
        assert node.status()["config"]["problems"]
    else:
        # No rules at all is a configuration too: what a pod holds is drained, not dropped.
        node.kubelet.client.wait_resource(RESOURCE, allocatable=0, capacity=1)
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"
    node.configure(XDEV)
    os.kill(pid_of(node), signal.SIGHUP)
    node.until(lambda: not node.status()["config"]["problems"])
    node.kubelet.client.wait_resource(RESOURCE, **SIX)


def test_settings_broken_at_reload(node: FrontNode) -> None:
    good = Path(node.config_path).read_text(encoding="utf-8")
    write(node.config_path, json.dumps({**json.loads(good), "kublet": {}}))
    os.kill(pid_of(node), signal.SIGHUP)
    problem = node.until(lambda: node.status()["config"]["problems"])[0]
    assert "kubelet" in problem["hint"] + problem["message"]
    assert node.run_pod("p", {RESOURCE: 1})["phase"] == "Running"
    write(node.config_path, good)
    os.kill(pid_of(node), signal.SIGHUP)
    node.until(lambda: not node.status()["config"]["problems"])
    assert registers(node) == 1
