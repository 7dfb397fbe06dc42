"""Five minutes without a plugin: the kubelet forgets its resource. Every case that needs that waits for it together.

Numbers in names are those of the acceptance cases (README.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from e2e import podresources
from e2e.compare.plugin import Loop, Plugin, device
from e2e.node import DEVICE_PLUGINS
from e2e.programs import wait
from e2e.rig import Rig, name
from e2e.test_odd_plugins import register

CAM, TAPE, ODD = name("cam"), name("tape"), name("odd")
_GRACE = 300.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def odd(loop: Loop) -> Iterator[Plugin]:
    plugin = Plugin(loop, str(DEVICE_PLUGINS), ODD, [device("a"), device("b")], "odd/odd.sock")
    plugin.serve()
    yield plugin
    plugin.stop()


@pytest.mark.grace
@pytest.mark.timeout(900)
def test_cases_18_19_26_and_41_a_resource_is_forgotten_and_comes_back(
    cluster_rig: Rig, loop: Loop, odd: Plugin
) -> None:
    """18: a stream that fails later. 19: devherd stopped. 26: counts over all that. 41: no half state is left."""
    rig = cluster_rig
    node = rig.node
    suite = rig.devherd({"cam": 2, "tape": 1}, plugins={"generic": ["cam"], "second": ["tape"]})
    assert register(loop, odd.endpoint, ODD) == ""
    pod = node.static("holder", {CAM: 1})
    before, device_node = node.wait_pod(pod), rig.got(pod)
    rig.wait_counts("cam", 2, 2)
    rig.wait_counts("odd", 2, 2)
    node.wait_pod(node.static("releases", {TAPE: 1}))
    wait(lambda: suite.holder("second", TAPE) == "default/releases-n1/c", 60, "devherd knows who holds the tape")
    node.unstatic("releases")
    odd.end_stream()
    suite.supervisorctl("stop", "generic")
    rig.wait_counts("cam", 2, 0)
    rig.wait_counts("odd", 2, 0)
    assert node.static("early", {CAM: 1})
    rig.wait_lost("early-n1", "no healthy devices present; cannot allocate unhealthy devices")

    wait(lambda: node.resources().get(CAM) == node.resources().get(ODD) == (0, 0), _GRACE + 120, "forgotten", every=2.0)
    assert odd.kinds() == ["options", "list"], "never asked again"
    assert not {CAM, ODD} & set(node.checkpoint()["RegisteredDevices"])
    assert not {CAM, ODD} & set(podresources.allocatable())
    assert node.wait_pod(pod).containers["c"].id == before.containers["c"].id

    # The kubelet never says so; after a start of its own, devherd believes what is missing only after three minutes.
    wait(lambda: suite.states()[TAPE]["counters"]["released"] == 1, 120, "devherd knows that nobody holds the tape")
    suite.supervisorctl("start", "generic")
    suite.wait_registered(CAM)
    rig.wait_counts("cam", 2, 2)
    assert node.wait_pod(pod).containers["c"].id == before.containers["c"].id
    assert rig.holds(pod, family="cam")
    other = node.static("late", {CAM: 1})
    assert sorted(device_node + rig.got(other)) == ["/dev/cam/cam0", "/dev/cam/cam1"]
    with pytest.raises(grpc.RpcError):
        podresources.held_by("early-n1")
    node.kubelet_restart()
    rig.wait_counts("cam", 2, 2)
    assert node.wait_pod(pod).containers["c"].id == before.containers["c"].id
