"""gpu-nvidia's files: CDI specifications, the driver in a container, labels; how near GPUs are; the importer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from devherd.compose import compose
from devherd.config.load import load_bytes
from devherd.config.rival import Rival
from devherd.prefer import choose
from devherd.values import Inventory
from devherd_gpu.nvidia import features, simulate
from devherd_gpu.nvidia.config import Config, Sharing
from devherd_gpu.nvidia.importer import load
from devherd_gpu.nvidia.manifest import MANIFEST
from devherd_gpu.nvidia.simulate import Options
from devherd_gpu.nvidia.vendor import Vendor, make
from support.planted import Planted

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
GPU_FILE = "k8s.device-plugin.nvidia.com-gpu.json"


def vendor(host: Planted, **config: Any) -> Vendor:
    return make(Config(**config), host.host)


def planted(tmp_path: Path, **options: Any) -> Planted:
    return Planted(tmp_path, simulate.tree(Options(**options)))


def texts(found: Inventory) -> dict[str, str]:
    return {Path(file.path).name: file.text for file in found.files}


def spec(found: Inventory, name: str = GPU_FILE) -> dict[str, Any]:
    return dict(json.loads(texts(found)[name]))


def edits(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["name"]: device["containerEdits"] for device in document["devices"]}


def paths(edit: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edit.get("deviceNodes", [])]


# CDI


def test_each_gpu_is_specified_by_uuid_and_by_index_and_all_together(tmp_path: Path) -> None:
    """Section 2, CDI spec content."""
    found = vendor(planted(tmp_path, count=2)).scan()
    document = spec(found)
    assert document["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    uuid = Options().uuid(1)
    known = edits(document)
    assert known[uuid] == known["1"]
    assert paths(known[uuid]) == ["/dev/nvidia1"]
    (node,) = known[uuid]["deviceNodes"]
    assert (node["type"], node["major"], node["minor"], node["permissions"]) == ("c", 195, 1, "rwm")
    assert paths(known["all"]) == ["/dev/nvidia0", "/dev/nvidia1"]


def test_every_name_that_an_answer_gives_is_specified(tmp_path: Path) -> None:
    for ids in ("uuid", "index"):
        found = vendor(planted(tmp_path, count=2, mig={1: ("1g.10gb", "2g.20gb")}), mig="mixed", ids=ids).scan()
        specified = {f"{document['kind']}={name}" for document in [spec(found)] for name in edits(document)}
        given = {name for one in found.resources for device in one.devices for name in device.parts.cdi}
        assert given
        assert given <= specified


def test_a_mig_device_is_its_gpus_node_and_two_capabilities(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=1, mig={0: ("1g.10gb",)}), mig="mixed").scan()
    (uuid,) = [name for name in edits(spec(found)) if name.startswith("MIG-")]
    first, *caps = paths(edits(spec(found))[uuid])
    assert first == "/dev/nvidia0"
    assert len(caps) == 2
    assert all(cap.startswith("/dev/nvidia-caps/nvidia-cap") for cap in caps)


def test_without_the_toolkit_the_driver_is_mounted_and_no_hook_is_named(tmp_path: Path) -> None:
    common = spec(vendor(planted(tmp_path)).scan())["containerEdits"]
    assert "hooks" not in common
    assert "NVIDIA_VISIBLE_DEVICES=void" in common["env"]
    mounted = {mount["containerPath"]: mount["hostPath"] for mount in common["mounts"]}
    real = f"{LIBRARIES}/libcuda.so.580.95.05"
    for name in ("libcuda.so.580.95.05", "libcuda.so.1", "libcuda.so"):
        assert mounted[f"/usr/local/nvidia/lib64/{name}"] == real
    assert all("ro" in mount["options"] for mount in common["mounts"])
    assert "/dev/nvidiactl" in paths(common)


def test_with_the_toolkit_libraries_keep_their_places_and_hooks_make_the_links(tmp_path: Path) -> None:
    host = planted(tmp_path)
    host.files.write("/usr/bin/nvidia-ctk", "")
    common = spec(vendor(host).scan())["containerEdits"]
    mounted = {mount["containerPath"]: mount["hostPath"] for mount in common["mounts"]}
    assert mounted[f"{LIBRARIES}/libcuda.so.580.95.05"] == f"{LIBRARIES}/libcuda.so.580.95.05"
    assert f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}" in common["env"]
    hooks = {hook["args"][2]: hook for hook in common["hooks"]}
    assert {hook["hookName"] for hook in hooks.values()} == {"createContainer"}
    assert hooks["create-symlinks"]["args"][:2] == ["nvidia-ctk", "hook"]
    assert f"--link=libcuda.so.580.95.05::{LIBRARIES}/libcuda.so.1" in hooks["create-symlinks"]["args"]
    assert hooks["update-ldcache"]["args"][3:] == [f"--folder={LIBRARIES}"]


def test_hooks_can_be_left_out(tmp_path: Path) -> None:
    host = planted(tmp_path)
    host.files.write("/usr/bin/nvidia-ctk", "")
    config = Config().cdi.__class__(disabled_hooks=("enable-cuda-compat",))
    names = {hook["args"][2] for hook in spec(vendor(host, cdi=config).scan())["containerEdits"]["hooks"]}
    assert names == {"create-symlinks", "update-ldcache", "disable-device-node-modification"}
    assert "hooks" not in spec(vendor(host, cdi=config.__class__(disabled_hooks=("all",))).scan())["containerEdits"]


def test_libraries_of_another_version_are_not_given(tmp_path: Path) -> None:
    host = planted(tmp_path)
    host.files.write(f"{LIBRARIES}/libnvidia-old.so.570.1.1", "")
    mounted = [mount["hostPath"] for mount in spec(vendor(host).scan())["containerEdits"]["mounts"]]
    assert not [path for path in mounted if "570" in path]


def test_a_driver_without_its_libraries_is_named(tmp_path: Path) -> None:
    host = planted(tmp_path)
    host.remove(f"{LIBRARIES}/libcuda.so.580.95.05")
    (problem,) = [one for one in vendor(host).scan().skipped if one.what == "driver files"]
    assert "libcuda.so.580.95.05" in problem.reason


def test_a_change_of_geometry_is_a_change_of_the_file(tmp_path: Path) -> None:
    """Pain 10: a specification that is not made anew names what is no longer there."""
    host = planted(tmp_path, count=1)
    made = vendor(host, mig="mixed")
    assert Options().uuid(0) in edits(spec(made.scan()))
    host.add(simulate.tree(Options(count=1, mig={0: ("1g.10gb",)})))
    known = edits(spec(made.scan()))
    assert Options().uuid(0) not in known
    assert [name for name in known if name.startswith("MIG-")]


def test_a_lost_gpu_is_not_specified(tmp_path: Path) -> None:
    host = planted(tmp_path, count=2)
    made = vendor(host)
    made.scan()
    host.add(simulate.tree(Options(count=2, lost=(1,))))
    assert Options().uuid(1) not in edits(spec(made.scan()))


def test_without_a_cdi_strategy_there_is_no_specification(tmp_path: Path) -> None:
    assert GPU_FILE not in texts(vendor(planted(tmp_path), device_list=("envvar",)).scan())


# The driver in the container


def test_driver_mount_gives_nodes_and_files_and_needs_nothing_else(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=2), device_list=("driver-mount",)).scan()
    (resource,) = found.resources
    answer = compose([device.parts for device in resource.devices])
    nodes = [node.container_path for node in answer.nodes]
    assert nodes[0] == "/dev/nvidiactl"
    assert {"/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"} <= set(nodes)
    mounts = {mount.container_path: mount for mount in answer.mounts}
    assert mounts["/usr/local/nvidia/bin/nvidia-smi"].host_path == "/usr/bin/nvidia-smi"
    assert all(mount.read_only for mount in answer.mounts)
    assert answer.env == {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    assert (answer.cdi, answer.annotations) == ((), {})


def test_a_driver_in_a_container_is_mounted_from_its_root(tmp_path: Path) -> None:
    host = planted(tmp_path, count=1)
    for path in (f"{LIBRARIES}/libcuda.so.580.95.05", "/usr/bin/nvidia-smi"):
        host.files.write(f"/run/nvidia/driver{path}", "")
    config = Config()
    driver = config.driver.__class__(root="/run/nvidia/driver")
    found = vendor(host, device_list=("driver-mount",), driver=driver).scan()
    mounts = {mount.container_path: mount.host_path for mount in found.resources[0].devices[0].parts.mounts}
    assert mounts["/usr/local/nvidia/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert mounts["/usr/local/nvidia/lib64/libcuda.so.580.95.05"].startswith("/run/nvidia/driver/")


# How near GPUs are


def chosen(found: Inventory, size: int, taken: tuple[int, ...] = ()) -> list[int]:
    (resource,) = found.resources
    number = {Options().uuid(n): n for n in range(8)}
    free = [device.id for device in resource.devices if number[device.id] not in taken]
    return sorted(number[id] for id in choose(resource.preference, free, [], size))


def test_pairs_joined_by_nvlink_stay_together(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, links="pairs")).scan()
    one, other = chosen(found, 2)
    assert one // 2 == other // 2


def test_one_gpu_does_not_break_up_a_pair(tmp_path: Path) -> None:
    """Pain 6."""
    found = vendor(planted(tmp_path, links="pairs")).scan()
    assert chosen(found, 1, taken=(5,)) == [4]


def test_gpus_behind_switches_are_all_equally_near_and_prefer_their_node(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, links="switch")).scan()
    four = chosen(found, 4)
    assert len({n // 4 for n in four}) == 1


def test_a_lost_gpu_costs_no_preference(tmp_path: Path) -> None:
    """Fact 2: there, preferred allocation fails for every GPU."""
    host = planted(tmp_path, links="pairs")
    made = vendor(host)
    made.scan()
    host.add(simulate.tree(Options(links="pairs", lost=(3,))))
    found = made.scan()
    one, other = chosen(found, 2, taken=(3,))
    assert one // 2 == other // 2


# Labels


def labels(host: Planted, **config: Any) -> dict[str, str]:
    made = vendor(host, **config)
    made.scan()
    return features.labels(host.host, made.config, made.found, made.plan)


def test_labels_are_those_of_gpu_feature_discovery(tmp_path: Path) -> None:
    found = labels(planted(tmp_path))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert found["nvidia.com/gpu.count"] == "8"
    assert found["nvidia.com/gpu.replicas"] == "1"
    assert found["nvidia.com/gpu.family"] == "hopper"
    assert found["nvidia.com/gpu.memory"] == str(80 * 1024)
    assert (found["nvidia.com/gpu.compute.major"], found["nvidia.com/gpu.compute.minor"]) == ("9", "0")
    assert found["nvidia.com/cuda.driver-version.full"] == "580.95.05"
    assert found["nvidia.com/cuda.driver.major"] == "580"
    assert found["nvidia.com/mig.capable"] == "true"
    assert found["nvidia.com/gpu.sharing-strategy"] == "none"
    assert "nvidia.com/mig.strategy" not in found


def test_labels_of_mig_profiles(tmp_path: Path) -> None:
    found = labels(planted(tmp_path, count=2, mig={1: ("1g.10gb", "1g.10gb")}), mig="mixed")
    assert found["nvidia.com/mig-1g.10gb.count"] == "2"
    assert found["nvidia.com/mig-1g.10gb.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert found["nvidia.com/gpu.count"] == "1"


def test_shared_gpus_say_so_in_their_product_unless_renamed(tmp_path: Path) -> None:
    found = labels(planted(tmp_path), sharing=(Sharing(replicas=4),))
    assert found["nvidia.com/gpu.product"].endswith("-SHARED")
    assert found["nvidia.com/gpu.replicas"] == "4"
    assert found["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
    renamed = labels(planted(tmp_path), sharing=(Sharing(replicas=4, rename=True),))
    assert not renamed["nvidia.com/gpu.product"].endswith("-SHARED")


def test_nothing_is_labelled_twice(tmp_path: Path) -> None:
    host = planted(tmp_path)
    name = "devherd-gpu-nvidia"
    assert name in texts(vendor(host).scan())
    assert name not in texts(vendor(host, features="off").scan())
    host.files.write("/proc/77/cmdline", "/usr/bin/gpu-feature-discovery\0--oneshot\0")
    assert name not in texts(vendor(host).scan())
    assert name in texts(vendor(host, features="on").scan())
    Path(host.paths.features, "gfd").write_text("")
    assert name not in texts(vendor(host).scan())


@pytest.mark.parametrize(
    ("compute", "family"),
    [((9, 0), "hopper"), ((8, 6), "ampere"), ((8, 9), "ada-lovelace"), ((7, 5), "turing"), ((1, 0), "undefined")],
)
def test_families(compute: tuple[int, int], family: str) -> None:
    assert features.family(compute) == family


# Importer

FILE = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
      - {name: nvidia.com/gpu, replicas: 4}
      - {name: nvidia.com/mig-1g.10gb, replicas: 2, devices: ["0:1"]}
imex: {channelIDs: [0], required: true}
"""


def imported(*args: str, env: dict[str, str] | None = None, file: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
    made = load(Rival(args=args, env=env or {}, files={"": file} if file else {}))
    loaded = load_bytes(json.dumps(made.config).encode(), "f", Config, MANIFEST.validate)
    assert loaded.problems == ()
    return made.config, made.notes


def test_the_file_is_taken_over_and_what_was_ignored_counts() -> None:
    config, notes = imported(file=FILE)
    assert config["mig"] == "mixed"
    assert config["device_list"] == ["envvar", "cdi-cri"]
    assert config["ids"] == "index"
    assert config["pass_device_specs"] is True
    assert config["imex"] == {"channels": [0], "required": True}
    first, second = config["sharing"]
    assert first == {"replicas": 4, "resource": "nvidia.com/gpu", "rename": True, "one_each": True}
    assert second["select"] == ["0:1"]
    assert any("was ignored" in note for note in notes)


def test_flags_weigh_more_than_environment_and_environment_more_than_the_file() -> None:
    env = {"MIG_STRATEGY": "single", "DEVICE_ID_STRATEGY": "uuid"}
    file = FILE.partition("sharing:")[0]
    config, _ = imported("--mig-strategy=none", env=env, file=file)
    assert "mig" not in config
    assert "ids" not in config
    assert imported(env={"MIG_STRATEGY": "single"}, file=file)[0]["mig"] == "single"


def test_the_vendors_default_is_written_out_with_what_is_wrong_with_it() -> None:
    config, notes = imported()
    assert config["device_list"] == ["envvar"]
    assert any("see them all" in note for note in notes)


def test_health_checks_are_taken_over() -> None:
    env = {"DP_DISABLE_HEALTHCHECKS": "xids,94", "DP_ENABLE_HEALTHCHECKS": "48,79"}
    config, _ = imported(env=env)
    assert config["health"] == {"xids": False, "ignore_xids": [94], "count_xids": [48, 79]}


def test_an_old_name_of_a_flag_and_an_unknown_one() -> None:
    config, notes = imported("--nvidia-driver-root=/run/nvidia/driver", "--colour=red")
    assert config["driver"] == {"root": "/run/nvidia/driver"}
    assert "--colour has no meaning here" in notes
