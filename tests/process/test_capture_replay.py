"""A node is captured, and what was captured runs again elsewhere: real processes on both sides."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.capture.archive import Capture
from devherd.run.instance import Instance, Wish

Json = dict[str, Any]
ACCELERATOR = "example.com/accelerator"
SERIAL = "example.com/serial"
SECRET = "c0rrect-horse-battery"
CONFIG = f"""\
domain: example.com
devices:
  - name: serial
    groups: [{{paths: [{{path: /dev/serial/by-id/*, mountPath: /dev/serial/}}]}}]
  - name: accelerator
    groups: [{{paths: [{{path: /dev/accel/accel*}}]}}]
    env: {{LICENSE_TOKEN: {SECRET}}}
"""


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.delenv("DEVHERD_CONFIG", raising=False)
    yield Path(folder)
    shutil.rmtree(folder)


def devherd(*arguments: str) -> tuple[int, Json]:
    command = [sys.executable, "-m", "devherd.cli.main", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def given(devices: Json) -> dict[tuple[str, str, str], tuple[bool, list[int]]]:
    """What pods can have: resource, node and number -> healthy, NUMA nodes. Ids follow paths, which are redacted."""
    return {
        (item["resource"], node["host_path"], node["number"]): (item["healthy"], item["numa"])
        for item in devices["devices"]
        for node in item["nodes"]
    }


def test_what_was_captured_runs_again_with_the_same_devices(place: Path) -> None:
    file = str(place / "node.tar.gz")
    with Instance(Wish(plugin_configs={"generic": CONFIG}), "original") as original:
        original.kubelet.client.wait_resource(ACCELERATOR, allocatable=8)
        original.kubelet.client.pod_add("secret-project", {ACCELERATOR: 2}, wait=10)
        code, said = devherd("capture", file, "--watch", "0.2", "--instance", "original")
        assert (code, said["device_nodes"], said["problems"], said["redacted"]) == (0, 14, [], True)
        before = given(devherd("devices", "--instance", "original")[1])

    held = Capture.load(file)
    everything = json.dumps([held.texts, held.files, held.links, held.about])
    for text in (SECRET, "secret-project", "SN0001"):
        assert text not in everything
    kinds = {json.loads(line)["kind"] for line in held.texts["events.jsonl"].splitlines()}
    assert {"registered", "allocated"} <= kinds
    assert len(held.document("kubelet.json")["allocatable"][ACCELERATOR]) == 8
    assert json.loads(held.texts["history.jsonl"].splitlines()[0])["plugins"]["generic"]["resources"]

    command = [sys.executable, "-m", "devherd.cli.main", "simulate", "--from", file, "--name", "replay", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as replay:
        assert replay.stdout is not None
        try:
            assert json.loads(replay.stdout.readline())["event"] == "ready"
            assert devherd("wait", f"{ACCELERATOR}=8", f"{SERIAL}=4", "--timeout", "30")[0] == 0
            assert given(devherd("devices")[1]) == before
            code, pod = devherd("simulate", "pod", "add", "train", "--request", "accelerator=2")
            assert (code, pod["phase"]) == (0, "Running")
            assert devherd("simulate", "break", "/dev/accel/accel3")[0] == 0
            assert devherd("wait", f"{ACCELERATOR}=8", "--timeout", "0.5")[0] == 5
            sick = devherd("devices", "--unhealthy")[1]["devices"]
            assert [node["host_path"] for item in sick for node in item["nodes"]] == ["/dev/accel/accel3"]
            assert devherd("simulate", "heal", "/dev/accel/accel3")[0] == 0
            assert devherd("verify")[1]["resources"]
        finally:
            replay.send_signal(signal.SIGINT)
            rest = replay.stdout.read()
    assert json.loads(rest.splitlines()[-1])["leftover"] == 0
    assert replay.returncode == 0


def test_a_capture_of_a_capture_is_the_same_node(place: Path) -> None:
    first, second = str(place / "1.tar.gz"), str(place / "2.tar.gz")
    with Instance(Wish(node="gpu"), "a") as one:
        one.kubelet.client.wait_resource("example.com/gpu", allocatable=8)
        assert devherd("capture", first, "--raw", "--instance", "a")[0] == 0
    with Instance(Wish(node=Capture.load(first)), "b") as two:
        two.kubelet.client.wait_resource("example.com/gpu", allocatable=8)
        assert devherd("capture", second, "--raw", "--instance", "b")[0] == 0
    one_held, two_held = Capture.load(first), Capture.load(second)
    assert two_held.nodes == one_held.nodes
    assert two_held.links == one_held.links
    sysfs = [
        {path: text for path, text in held.files.items() if path.startswith("/sys/")} for held in (one_held, two_held)
    ]
    assert sysfs[0] == sysfs[1]
    assert two_held.plugin_configs() == one_held.plugin_configs()
    assert one_held.document("kubelet.json") == two_held.document("kubelet.json")


def test_the_doctor_finds_a_healthy_node_healthy_and_a_dead_kubelet_dead(place: Path) -> None:
    bundle = str(place / "b.tar.gz")
    with Instance(Wish(), "d") as instance:
        instance.kubelet.client.wait_resource(ACCELERATOR, allocatable=8)
        assert devherd("wait", "--timeout", "20")[0] == 0
        code, found = devherd("doctor", "--bundle", bundle)
        assert (code, [item for item in found["checks"] if item["verdict"] == "problem"]) == (0, [])
        # What was never started, because it is off unless wanted, is no remark.
        assert [item["verdict"] for item in found["checks"] if item["name"] == "programs"] == ["ok"]
        names = Capture.load(bundle).texts
        assert {"more/doctor.json", "more/logs/generic.log", "more/versions.json", "more/logs/watcher.log"} <= set(
            names
        )

        instance.kubelet.kill()
        code, found = devherd("doctor")
        problems = {item["name"]: item["text"] for item in found["checks"] if item["verdict"] == "problem"}
        assert code == 3
        assert "is stale" in problems["kubelet socket"]
        assert not {"our sockets", "disk", "configuration", "duplicates", "programs"} & set(problems)

        socket = Path(instance.kubelet.socket)
        socket.unlink()
        socket.mkdir()
        assert any("is a folder" in item["text"] for item in devherd("doctor")[1]["checks"])
        socket.rmdir()


def test_top_shows_a_live_node(place: Path) -> None:
    with Instance(Wish(), "t") as instance:
        instance.kubelet.client.wait_resource(ACCELERATOR, allocatable=8)
        instance.kubelet.client.pod_add("train", {ACCELERATOR: 1}, wait=10)
        deadline, shown = time.monotonic() + 20, Json()
        while [item["held_by"] for item in shown.get("devices", ()) if item["held_by"]] != ["default/train/main"]:
            assert time.monotonic() < deadline
            code, shown = devherd("top", "--once")
            assert code == 0
        assert {"kubelet-up", "registered", "allocated"} <= {item["kind"] for item in shown["events"]}
        pids = {str(shown["plugins"][0]["pid"]), str(shown["plugins"][0]["probe"]["pid"])}
        assert pids <= set(shown["use"])
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("run", "--from", "{dir}/none.tar.gz"), 1, "No such file"),
        (("simulate", "--from", "{dir}/empty.tar.gz"), 1, "no readable capture"),
        (("run", "--from", "x", "--once"), 2, "leave --from out"),
        (("capture", "{dir}/empty.tar.gz"), 2, "exists already"),
        (("capture", "{dir}/none/x.tar.gz"), 2, "no such folder"),
        (("doctor", "--bundle", "{dir}/empty.tar.gz"), 2, "exists already"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(place: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    (place / "empty.tar.gz").touch()
    found, document = devherd(*(text.format(dir=place) for text in arguments))
    assert (found, says in document["error"]["message"] + document["error"]["hint"]) == (code, True), document
