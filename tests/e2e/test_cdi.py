"""CDI names, with a containerd that knows them. Numbers in names are those of the acceptance cases (README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.node import pods_after
from e2e.rig import Rig, name

CAM = name("cam")
_RULE = {"cam": {"cdi": ["example.com/cam={index}"]}}


def _specification() -> None:
    """As a vendor's tool writes it: what each name brings beside the device node."""
    folder = Path("/var/run/cdi")
    folder.mkdir(parents=True, exist_ok=True)
    devices = [
        {
            "name": str(n),
            "containerEdits": {
                "env": [f"CDI_CAM={n}"],
                "deviceNodes": [{"path": f"/dev/cdi-cam{n}", "hostPath": f"/dev/cam/cam{n}"}],
            },
        }
        for n in range(2)
    ]
    document = {"cdiVersion": "0.6.0", "kind": "example.com/cam", "devices": devices}
    (folder / "example.com-cam.json").write_text(json.dumps(document))


@pytest.mark.skew
def test_case_2_and_28_a_cdi_device_and_its_round_trip(cdi_rig: Rig) -> None:
    rig = cdi_rig
    suite = rig.devherd({"cam": 2}, rules=_RULE)
    _specification()
    pod = rig.node.static("one", {CAM: 1})
    seen = rig.node.look(pod)
    index = seen.env["CDI_CAM"]
    mine = {path: number for path, number in seen.nodes.items() if "cam" in path}
    right = rig.devices.number(f"/dev/cam/cam{index}")
    assert mine == {f"/dev/cdi-cam{index}": right, f"/dev/cam/cam{index}": right}
    before = rig.node.wait_pod(pod).containers["c"].id
    rig.node.kubelet_restart()
    assert rig.node.wait_pod(pod).containers["c"].id == before
    # The answer in the kubelet's checkpoint is replayed after a reboot.
    rig.calm()
    rig.node.reboot(suite.power_cycle)
    assert not pods_after(rig.node, [pod])[pod].failed
    again = rig.node.look(pod)
    assert again.env["CDI_CAM"] == index
    assert {path: number for path, number in again.nodes.items() if "cam" in path} == mine
