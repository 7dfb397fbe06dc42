"""A probe in D state: not even SIGKILL ends it, and still nothing changes for pods."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devherd.process import read_stat
from support.frontnode import FrontNode, xdevs

SUPPORT = str(Path(__file__).parents[1] / "support")
RESOURCE = "example.com/blocking"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def frozen_place() -> Iterator[str]:
    """A small file system of our own that can be frozen."""
    if os.geteuid() != 0:
        pytest.skip("mounting and freezing a file system needs root")
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    image, place = f"{folder}/image", f"{folder}/place"
    os.mkdir(place)
    mounted = False
    try:
        try:
            with open(image, "wb") as file:
                file.truncate(16 << 20)
            run("mkfs.ext4", "-q", image)
            run("mount", "-o", "loop", image, place)
            mounted = True
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no loop mount on this machine: {error}")
        yield place
    finally:
        if mounted:
            subprocess.run(["fsfreeze", "-u", place], check=False, capture_output=True)
            for _ in range(100):
                if subprocess.run(["umount", place], check=False, capture_output=True).returncode == 0:
                    break
                # A process that the thaw has just let go still has its file open.
                time.sleep(0.05)
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)


def test_a_probe_in_d_state_is_abandoned_and_pods_notice_nothing(frozen_place: str) -> None:
    with FrontNode(
        xdevs(1),
        config={"file": f"{frozen_place}/log"},
        settings={"vendors": ["blocking"]},  # type: ignore[dict-item]
        plugin="blocking",
        manifest="blocking_vendor:MANIFEST",
        pythonpath=SUPPORT,
    ) as node:
        node.up(allocatable=4, resource=RESOURCE)
        node.until(lambda: node.resource(RESOURCE)["state"] == "registered")
        probe = node.status()["probe"]["pid"]
        registrations = node.resource(RESOURCE)["registrations"]
        run("fsfreeze", "-f", frozen_place)
        try:
            node.ask("rescan")
            node.until(lambda: (read_stat(probe) or read_stat("self")).state == "D", what="probe in D state")  # type: ignore[union-attr]
            assert node.run_pod("during", {RESOURCE: 2})["phase"] == "Running"
            status = node.until(lambda: (now := node.status())["probe"]["abandoned"] and now, what="probe abandoned")
            assert probe in status["probe"]["abandoned"]
            node.kubelet.restart(hard=True)
            node.kubelet.client.wait_resource(RESOURCE, allocatable=4, timeout=2)
            assert node.run_pod("after", {RESOURCE: 1})["phase"] == "Running"
            # Every replacement hangs as well; their number is bounded.
            node.until(lambda: len(node.status()["probe"]["abandoned"]) >= 2, timeout=20)
            assert len(node.status()["probe"]["abandoned"]) <= 4
        finally:
            run("fsfreeze", "-u", frozen_place)
        node.until(lambda: node.status()["probe"]["state"] == "idle", timeout=20)
        node.until(lambda: not node.status()["probe"]["abandoned"], timeout=20)
        assert node.resource(RESOURCE)["registrations"] == registrations + 1
