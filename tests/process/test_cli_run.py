"""The command line against real processes: supervisord, watcher, generic plugin, simulated kubelet."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.sim.kubelet_process import SimKubelet

Json = dict[str, Any]
DEVHERD = [sys.executable, "-m", "devherd.cli.main"]


@pytest.fixture
def base() -> Iterator[Path]:
    """A short folder in which this test's private instances live."""
    folder = Path(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def environment(base: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "DEVHERD_CONFIG"}
    return kept | {"XDG_RUNTIME_DIR": str(base)}


def devherd(base: Path, *arguments: str, timeout: float = 60.0) -> tuple[int, Json]:
    """Run one command with --json; its exit code and document."""
    command = [*DEVHERD, *arguments, "--json"]
    done = subprocess.run(command, env=environment(base), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@contextlib.contextmanager
def foreground(base: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`devherd run ... --json`, from its `ready` line until it has been ended and all is cleaned up."""
    command = [*DEVHERD, "run", *arguments, "--json"]
    with subprocess.Popen(command, env=environment(base), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["event"] == "ready"
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            code = process.wait(60)
    assert json.loads(rest.splitlines()[-1]) == {"event": "stopped", "leftover": 0, "leftover_what": []}
    assert code == 0
    assert not list(base.glob("devherd-*"))


def test_the_walk_runs_on_simulated_and_real_nodes_and_leaves_nothing_behind(base: Path) -> None:
    code, document = devherd(base, "run", "--simulate", "--once", timeout=110)
    assert code == 0, json.dumps(document, indent=1)
    assert document["ok"]
    assert document["recovered"]
    assert (document["pods_lost"], document["leftover"]) == (0, 0)
    assert len(document["walks"]) == 2
    assert set(document["resources"]) == set(document["reregistered_ms"])
    assert all(item["allocatable"] == item["capacity"] > 0 for item in document["resources"].values())
    assert all(0 < ms < 5000 for ms in document["reregistered_ms"].values())
    assert "machine.devherd.io/null" in document["resources"]
    names = [step["name"] for step in document["walks"][0]["steps"]]
    expected = ["start", "register", "allocate", "kubelet restart", "reboot", "break, heal", "hung probe", "stop"]
    assert names == expected
    assert not list(base.glob("devherd-*"))


def test_a_simulation_can_be_driven_from_another_terminal(base: Path) -> None:
    with foreground(base, "--simulate"):
        assert devherd(base, "wait", "example.com/fuse=10", "--timeout", "30")[0] == 0
        code, verdict = devherd(base, "verify")
        assert (code, verdict["ok"], verdict["compared"]) == (0, True, True)

        code, pod = devherd(base, "simulate", "pod", "add", "train", "--request", "accelerator=2")
        assert (code, pod["phase"]) == (0, "Running")
        code, pod = devherd(base, "simulate", "pod", "add", "big", "--request", "accelerator=9")
        assert (code, pod["reason"]) == (1, "UnexpectedAdmissionError")
        assert devherd(base, "simulate", "pod", "rm", "big")[0] == 0

        code, reply = devherd(base, "simulate", "kubelet", "restart")
        assert (code, reply["pods_lost"], reply["missing"]) == (0, [], [])
        assert len(reply["reregistered_ms"]) == 4

        assert devherd(base, "simulate", "break", "/dev/ttyACM1")[0] == 0
        assert devherd(base, "wait", "example.com/serial=4", "--timeout", "0.5")[0] == 5
        code, verdict = devherd(base, "verify")
        assert code == 3
        assert any("1 device unhealthy" in item["text"] for item in verdict["findings"])
        assert devherd(base, "explain", "/dev/accel/accel0")[1]["found"]
        assert "gone" in devherd(base, "explain", "/dev/ttyACM1")[1]["found"][0]["text"]

        assert devherd(base, "simulate", "kubelet", "stop")[0] == 0
        code, error = devherd(base, "simulate", "node")
        assert code == 3
        assert "down" in error["error"]["message"]
        code, reply = devherd(base, "simulate", "kubelet", "start")
        assert (code, reply["missing"], len(reply["reregistered_ms"])) == (0, [], 4)
        assert all(ms is not None for ms in reply["reregistered_ms"].values())
        assert devherd(base, "simulate", "kubelet", "freeze")[0] == 0
        assert devherd(base, "wait", "--timeout", "0")[1]["missing"][-1].endswith("accepts and answers nothing")
        assert devherd(base, "simulate", "kubelet", "unfreeze")[0] == 0


def test_wait_finds_an_instance_that_starts_later_and_status_names_a_stopped_plugin(base: Path) -> None:
    command = [*DEVHERD, "wait", "--timeout", "40", "--json"]
    waiting = subprocess.Popen(command, env=environment(base), stdout=subprocess.PIPE, text=True)
    with foreground(base, "--simulate", "--name", "late"):
        assert json.loads(waiting.communicate(timeout=60)[0])["ready"]
        assert waiting.returncode == 0
        control = [sys.executable, "-m", "supervisor.supervisorctl", "-c"]
        settings = next(base.glob("devherd-*/late/etc/supervisord.conf"))
        subprocess.run([*control, str(settings), "stop", "generic"], check=True, stdout=subprocess.DEVNULL)
        code, status = devherd(base, "status")
        assert code == 3
        assert [(item["plugin"], item["why"][:11]) for item in status["down"]] == [("generic", "was stopped")]


def test_a_second_instance_of_the_same_name_is_refused_as_in_use(base: Path) -> None:
    with foreground(base, "--simulate", "--name", "one"):
        code, error = devherd(base, "run", "--simulate", "--name", "one")
        assert code == 4
        assert "runs already" in error["error"]["message"]


def test_run_without_simulation_serves_the_kubelet_of_the_node_and_follows_its_files(base: Path) -> None:
    etc = base / "etc"
    (etc / "plugins.d").mkdir(parents=True)
    rule = "devices:\n  - name: nothing\n    groups:\n      - count: 2\n        paths:\n          - path: /dev/null\n"
    (etc / "plugins.d" / "generic.yaml").write_text(rule)
    config = etc / "devherd.yaml"
    text = (
        f"paths:\n  etc: {etc}\n  run: {base}/run\n"
        f"  device_plugins: {base}/k/device-plugins\n  pod_resources: {base}/k/pr/kubelet.sock\n"
    )
    with SimKubelet.in_folder(str(base / "k")) as kubelet:
        kubelet.start()
        config.write_text(text)
        with foreground(base, "--config", str(config)) as process:
            assert devherd(base, "wait", "devherd.io/nothing=2", "--timeout", "30")[0] == 0
            code, verdict = devherd(base, "verify", "--config", str(config))
            assert (code, verdict["compared"]) == (0, True), verdict
            code, error = devherd(base, "simulate", "pods")
            assert (code, "the machine's own kubelet" in error["error"]["message"]) == (1, True)

            (etc / "plugins.d" / "generic.yaml").write_text(rule.replace("count: 2", "count: 5"))
            control = [sys.executable, "-m", "supervisor.supervisorctl", "-c"]
            private = next(base.glob("devherd-*/default/etc/supervisord.conf"))
            hup = [*control, str(private), "signal", "HUP", "generic"]
            subprocess.run(hup, check=True, stdout=subprocess.DEVNULL)
            assert devherd(base, "wait", "nothing=5", "--timeout", "30")[0] == 0

            config.write_text(text + "kubelet:\n  poll: 7\n")
            copy = private.parent / "devherd.yaml"
            assert until(lambda: "poll: 7" in copy.read_text())
            config.write_text(text + "kubelet:\n  pol: 7\n")
            code, checked = devherd(base, "config", "check")
            assert (code, checked["problems"][0]["file"]) == (1, str(config))
            assert process.poll() is None
        assert not os.path.exists(base / "k" / "device-plugins" / "devherd")


def until(met: Callable[[], bool], limit: float = 20.0) -> bool:
    """Whether something that nothing announces happens in time."""
    deadline = time.monotonic() + limit
    while not met() and time.monotonic() < deadline:
        time.sleep(0.05)
    return met()


def test_an_interrupted_walk_cleans_up_and_still_prints_its_document(base: Path) -> None:
    command = [*DEVHERD, "run", "--simulate", "--once", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(base), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        while "register" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    document = json.loads(out)
    assert (document["interrupted"], document["ok"], document["leftover"]) == (True, False, 0)
    assert len(document["walks"]) == 1
    assert "KeyboardInterrupt" not in err
    assert not list(base.glob("devherd-*"))


def test_ctrl_c_ends_a_run_with_0_whenever_it_comes(base: Path) -> None:
    command = [*DEVHERD, "run", "--simulate"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(base), stdout=pipe, stderr=pipe, text=True) as process:
        assert until(lambda: any(base.glob("devherd-*/default.lock")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (0, False), err
    assert not list(base.glob("devherd-*"))


def test_ctrl_c_while_modules_are_loaded_is_no_traceback(base: Path) -> None:
    code = (
        "import devherd.cli.main as m, os, signal\n"
        # A shell that starts jobs in the background has them ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with m._quiet(): os.kill(os.getpid(), signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_simulation_without_its_helper_ends_with_a_reason(base: Path) -> None:
    command = [*DEVHERD, "run", "--simulate", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(base), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        children = [int(pid) for pid in Path(f"/proc/{ready['pid']}/task/{ready['pid']}/children").read_text().split()]
        (helper,) = [pid for pid in children if b"devherd.sim.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(helper, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "helper process of the simulated kubelet has ended" in err
    assert not list(base.glob("devherd-*"))
