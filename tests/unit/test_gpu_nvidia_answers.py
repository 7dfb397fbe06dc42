"""gpu-nvidia's answers, row by row as the reference lists NVIDIA's plugin's (gpu.md, section 2, "NVIDIA")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from devherd.values import Composed, Mount
from devherd_gpu.nvidia.config import Config
from support import nvmlbuild
from support.nvidianode import NvidiaNode, answer, gpu, ids, mig_gpu, resource, uuid

NAMES = "k8s.device-plugin.nvidia.com"
MIG = "MIG-00000000-0000-5000-8000-000000000000"


@pytest.fixture(autouse=True, params=[False, True], ids=["standin", "library"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test with both stand-ins for NVML."""
    if request.param and (why := nvmlbuild.no_compiler()):
        pytest.skip(why)
    monkeypatch.setattr(NvidiaNode, "compiled", request.param)
    return bool(request.param)


@pytest.fixture
def node(tmp_path: Path) -> NvidiaNode:
    return NvidiaNode(tmp_path, *(gpu(number) for number in range(4)))


def env(composed: Composed) -> dict[str, str]:
    return dict(composed.env)


def specs(composed: Composed) -> list[tuple[str, str, str]]:
    return [(node.container_path, node.host_path, node.permissions) for node in composed.nodes]


def test_row_envvar(node: NvidiaNode) -> None:
    found = answer(node.scan(device_list=["envvar"]), uuid(0), uuid(2))
    assert env(found) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(2)}"}
    assert (found.mounts, found.nodes, found.cdi, found.annotations) == ((), (), (), {})


def test_row_envvar_with_imex(node: NvidiaNode) -> None:
    node.node("/dev/nvidia-caps-imex-channels/channel0", 234, 0)
    found = answer(node.scan(device_list=["envvar"], imex={"channels": [0]}), uuid(0), uuid(1))
    assert env(found) == {"NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}", "NVIDIA_IMEX_CHANNELS": "0"}


def test_row_volume_mounts(node: NvidiaNode) -> None:
    found = answer(node.scan(device_list=["volume-mounts"]), uuid(0), uuid(1))
    assert env(found) == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    folder = "/var/run/nvidia-container-devices"
    assert found.mounts == tuple(Mount(f"{folder}/{uuid(n)}", "/dev/null", read_only=False) for n in (0, 1))


def test_row_volume_mounts_with_imex(node: NvidiaNode) -> None:
    node.node("/dev/nvidia-caps-imex-channels/channel0", 234, 0)
    found = answer(node.scan(device_list=["volume-mounts"], imex={"channels": [0]}), uuid(0))
    paths = [mount.container_path for mount in found.mounts]
    assert paths == [f"/var/run/nvidia-container-devices/{name}" for name in (uuid(0), "imex/0")]
    assert "NVIDIA_IMEX_CHANNELS" not in found.env


def test_row_cdi_annotations(node: NvidiaNode) -> None:
    found = answer(node.scan(device_list=["cdi-annotations"]), uuid(0), uuid(1))
    ((key, value),) = found.annotations.items()
    head, _, tail = key.partition("_")
    assert head == "cdi.k8s.io/nvidia-device-plugin"
    assert [len(part) for part in tail.split("-")] == [8, 4, 4, 4, 12]
    assert value == f"{NAMES}/gpu={uuid(0)},{NAMES}/gpu={uuid(1)}"
    assert (env(found), found.mounts, found.nodes, found.cdi) == ({}, (), (), ())


def test_row_cdi_annotations_have_another_key_for_each_resource(tmp_path: Path) -> None:
    """The kubelet merges the answers of two resources by key, and keeps one of equal ones."""
    node = NvidiaNode(tmp_path, gpu(0), mig_gpu(1, "1g.5gb"))
    inventory = node.scan(device_list=["cdi-annotations"], mig="mixed")
    keys = {
        key
        for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb")
        for key in answer(inventory, *ids(inventory, name), name=name).annotations
    }
    assert len(keys) == 2


def test_row_cdi_cri(node: NvidiaNode) -> None:
    found = answer(node.scan(device_list=["cdi-cri"]), uuid(0), uuid(1))
    assert found.cdi == (f"{NAMES}/gpu={uuid(0)}", f"{NAMES}/gpu={uuid(1)}")
    assert (env(found), found.mounts, found.nodes, found.annotations) == ({}, (), (), {})


def test_row_cdi_extra_names_only_for_what_is_there(node: NvidiaNode) -> None:
    wanted: dict[str, Any] = {"gds": True, "mofed": True, "gdrcopy": True, "imex": {"channels": [0]}}
    assert answer(node.scan(device_list=["cdi-cri"], **wanted), uuid(0)).cdi == (f"{NAMES}/gpu={uuid(0)}",)
    node.node("/dev/nvidia-caps-imex-channels/channel0", 234, 0)
    node.node("/dev/gdrdrv", 236, 0)
    node.node("/dev/nvidia-fs0", 237, 0)
    node.node("/dev/infiniband/rdma_cm", 10, 120)
    extras = [f"{NAMES}/{name}" for name in ("imex-channel=0", "gdrcopy=all", "gds=all", "mofed=all")]
    inventory = node.scan(device_list=["cdi-cri", "cdi-annotations"], **wanted)
    found = answer(inventory, uuid(0), uuid(1))
    assert sorted(found.cdi) == sorted([f"{NAMES}/gpu={uuid(0)}", f"{NAMES}/gpu={uuid(1)}", *extras])
    assert sorted(found.annotations.values()) == sorted(
        [f"{NAMES}/gpu={uuid(0)},{NAMES}/gpu={uuid(1)}", ",".join(extras)]
    )


def test_row_mixed_lists_send_both(node: NvidiaNode) -> None:
    found = answer(node.scan(device_list=["envvar", "cdi-cri"]), uuid(1))
    assert env(found) == {"NVIDIA_VISIBLE_DEVICES": uuid(1)}
    assert found.cdi == (f"{NAMES}/gpu={uuid(1)}",)


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"])
def test_row_gds_mofed_gdrcopy_in_every_strategy(node: NvidiaNode, strategy: str) -> None:
    found = answer(node.scan(device_list=[strategy], gds=True, mofed=True, gdrcopy=True), uuid(0), uuid(1))
    extras = {key: value for key, value in found.env.items() if key != "NVIDIA_VISIBLE_DEVICES"}
    assert extras == {"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled", "NVIDIA_GDRCOPY": "enabled"}


def test_row_pass_device_specs(node: NvidiaNode) -> None:
    found = answer(node.scan(device_list=["envvar"], pass_device_specs=True), uuid(0), uuid(3))
    paths = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia0", "nvidia3"]
    assert specs(found) == [(f"/dev/{name}", f"/dev/{name}", "rw") for name in paths]


def test_row_pass_device_specs_only_what_exists(node: NvidiaNode) -> None:
    node.no_node("/dev/nvidia-uvm-tools")
    node.no_node("/dev/nvidia-modeset")
    found = answer(node.scan(device_list=["envvar"], pass_device_specs=True), uuid(1))
    assert [path for path, _, _ in specs(found)] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]


def test_row_pass_device_specs_with_a_dev_root_and_imex(node: NvidiaNode) -> None:
    for name, number in (("nvidiactl", (195, 255)), ("nvidia-uvm", (508, 0)), ("nvidia2", (195, 2))):
        node.node(f"/run/nvidia/driver/dev/{name}", *number)
    node.node("/run/nvidia/driver/dev/nvidia-caps-imex-channels/channel0", 234, 0)
    config = {"driver": {"dev_root": "/run/nvidia/driver"}, "imex": {"channels": [0]}}
    found = answer(node.scan(device_list=["envvar"], pass_device_specs=True, **config), uuid(2))
    paths = ["nvidiactl", "nvidia-uvm", "nvidia2", "nvidia-caps-imex-channels/channel0"]
    assert specs(found) == [(f"/dev/{name}", f"/run/nvidia/driver/dev/{name}", "rw") for name in paths]


def test_row_pass_device_specs_are_not_sent_with_cdi_alone() -> None:
    from devherd_gpu.nvidia.validate import validate

    problems = validate(msgspec.convert({"device_list": ["cdi-cri"], "pass_device_specs": True}, Config))
    assert [key for key, _ in problems] == [("pass_device_specs",)]


def test_row_mig_paths(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path, gpu(0), mig_gpu(1, "1g.5gb", "3g.20gb"))
    name = "nvidia.com/mig-3g.20gb"
    inventory = node.scan(device_list=["envvar"], pass_device_specs=True, mig="mixed")
    found = answer(inventory, *ids(inventory, name), name=name)
    cap = node.cap(1, 2)
    wanted = ["nvidia1", f"nvidia-caps/nvidia-cap{cap}", f"nvidia-caps/nvidia-cap{cap + 1}"]
    assert [path for path, _, _ in specs(found)][4:] == [f"/dev/{path}" for path in wanted]


def test_row_index_ids(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path, gpu(0), mig_gpu(1, "1g.5gb", "1g.5gb"))
    inventory = node.scan(device_list=["envvar", "cdi-cri"], ids="index", mig="mixed")
    assert env(answer(inventory, uuid(0))) == {"NVIDIA_VISIBLE_DEVICES": "0"}
    both = ids(inventory, "nvidia.com/mig-1g.5gb")
    found = answer(inventory, *both, name="nvidia.com/mig-1g.5gb")
    assert env(found) == {"NVIDIA_VISIBLE_DEVICES": "1:0,1:1"}
    assert found.cdi == (f"{NAMES}/gpu=1:0", f"{NAMES}/gpu=1:1")


def test_row_ids_are_reduced_to_the_physical_ones(node: NvidiaNode) -> None:
    inventory = node.scan(device_list=["envvar"], sharing=[{"replicas": 4}])
    assert env(answer(inventory, f"{uuid(1)}::0", f"{uuid(1)}::3", f"{uuid(0)}::2")) == {
        "NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"
    }


def test_row_replica_ids(node: NvidiaNode) -> None:
    assert ids(node.scan(sharing=[{"replicas": 3}]))[:4] == [f"{uuid(0)}::{n}" for n in range(3)] + [f"{uuid(1)}::0"]


def test_row_fail_requests_greater_than_one(node: NvidiaNode) -> None:
    shared = resource(node.scan(sharing=[{"replicas": 2, "one_each": True}]))
    assert shared.limit == 1
    assert shared.limit_text.replace("{found}", "2").endswith("maximum request size for shared resources is 1; found 2")
    assert resource(node.scan(sharing=[{"replicas": 2}])).limit == 0


def test_row_renamed_shares(node: NvidiaNode) -> None:
    assert [one.name for one in node.scan(sharing=[{"replicas": 2, "rename": True}]).resources] == [
        "nvidia.com/gpu.shared"
    ]


def test_row_mps(node: NvidiaNode) -> None:
    inventory = node.scan(device_list=["envvar"], sharing=[{"replicas": 2, "mode": "mps"}])
    found = answer(inventory, f"{uuid(0)}::1")
    assert env(found) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe",
        "NVIDIA_VISIBLE_DEVICES": uuid(0),
    }
    assert found.mounts == (
        Mount("/mps/nvidia.com/gpu/pipe", "/run/nvidia/mps/nvidia.com/gpu/pipe", read_only=False),
        Mount("/dev/shm", "/run/nvidia/mps/shm", read_only=False),
    )
    assert resource(inventory).limit == 1


def test_row_tegra(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path)
    node.write("/sys/devices/soc0/family", "Tegra\n")
    (node.root / "run/devherd-sim/nvml.json").unlink()
    inventory = node.scan(device_list=["envvar"], pass_device_specs=True)
    found = answer(inventory, "tegra")
    assert env(found) == {"NVIDIA_VISIBLE_DEVICES": "tegra"}
    assert found.nodes == ()
    assert inventory.evidence == ()


def test_row_wsl(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path)
    node.node("/dev/dxg", 10, 125)
    (node.root / "run/devherd-sim/nvml.json").unlink()
    inventory = node.scan(device_list=["envvar"], pass_device_specs=True)
    found = answer(inventory, "all")
    assert env(found) == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert specs(found) == [("/dev/dxg", "/dev/dxg", "rw")]
    assert inventory.evidence == ()


def test_default_answers_show_nothing_to_a_container_that_asked_for_nothing(node: NvidiaNode) -> None:
    """No variable of an image decides what it sees, and no runtime has to be the default one."""
    found = answer(node.scan(), uuid(0))
    assert found.cdi == (f"{NAMES}/gpu={uuid(0)}",)
    assert (env(found), found.mounts, found.nodes, found.annotations) == ({}, (), (), {})


@pytest.mark.parametrize("mig", ["none", "single", "mixed"])
@pytest.mark.parametrize("ids_by", ["uuid", "index"])
def test_every_cdi_name_that_is_answered_is_specified(tmp_path: Path, mig: str, ids_by: str) -> None:
    node = NvidiaNode(tmp_path, gpu(0), mig_gpu(1, "1g.5gb", "3g.20gb"), mig_gpu(2))
    node.node("/dev/nvidia-caps-imex-channels/channel0", 234, 0)
    node.node("/dev/gdrdrv", 236, 0)
    inventory = node.scan(device_list=["cdi-cri"], mig=mig, ids=ids_by, imex={"channels": [0]}, gdrcopy=True)
    specified = set()
    for file in inventory.files:
        if file.path.startswith(node.paths.cdi):
            document = json.loads(file.text)
            specified |= {f"{document['kind']}={device['name']}" for device in document["devices"]}
    answered = {name for one in inventory.resources for device in one.devices for name in device.parts.cdi}
    assert answered
    assert answered <= specified
