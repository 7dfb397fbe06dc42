"""A private instance with everything real in it: supervisord, watcher, generic plugin, kubelet and node simulated."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest
from devherd.control import ControlError, ask
from devherd.process import read_stat
from devherd.run import leftovers
from devherd.run.instance import Instance, Wish
from devherd.run.layout import InUse, instances_folder

ACCELERATOR = "example.com/accelerator"

RUNNER = """
import sys, time
from devherd.run.instance import Instance, Wish, stop_on_signals
with stop_on_signals():
    try:
        with Instance(Wish(), sys.argv[1]) as instance:
            print("up", flush=True)
            while True:
                time.sleep(60)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def instance() -> Iterator[Instance]:
    one = Instance(Wish(), "t")
    one.start()
    yield one
    one.stop()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_starts_serves_and_leaves_nothing(place: str) -> None:
    one = Instance(Wish(), "t")
    one.start()
    try:
        one.kubelet.client.wait_resource(ACCELERATOR, allocatable=8)
        with pytest.raises(InUse, match=f"pid {os.getpid()}"):
            Instance(Wish(), "t").start()
        assert ask(one.layout.control, {"op": "ping"}) == {"pid": os.getpid()}
    finally:
        left = one.stop()
    assert (left.processes, left.sockets) == ((), ())
    assert not os.path.exists(instances_folder())
    assert one.stop() == leftovers.Leftovers()


def test_two_names_live_side_by_side(instance: Instance) -> None:
    with Instance(Wish(node="gpu"), "u") as other:
        other.kubelet.client.wait_resource("example.com/gpu", allocatable=8)
        instance.kubelet.client.wait_resource(ACCELERATOR, allocatable=8)


def test_a_failed_start_is_explained_and_cleaned_up(place: str) -> None:
    wish = Wish(settings={"kubelet": {"nonsense": 1}})
    with pytest.raises(Exception, match="nonsense"):
        Instance(wish, "t").start(timeout=3)
    assert not os.path.exists(instances_folder())


def test_a_pod_keeps_its_device_over_a_reboot_asked_for_from_another_terminal(instance: Instance) -> None:
    client = instance.kubelet.client
    client.wait_resource(ACCELERATOR, allocatable=8)
    client.pod_add("job", {ACCELERATOR: 2}, wait=10)
    before = instance.kubelet.pid
    fronts = set(leftovers.marked(instance.layout.folder))
    status = ask(instance.layout.control, {"op": "reboot"}, timeout=60)
    assert status["kubelet"]["pid"] != before
    assert not fronts - {instance.kubelet.helper_pid} & set(leftovers.marked(instance.layout.folder))
    client.wait_pod("job", timeout=20)


def test_the_node_and_the_kubelet_are_driven_over_the_control_socket(instance: Instance) -> None:
    client = instance.kubelet.client
    client.wait_resource(ACCELERATOR, allocatable=8)

    def tell(**request: object) -> dict[str, object]:
        return ask(instance.layout.control, dict(request), timeout=30)

    assert tell(op="break", device="/dev/accel/accel3")["absent"] == ["/dev/accel/accel3"]
    client.wait_resource(ACCELERATOR, allocatable=7)
    assert tell(op="heal", device="/dev/accel/accel3")["absent"] == []
    pid = instance.kubelet.pid
    assert tell(op="kubelet", action="restart")["pid"] != pid
    assert tell(op="kubelet", action="freeze")["alive"] is True
    tell(op="kubelet", action="unfreeze")
    assert tell(op="kubelet", action="stop")["alive"] is False
    assert tell(op="kubelet", action="start")["alive"] is True
    for wrong, text in (
        ({"op": "break", "device": "/dev/toaster"}, "toaster"),
        ({"op": "break"}, "device path"),
        ({"op": "kubelet", "action": "dance"}, "restart"),
        ({"op": "renumber", "moves": 3}, "object"),
        ({"op": "dance"}, "reboot"),
    ):
        with pytest.raises(ControlError, match=text):
            tell(**wrong)


class Runner:
    """A runner in a process group of its own, as a shell's job."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, "r"], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.folder = os.path.join(instances_folder(), "r")
        assert self.said() == "up"

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        leftovers.end(self.folder)


@pytest.fixture
def runner() -> Iterator[Runner]:
    one = Runner()
    yield one
    one.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_leave_nothing_behind(runner: Runner, number: signal.Signals) -> None:
    assert leftovers.marked(runner.folder)
    os.killpg(runner.process.pid, number)
    time.sleep(0.1)
    # An impatient second one must not cut the cleaning short.
    os.killpg(runner.process.pid, signal.SIGINT)
    assert runner.said() == "stopped"
    assert runner.process.wait(10) == 0
    assert len(leftovers.find(runner.folder)) == 0
    assert not os.path.exists(instances_folder())


def test_a_killed_runner_takes_everything_with_it(runner: Runner) -> None:
    pids = leftovers.marked(runner.folder)
    assert len(pids) >= 5
    runner.process.kill()
    runner.process.wait()
    until(lambda: leftovers.marked(runner.folder) == [])
    # A process that is ending has lost its mark already.
    until(lambda: all((stat := read_stat(pid)) is None or stat.state == "Z" for pid in pids), 5)
    # What it left on disk is no obstacle.
    with Instance(Wish(), "r") as again:
        again.kubelet.client.wait_resource(ACCELERATOR, allocatable=8)
