"""The exporter beside real fronts, and under the supervisord of a private instance."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devherd.control import ControlError, ask
from devherd.run.instance import Instance, Wish
from devherd.run.render import shipped
from prometheus_client.parser import text_string_to_metric_families
from support.frontnode import RESOURCE, FrontNode, write, xdevs


class Unix(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("node", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(self.path)


def scrape(path: str) -> dict[str, float]:
    """Samples by name and label values."""
    connection = Unix(path)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert answer.status == 200
    text = answer.read().decode()
    connection.close()
    return samples(text)


def samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            words = [one.name, *(value for _, value in sorted(one.labels.items()) if value)]
            found[" ".join(words)] = one.value
    return found


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (OSError, ControlError, KeyError):
            pass
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def node() -> Iterator[FrontNode]:
    with FrontNode(xdevs(4)) as running:
        running.up(allocatable=4)
        yield running


class Exporter:
    """The program, ended at the end of a `with`."""

    def __init__(self, node: FrontNode, **config: object) -> None:
        self.node = node
        self.metrics = f"{node.folder}/run/exporter.metrics.sock"
        self.config = f"{node.folder}/etc/plugins.d/exporter.yaml"
        write(self.config, json.dumps(config))

    def __enter__(self) -> Exporter:
        command = [sys.executable, "-I", "-m", "devherd_exporter", "--config", self.node.config_path]
        self.process = subprocess.Popen(command)
        until(lambda: scrape(self.metrics))
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def fresh(self) -> dict[str, float]:
        """An answer that is not the one of a moment ago."""
        time.sleep(1.05)
        return scrape(self.metrics)

    def status(self) -> dict[str, object]:
        return ask(f"{self.node.folder}/run/exporter.control.sock", {"op": "status"})


def test_what_happens_on_the_node_shows_in_its_figures(node: FrontNode) -> None:
    with Exporter(node, textfile="none") as exporter:
        node.run_pod("p", {RESOURCE: 2})
        node.kubelet.restart(hard=True)
        node.kubelet.client.wait_resource(RESOURCE, allocatable=4)
        held = next(path for path, row in node.devices().items() if row["id"] in node.ids("p"))
        # One that nobody holds would leave the list.
        node.node.break_device(held)
        node.kubelet.client.wait_resource(RESOURCE, allocatable=3)
        found = exporter.fresh()
    mine = f"generic {RESOURCE}"
    assert found[f"devherd_devices healthy {mine}"] == 3
    assert found.get(f"devherd_devices unhealthy generic gone {RESOURCE}") == 1, found
    assert found[f"devherd_allocations_total {mine}"] == 1
    assert found[f"devherd_allocated_devices_total {mine}"] == 2
    assert found[f"devherd_registrations_total {mine}"] == 2
    assert found[f"devherd_streams_lost_total {mine}"] == 1
    assert found[f"devherd_registered {mine}"] == 1
    assert 0 < found[f"devherd_registration_seconds {mine}"] < 5
    assert found["devherd_kubelet_starts_total generic"] == 2
    assert found["devherd_allocate_seconds_count generic"] == 1
    assert not [name for name in found if name.startswith("devherd_pod")]
    assert found["devherd_series"] == len(found) <= 500


def test_a_front_that_hangs_or_died_is_down_and_the_answer_comes_all_the_same(node: FrontNode) -> None:
    assert node.front is not None
    with Exporter(node, textfile="none", timeout=0.5) as exporter:
        os.kill(node.front.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert exporter.fresh()["devherd_plugin_up generic"] == 0
        assert time.monotonic() - began < 5
        os.kill(node.front.pid, signal.SIGCONT)
        assert exporter.fresh()["devherd_plugin_up generic"] == 1
        node.end_front(signal.SIGKILL)
        assert exporter.fresh()["devherd_plugin_up generic"] == 0


def test_the_textfile_comes_is_renewed_and_goes(node: FrontNode) -> None:
    path = f"{node.folder}/devherd.prom"
    with Exporter(node, textfile=path, textfile_interval=1) as exporter:
        until(lambda: samples(Path(path).read_text())[f"devherd_devices healthy generic {RESOURCE}"] == 4)
        node.node.break_device("/dev/x0")
        until(lambda: samples(Path(path).read_text())[f"devherd_devices healthy generic {RESOURCE}"] == 3)
        exporter.process.terminate()
        assert exporter.process.wait(10) == 0
    assert not os.path.exists(path)
    assert not [name for name in os.listdir(f"{node.folder}/run") if name.startswith("exporter")]


def test_signals_meant_for_fronts_do_not_end_it_and_a_wrong_configuration_changes_nothing(node: FrontNode) -> None:
    with Exporter(node, textfile="none") as exporter:
        exporter.process.send_signal(signal.SIGUSR1)
        exporter.process.send_signal(signal.SIGUSR2)
        write(exporter.config, json.dumps({"tcp": {"port": 9478, "address": "0.0.0.0"}}))
        exporter.process.send_signal(signal.SIGHUP)
        until(lambda: "not loopback" in str(exporter.status()["config_problems"]))
        assert exporter.status()["listeners"] == ["socket"]
        assert exporter.fresh()["devherd_plugin_up generic"] == 1
        write(exporter.config, json.dumps({"textfile": "none", "pod_names": True}))
        exporter.process.send_signal(signal.SIGHUP)
        node.run_pod("p", {RESOURCE: 3})
        until(lambda: exporter.status()["config_problems"] == [] and exporter.status()["listeners"] == ["socket"])
        node.until(lambda: any(row["held_by"] for row in node.devices().values()), timeout=40)
        until(lambda: exporter.fresh()[f"devherd_pod_devices default p {RESOURCE}"] == 3, 40)


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield folder
    shutil.rmtree(folder)


def test_under_supervisord_it_is_off_until_two_lines_switch_it_on(private: str) -> None:
    """As docs/plugins/exporter.md has it: a file of one's own that comes after exporter.conf."""
    assert "autostart = false" in (shipped() / "conf.d" / "exporter.conf").read_text()
    with Instance(Wish(), "t") as instance:
        run, etc = instance.layout.run, instance.layout.etc
        assert not os.path.exists(f"{run}/exporter.control.sock")
        Path(f"{etc}/supervisord.d/local.conf").write_text("[program:exporter]\nautostart = true\n")
        supervisorctl = [sys.executable, "-m", "supervisor.supervisorctl", "-c", instance.layout.supervisor_config]
        subprocess.run([*supervisorctl, "update"], check=True, capture_output=True, timeout=30)
        until(lambda: scrape(f"{run}/exporter.metrics.sock")["devherd_program_up generic"] == 1, 30)
        found = scrape(f"{run}/exporter.metrics.sock")
        assert found["devherd_supervisor_up"] == found["devherd_watcher_up"] == found["devherd_kubelet_up"] == 1
        assert found["devherd_program_up watcher"] == 1
        assert found["devherd_watcher_signal_rounds_total"] >= 1
        left = instance.stop()
    assert not left.processes, left
