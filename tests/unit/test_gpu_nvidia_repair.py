"""The reset of a GPU: by the driver's own tool, and only when nothing has the GPU open."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from devherd.host import Host
from devherd.settings import Paths
from devherd.vendor import Repairs
from devherd_gpu.nvidia import imex, repair, tools
from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.gpus import Gpu
from devherd_gpu.nvidia.healthconfig import Health
from devherd_gpu.nvidia.nvml import Driver
from devherd_gpu.nvidia.vendor import make
from support.nvmlstate import SimDriver, gpus, mig, mig_uuid

TOOL = """#!{python} -I
import sys
with open({seen!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
print({says!r})
sys.exit({status})
"""


class Node:
    """A root with a driver, its tool, and a /proc."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.driver = SimDriver(str(root), gpus(2))
        for folder in ("dev", "sys", "proc", "usr/bin"):
            (root / folder).mkdir(parents=True)
        paths = Paths(root=str(root), dev=str(root / "dev"), sys=str(root / "sys"), proc=str(root / "proc"))
        self.host = Host(paths)
        self.gpu: Gpu = self.driver.found()[1]
        # Below /tmp a tool can be changed by others; on a node that is refused, which has a test of its own.
        monkeypatch.setattr(tools, "changeable", lambda path: "")

    def tool(self, status: int = 0, says: str = "done", name: str = "nvidia-smi") -> None:
        """A tool that notes how it was called."""
        path = self.root / f"usr/bin/{name}"
        path.write_text(TOOL.format(python=sys.executable, seen=str(self.root / "seen"), says=says, status=status))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @property
    def calls(self) -> list[str]:
        seen = self.root / "seen"
        return seen.read_text().splitlines() if seen.exists() else []

    def process(self, pid: int, name: str, *open_files: str) -> None:
        """A process that has files open."""
        folder = self.root / "proc" / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder.parent / "comm").write_text(name + "\n")
        for number, path in enumerate(open_files):
            os.symlink(path, folder / str(number))

    def reset(self) -> str:
        return repair.reset(self.host, Driver(self.host), self.gpu)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_gpu_is_reset_by_its_pci_address(node: Node) -> None:
    node.tool()
    node.process(77, "python", "/dev/null", "/dev/nvidia0", "/dev/nvidiactl")
    node.process(78, "nvidia-persiste", "/dev/nvidia1")
    assert node.reset() == ""
    assert node.calls == ["--gpu-reset -i 0000:11:00.0"]


def test_a_gpu_that_a_process_has_open_is_not_reset(node: Node) -> None:
    node.tool()
    node.process(77, "dcgm", "/dev/nvidia1")
    node.process(78, "train", "/dev/null", f"{node.root}/dev/nvidia1")
    assert node.reset() == "not reset: in use by dcgm (77), train (78)"
    assert node.calls == []


def test_what_the_tool_says_is_the_reason(node: Node) -> None:
    node.tool(3, "GPU is the primary GPU\n  and cannot be reset")
    assert node.reset() == "the reset failed: GPU is the primary GPU and cannot be reset"


def test_without_the_tool_it_is_said_where_it_should_be(node: Node) -> None:
    assert node.reset() == "not reset: there is no /usr/bin/nvidia-smi below /"


def test_a_tool_that_hangs_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.root / "usr/bin/nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    (node.root / "usr/bin/nvidia-smi").chmod(0o755)
    monkeypatch.setattr(repair, "SECONDS", 0.2)
    assert node.reset() == "the reset failed: did not end within 0.2 s"


def test_a_tool_that_others_can_change_is_not_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tool()
    monkeypatch.setattr(tools, "changeable", lambda path: f"{path} can be written by others")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "can be written by others" in node.reset()
    assert node.calls == []


def test_a_containerised_drivers_tool_runs_in_its_own_root(node: Node) -> None:
    command = tools.command(node.host, "/run/nvidia/driver", "/usr/bin/nvidia-smi", "--gpu-reset")
    assert command == [
        "/usr/sbin/chroot",
        f"{node.root}/run/nvidia/driver",
        "/usr/bin/nvidia-smi",
        "--gpu-reset",
    ]


def test_the_vendor_resets_only_where_it_is_configured(node: Node) -> None:
    assert not isinstance(make(Config(), node.host), Repairs)
    assert isinstance(make(Config(health=Health(reset=True)), node.host), Repairs)


def test_after_a_reset_faults_that_it_ends_are_over_once_readings_agree(node: Node) -> None:
    node.tool()
    node.driver.gpu(1, mig=mig(1))
    vendor = make(Config(health=Health(reset=True), mig="mixed"), node.host)
    assert isinstance(vendor, Repairs)
    vendor.scan()
    thing, instance = f"pci:{node.gpu.pci}", f"mig:{mig_uuid(1, 0)}"
    assert vendor.repair(instance, 0) == "a MIG instance is reset with its GPU 0000:11:00.0 only"
    assert vendor.repair("pci:0000:99:00.0", 0) == "the GPU is not there"
    node.driver.gpu(1, recovery_action=1)
    assert {item.kind for item in vendor.check(()) if item.bad} == {"recovery-action"}
    assert vendor.repair(thing, 0) == ""
    assert not [item for item in vendor.check(()) if not item.bad and not item.kind]
    node.driver.gpu(1, recovery_action=0)
    ended = {item.thing for item in vendor.check(()) if not item.bad and not item.kind}
    assert {thing, instance} <= ended
    vendor.driver.close()


def test_the_imex_domain_is_asked_seldom_and_its_word_is_the_reason(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = imex.Readiness(node.host, Driver(node.host))
    assert asked() == ""  # no tool, nothing to say
    node.tool(0, "DEGRADED", "nvidia-imex-ctl")
    assert asked() == ""
    monkeypatch.setattr(imex, "EVERY", 0.0)
    assert asked() == "the IMEX domain is not ready: /usr/bin/nvidia-imex-ctl -q says DEGRADED"
    assert node.calls == ["-q"]
    node.tool(0, "READY", "nvidia-imex-ctl")
    assert asked() == ""
