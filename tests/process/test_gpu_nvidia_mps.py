"""The MPS program with a control daemon that only notes what it is told; GPUs by the stand-in driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devherd.values import Evidence
from devherd_gpu.nvidia import simulate
from devherd_gpu.nvidia.config import Config, Sharing
from devherd_gpu.nvidia.simulate import Options
from devherd_gpu.nvidia.vendor import make
from support.planted import Planted

CONTROL = """#!{python} -I
import os, signal, sys, time
notes = os.path.join(os.environ["CUDA_MPS_LOG_DIRECTORY"], "notes")
pid = os.path.join(os.environ["CUDA_MPS_PIPE_DIRECTORY"], "pid")
if sys.argv[1:] == ["-f"]:
    with open(notes, "a") as file:
        print("GPUS", os.environ["CUDA_VISIBLE_DEVICES"], file=file)
    with open(pid, "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(60)
if not os.path.exists(pid):
    sys.exit(1)
with open(notes, "a") as file:
    file.write(sys.stdin.read())
print("100.0")
"""
RESOURCE = "nvidia.com/gpu.shared"


class Site:
    def __init__(self, folder: Path) -> None:
        self.host = Planted(folder, simulate.tree(Options(count=2)))
        control = self.host.real("/usr/bin/nvidia-cuda-mps-control")
        control.write_text(CONTROL.format(python=sys.executable))
        control.chmod(0o755)
        places = {name: str(getattr(self.host.paths, name)) for name in self.host.paths.__struct_fields__}
        places |= {"etc": str(folder / "etc"), "proc": "/proc"}
        (folder / "etc/plugins.d").mkdir(parents=True)
        self.settings = folder / "etc/devherd.yaml"
        self.settings.write_text(json.dumps({"paths": places}))
        self.log = folder / "mps.log"
        self.folder = Path(self.host.host.path("/run/nvidia/mps")) / RESOURCE
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, text: str) -> None:
        (self.settings.parent / "plugins.d/gpu-nvidia.yaml").write_text(text)

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-m", "devherd_gpu.nvidia.mps", "--config", str(self.settings)]
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen([*command, "--shared-memory", "no"], stdout=log, stderr=log)
        return self._process

    def notes(self) -> list[str]:
        path = self.folder / "log/notes"
        return path.read_text().splitlines() if path.exists() else []

    def daemon(self) -> int:
        return int((self.folder / "pipe/pid").read_text())

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(20)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.configure("sharing: [{replicas: 4, mode: mps, rename: true}]\n")
    yield made
    made.end()


def until(look: Callable[[], object], what: str, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def against(site: Site) -> list[Evidence]:
    vendor = make(Config(sharing=(Sharing(4, mode="mps", rename=True),)), site.host.host)
    return [one for one in vendor.scan().evidence if one.bad and one.kind == "mps"]


def test_each_gpu_gets_its_part_and_the_shares_are_given_while_the_daemon_answers(site: Site) -> None:
    process = site.start()
    until((site.folder / "ready").exists, "ready")
    gpus, *commands = [line for line in site.notes() if not line.startswith("get_")]
    assert gpus == "GPUS " + ",".join(Options().uuid(n) for n in range(2))
    assert commands == [
        "set_default_device_pinned_mem_limit 0 20480M",
        "set_default_device_pinned_mem_limit 1 20480M",
        "set_default_active_thread_percentage 25",
    ]
    daemon = site.daemon()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert gone(daemon)
    assert not (site.folder / "ready").exists()


def test_a_daemon_that_ends_ends_the_program_so_that_supervisord_starts_it_anew(site: Site) -> None:
    process = site.start()
    until((site.folder / "ready").exists, "ready")
    os.kill(site.daemon(), signal.SIGKILL)
    assert process.wait(20) == 1
    assert RESOURCE in site.log.read_text()
    assert not (site.folder / "ready").exists()


def test_without_a_daemon_the_shares_are_unhealthy_and_say_where_to_look(site: Site) -> None:
    found = against(site)
    assert {one.thing for one in found} == {f"pci:{Options().address(n)}" for n in range(2)}
    assert "gpu-nvidia-mps.log" in found[0].reason


def test_without_such_a_rule_it_ends_as_a_plugin_without_hardware(site: Site) -> None:
    site.configure("sharing: [{replicas: 4}]\n")
    process = site.start()
    assert process.wait(60) == 69


def test_a_missing_control_program_is_named(site: Site) -> None:
    site.host.real("/usr/bin/nvidia-cuda-mps-control").unlink()
    assert site.start().wait(60) == 1
    assert "nvidia-cuda-mps-control" in site.log.read_text()
