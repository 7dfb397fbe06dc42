"""One machine for all cases. They run in the file's order; each leaves a node where everything is registered."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.machine.image import made
from e2e.machine.node import Node
from e2e.machine.vm import Machine, accelerator

FOLDER = "DEVHERD_E2E_MACHINE"
collect_ignore = [] if os.environ.get(FOLDER) else ["test_machine.py"]
"""`make e2e` leaves these out: they need a virtual machine and a lot of time."""


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A machine as delivered, switched off."""
    folder = Path(os.environ[FOLDER])
    image = made()
    machine = Machine(image, folder / "machine", accelerator(image, folder))
    machine.fresh_disks()
    yield Node(machine)
    machine.cut()
    shutil.rmtree(folder / "machine" / "disks", ignore_errors=True)
