"""What a long time of random events found (make storm, make chaos), each with a name of its own.

A real front and probe; the kubelet is simulated.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frontnode import FrontNode, xdevs
from support.situation import registered

NAMES = tuple(f"r{n}" for n in range(12))
MANY: dict[str, Any] = {
    "domain": "example.com",
    "devices": [
        {"name": name, "groups": [{"count": 2, "paths": [{"path": f"/dev/x{n}"}]}]} for n, name in enumerate(NAMES)
    ],
}


@pytest.fixture
def many() -> Iterator[FrontNode]:
    """Many resources in one front."""
    with FrontNode(xdevs(len(NAMES)), MANY, settings={"kubelet": {"poll": 0.5}}) as node:
        node.up(resource="example.com/r0")
        yield node


def test_streams_that_end_one_by_one_while_sockets_are_made_anew_in_a_replaced_folder(many: FrontNode) -> None:
    """The end of the first one has all sockets made anew: each must listen, whenever its own stream ends."""
    folder = Path(many.kubelet.places.device_plugins)
    for life in range(8):
        for name in NAMES:
            registered(many, f"example.com/{name}")
        shutil.rmtree(folder)
        folder.mkdir()
        for name in NAMES:
            many.kubelet.client.ask("cut", resource=f"example.com/{name}")
        many.kubelet.kill()
        many.kubelet.start()
        began = time.monotonic()
        for name in NAMES:
            many.kubelet.client.wait_resource(f"example.com/{name}", timeout=20, allocatable=2)
        assert time.monotonic() - began < 8, f"life {life}: a kubelet gives up dialling after ten seconds"


def test_a_resource_that_left_the_configuration_of_a_killed_front_leaves_no_socket() -> None:
    """Neither in our folder, nor beside the kubelet's, where its next start would be the first to tidy up."""
    with FrontNode(
        xdevs(len(NAMES)), MANY, settings={"kubelet": {"layout": "top"}, "snapshots": {"grace": 0.0}}
    ) as node:
        node.up(resource="example.com/r0")
        registered(node, "example.com/r11")
        folder = Path(node.kubelet.places.device_plugins)
        node.end_front(signal.SIGKILL)
        assert {path.name for path in folder.glob("devherd-*.sock")} == {
            f"devherd-generic.example.com_{name}.sock" for name in NAMES
        }
        shutil.rmtree(f"{node.folder}/state")
        os.mkdir(f"{node.folder}/state")
        node.configure({**MANY, "devices": MANY["devices"][:1]})
        node.start_front()
        registered(node, "example.com/r0")
        left = {path.name for path in (*folder.glob("devherd-*.sock"), *folder.glob("devherd/*"))}
        assert left == {"devherd-generic.example.com_r0.sock", "generic.example.com_r0.sock"}
