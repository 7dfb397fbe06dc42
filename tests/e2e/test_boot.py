"""The boot gate in front of a real kubelet: `devherd wait --boot` between devherd's start and the kubelet's.

The driver of `cam` takes three seconds longer than devherd to make its devices; `tape` is there from the start.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devherd.expected import expected_file
from devherd.settings import Paths

from e2e.node import DEVICE_PLUGINS, pods_after
from e2e.programs import wait
from e2e.rig import Rig, name
from e2e.suite import Suite

CAM, TAPE = name("cam"), name("tape")
LATE_BY = 3.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SETTINGS = {"kubelet": {"poll": 0.5}}


@pytest.fixture
def new_boot(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Gives the sandbox another boot id, which a machine's kernel would have given it."""
    file = tmp_path / "boot_id"
    file.write_text(f"{uuid.uuid4()}\n")
    subprocess.run(["mount", "--bind", str(file), BOOT_ID], check=True)

    def change() -> None:
        file.write_text(f"{uuid.uuid4()}\n")

    yield change
    subprocess.run(["umount", BOOT_ID], check=True)


def gate(suite: Suite) -> dict[str, Any]:
    """What the unit runs."""
    command = [sys.executable, "-m", "devherd.cli.main", "wait", "--boot", "--json", "--config", suite.layout.config]
    done = subprocess.run([*command, "--timeout", "60"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def learned(suite: Suite, **counts: int) -> None:
    """Wait until the last run is written down."""

    def look() -> bool:
        record = expected_file(Paths(state=suite.layout.state), "generic").load(set_aside=False).value
        known = {} if record is None else {one: item.count for one, item in record.resources.items()}
        return all(known.get(name(one)) == count for one, count in counts.items())

    wait(look, 30, f"written down: {counts}")


@pytest.mark.parametrize("gated", [True, False])
def test_a_driver_that_comes_late_costs_no_pod_if_the_kubelet_waits_and_exactly_its_own_if_not(
    rig: Rig, new_boot: Callable[[], None], gated: bool
) -> None:
    suite = rig.devherd({"cam": 2, "tape": 1}, SETTINGS)
    own = [rig.node.static("one", {CAM: 1}), rig.node.static("other", {CAM: 1})]
    tape = rig.node.static("tape", {TAPE: 1})
    before = {pod: rig.got(pod) for pod in (*own, tape)}
    learned(suite, cam=2, tape=1)

    def arrive() -> None:
        for n in (0, 1):
            rig.find("cam", n)

    driver = threading.Timer(LATE_BY, arrive)

    def boot() -> None:
        suite.crash()
        for n in (0, 1):
            rig.lose("cam", n)
        new_boot()
        suite.boot()
        driver.start()
        if gated:
            said = gate(suite)
            assert (said["ready"], said["fit"], said["missing"]) == (True, True, [])
        else:
            wait(lambda: suite.healthy(TAPE) == 1, 30, "the other resource is served", every=0.02)

    rig.calm()
    rig.node.reboot(boot)
    views = pods_after(rig.node, list(before))
    driver.join()
    assert {pod for pod, view in views.items() if view.failed} == (set() if gated else set(own))
    kept = before if gated else {tape: before[tape]}
    assert {pod: rig.got(pod) for pod in kept} == kept


@pytest.mark.parametrize("gated", [True, False])
def test_a_resource_unknown_to_a_fresh_kubelet_starts_a_pod_without_a_device_unless_the_kubelet_waits(
    rig: Rig, new_boot: Callable[[], None], gated: bool
) -> None:
    suite = rig.devherd({"cam": 1}, SETTINGS)
    pod = rig.node.static("one", {CAM: 1})
    rig.node.wait_pod(pod)
    learned(suite, cam=1)

    def boot() -> None:
        """The kubelet has lost what it knew, and the plugin's program takes its time."""
        suite.crash()
        new_boot()
        (DEVICE_PLUGINS / "kubelet_internal_checkpoint").unlink()
        held = f"until {time.monotonic() + 3 * LATE_BY}\nslow to start\n"
        Path(suite.layout.run, "generic.hold").write_text(held)
        suite.boot()
        if gated:
            assert gate(suite)["ready"]

    rig.calm()
    rig.node.reboot(boot)
    assert not pods_after(rig.node, [pod])[pod].failed
    suite.wait_registered(CAM)
    assert rig.got(pod) == ([rig.devices.path("cam", 0)] if gated else [])
