"""gpu-amd on generated trees: what it offers, under which names, with which answers; gpu.md names the rows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from devherd.compose import compose
from devherd.prefer import choose
from devherd.values import Device, Evidence, Inventory
from devherd_gpu.amd import features, simulate
from devherd_gpu.amd.config import Config, Health, Named, Sharing
from devherd_gpu.amd.exporter import METHOD, parse
from devherd_gpu.amd.gpus import PLATFORM
from devherd_gpu.amd.kfd import NODES
from devherd_gpu.amd.simulate import Mi300
from devherd_gpu.amd.validate import validate
from devherd_gpu.amd.vendor import AmdVendor, make
from support.planted import Planted


def vendor(host: Planted, **config: Any) -> AmdVendor:
    return make(Config(**config), host.host)


def planted(tmp_path: Path, node: Mi300 | None = None, **more: Any) -> Planted:
    return Planted(tmp_path, simulate.tree(node or Mi300(**more)))


def resources(found: Inventory) -> dict[str, list[str]]:
    return {one.name: [device.id for device in one.devices] for one in found.resources}


def devices(found: Inventory) -> dict[str, Device]:
    return {device.id: device for one in found.resources for device in one.devices}


def answer(*given: Device) -> dict[str, Any]:
    made = compose([device.parts for device in given])
    return {
        "devices": [(node.container_path, node.host_path, node.permissions) for node in made.nodes],
        "mounts": made.mounts,
        "env": made.env,
        "annotations": made.annotations,
        "cdi": made.cdi,
    }


def test_whole_gpus_have_the_vendors_name_ids_and_nodes(tmp_path: Path) -> None:
    """Section 1, resource names and device ids; section 2, ROCm."""
    found = vendor(planted(tmp_path, count=2)).scan()
    assert resources(found) == {"amd.com/gpu": ["0000:05:00.0", "0000:15:00.0"]}
    one = devices(found)["0000:15:00.0"]
    assert answer(one) == {
        "devices": [
            ("/dev/kfd", "/dev/kfd", "rw"),
            ("/dev/dri/card1", "/dev/dri/card1", "rw"),
            ("/dev/dri/renderD129", "/dev/dri/renderD129", "rw"),
        ],
        "mounts": (),
        "env": {},
        "annotations": {},
        "cdi": (),
    }
    assert one.numa == (1,)


def test_two_gpus_share_one_compute_node(tmp_path: Path) -> None:
    found = devices(vendor(planted(tmp_path, count=2)).scan())
    assert [path for path, _, _ in answer(*found.values())["devices"]].count("/dev/kfd") == 1


def test_an_unknown_numa_node_is_unset(tmp_path: Path) -> None:
    """Fact 7: the vendor's plugin sends -1."""
    found = vendor(planted(tmp_path, count=1, numa_nodes=0)).scan()
    assert devices(found)["0000:05:00.0"].numa == ()


def test_partitions_have_the_vendors_ids_and_each_its_own_nodes(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=2, compute="CPX", memory="NPS4")).scan()
    ids = resources(found)["amd.com/gpu"]
    assert len(ids) == 16
    assert {"0000:05:00.0", "amdgpu_xcp_0", "amdgpu_xcp_6", "0000:15:00.0", "amdgpu_xcp_13"} <= set(ids)
    renders = {device.parts.nodes[2].host_path for device in devices(found).values()}
    assert len(renders) == 16


def test_mixed_naming_names_how_a_gpu_is_split(tmp_path: Path) -> None:
    """Section 1, partition naming."""
    host = planted(tmp_path, count=3, modes=("SPX", "CPX", "CPX"))
    assert {name: len(ids) for name, ids in resources(vendor(host, naming="mixed").scan()).items()} == {
        "amd.com/spx_nps1": 1,
        "amd.com/cpx_nps1": 16,
    }


def test_single_naming_on_a_mixed_node_offers_the_most_common_and_says_what_is_left_out(tmp_path: Path) -> None:
    """The vendor's plugin ends with status 1 there."""
    host = planted(tmp_path, count=3, modes=("SPX", "SPX", "CPX"))
    found = vendor(host).scan()
    assert resources(found) == {"amd.com/gpu": ["0000:05:00.0", "0000:15:00.0"]}
    (left,) = [one for one in found.skipped if one.rule == "naming"]
    assert left.what == "0000:25:00.0"
    assert "CPX/NPS1" in left.reason
    assert "mixed" in left.reason


def test_gpus_that_cannot_be_split_are_gpus_under_any_naming(tmp_path: Path) -> None:
    """The vendor's plugin advertises them nowhere on a node that is not homogeneous."""
    host = planted(tmp_path, count=2, compute="", memory="")
    assert resources(vendor(host, naming="mixed").scan()) == {"amd.com/gpu": ["0000:05:00.0", "0000:15:00.0"]}


def test_platform_devices_the_compute_driver_does_not_use_are_not_offered(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=1, compute="DPX", spare_platform=6)).scan()
    assert resources(found) == {"amd.com/gpu": ["0000:05:00.0", "amdgpu_xcp_0"]}


def test_a_node_without_amd_hardware_is_absent(tmp_path: Path) -> None:
    assert vendor(Planted(tmp_path)).scan() == Inventory(absent="no AMD GPU on the PCI bus")


def test_a_gpu_of_another_driver_is_named_and_left_to_others(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=2, driver="vfio-pci")).scan()
    assert resources(found) == {}
    assert {one.what: one.reason for one in found.skipped}["0000:05:00.0"] == "is bound to vfio-pci, not to amdgpu"
    assert not found.absent


def test_a_gpu_whose_driver_is_still_starting_costs_no_other(tmp_path: Path) -> None:
    host = planted(tmp_path, count=2)
    host.remove("/dev/dri/renderD128")
    found = vendor(host).scan()
    assert resources(found) == {"amd.com/gpu": ["0000:15:00.0"]}
    assert "still starting" in {one.what: one.reason for one in found.skipped}["0000:05:00.0"]


def test_without_a_compute_node_nothing_is_offered_and_the_reason_is_named(tmp_path: Path) -> None:
    host = planted(tmp_path, count=1)
    host.remove("/dev/kfd")
    found = vendor(host).scan()
    assert resources(found) == {}
    assert "/dev/kfd" in [one.what for one in found.skipped]


# Filters and sharing


@pytest.mark.parametrize("pattern", ["0000:15:00.0", "15:00.0", "pci:0000:15:*", "1", "uuid:0000:15:00.0"])
def test_a_gpu_is_chosen_by_its_address_however_it_is_written(tmp_path: Path, pattern: str) -> None:
    assert resources(vendor(planted(tmp_path, count=3), include=(pattern,)).scan()) == {"amd.com/gpu": ["0000:15:00.0"]}


def test_gpus_are_left_out_by_model_and_device_id(tmp_path: Path) -> None:
    host = planted(tmp_path, count=2)
    for pattern in ("model:amd instinct *", "device:74a1", "device:0x74A1", "profile:spx_*"):
        assert resources(vendor(host, exclude=(pattern,)).scan()) == {}


def test_a_pattern_that_means_nothing_is_reported(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=1), exclude=("0000:ff:00.0",)).scan()
    assert [(one.what, one.rule) for one in found.skipped] == [("0000:ff:00.0", "exclude")]


def test_a_model_can_have_a_name_of_its_own(tmp_path: Path) -> None:
    rule = Named("mi300x", ("model:*MI300X", "device:0x74a5"))
    assert list(resources(vendor(planted(tmp_path, count=2), resources=(rule,)).scan())) == ["amd.com/mi300x"]


def test_shares_have_ids_of_their_own_and_the_gpus_answer(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=2), sharing=(Sharing(replicas=3, select=("05:00.0",)),)).scan()
    assert resources(found)["amd.com/gpu"] == [*(f"0000:05:00.0::{n}" for n in range(3)), "0000:15:00.0"]
    shares = [device for id, device in devices(found).items() if "::" in id]
    assert {share.things for share in shares} == {("pci:0000:05:00.0",)}
    assert answer(*shares) == answer(shares[0])
    assert found.resources[0].limit == 1


def test_renamed_shares_are_a_resource_of_their_own(tmp_path: Path) -> None:
    rule = Sharing(replicas=2, select=("05:00.0",), rename=True, one_each=False)
    found = vendor(planted(tmp_path, count=2), sharing=(rule,)).scan()
    assert {name: len(ids) for name, ids in resources(found).items()} == {"amd.com/gpu": 1, "amd.com/gpu.shared": 2}
    assert {one.limit for one in found.resources} == {0}


# Preferred allocation


def test_partitions_of_one_gpu_go_together(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=8, compute="CPX")).scan()
    (resource,) = found.resources
    ids = [device.id for device in resource.devices]
    chosen = choose(resource.preference, ids, [], 8)
    assert len({devices(found)[id].things[0] for id in chosen}) == 1


def test_fabric_neighbours_go_before_pcie_neighbours(tmp_path: Path) -> None:
    host = planted(tmp_path, count=4, xgmi=False, numa_nodes=1)
    # Only GPUs 0 and 2 are joined by the fabric.
    for one, other in ((1, 3), (3, 1)):
        for link in host.real(f"{NODES}/{one}/io_links").iterdir():
            text = (link / "properties").read_text()
            if f"node_to {other}" in text:
                (link / "properties").write_text(text.replace("type 2", "type 11"))
    (resource,) = vendor(host).scan().resources
    ids = [device.id for device in resource.devices]
    assert sorted(choose(resource.preference, ids, [], 2)) == ["0000:05:00.0", "0000:25:00.0"]


def test_any_size_of_64_partitions_is_answered_at_once(tmp_path: Path) -> None:
    """Fact 8: the vendor's plugin needs seconds. A tenth of one is no figure, only far from combinatorial."""
    (resource,) = vendor(planted(tmp_path, count=8, compute="CPX")).scan().resources
    ids = [device.id for device in resource.devices]
    for size in range(1, 65):
        began = time.process_time()
        assert len(set(choose(resource.preference, ids, [], size))) == size
        assert time.process_time() - began < 0.1


# Health


def evidence(found: Any) -> dict[tuple[str, str], Evidence]:
    return {(one.thing, one.kind): one for one in found if one.bad}


def test_a_healthy_node_has_nothing_against_it(tmp_path: Path) -> None:
    made = vendor(planted(tmp_path, count=2))
    assert evidence(made.scan().evidence) == {}
    assert evidence(made.check(())) == {}


def test_a_gpu_the_compute_driver_dropped_is_that_gpu_only(tmp_path: Path) -> None:
    """The vendor's plugin looks at the node as a whole: all or nothing."""
    host = planted(tmp_path, count=2)
    host.write(f"{NODES}/2/properties", "simd_count 0")
    found = vendor(host).scan()
    assert resources(found) == {"amd.com/gpu": ["0000:05:00.0", "0000:15:00.0"]}
    assert list(evidence(found.evidence)) == [("pci:0000:05:00.0", "kfd")]


def test_new_uncorrectable_errors_count_and_old_ones_do_not(tmp_path: Path) -> None:
    host = planted(tmp_path, count=1)
    counter = f"{simulate.folder(Mi300(count=1), 0)}/ras/umc_err_count"
    host.write(counter, "ue: 3\nce: 900")
    made = vendor(host)
    made.scan()
    assert evidence(made.check(())) == {}
    host.write(counter, "ue: 5\nce: 901")
    (bad,) = evidence(made.check(())).values()
    assert (bad.kind, bad.reason) == ("ras-umc", "2 new uncorrectable umc error(s)")
    assert evidence(made.check(())) == {}


def test_too_many_uncorrectable_errors_stay_until_reboot(tmp_path: Path) -> None:
    host = planted(tmp_path, count=1)
    host.write(f"{simulate.folder(Mi300(count=1), 0)}/ras/umc_err_count", "ue: 3\nce: 0")
    made = vendor(host, health=Health(uncorrectable_max=2))
    made.scan()
    (bad,) = evidence(made.check(())).values()
    assert (bad.kind, bad.clears.value) == ("ras-count", "reboot")


def test_pages_that_could_not_be_retired_count_until_reboot(tmp_path: Path) -> None:
    host = planted(tmp_path, count=1)
    host.write(
        f"{simulate.folder(Mi300(count=1), 0)}/ras/gpu_vram_bad_pages",
        "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n0x00000003 : 0x00001000 : F",
    )
    made = vendor(host)
    made.scan()
    found = evidence(made.check(()))
    assert found["pci:0000:05:00.0", "bad-pages"].clears.value == "reboot"
    assert found["pci:0000:05:00.0", "pending-pages"].severity.value == "soft"


def test_heat_is_soft_and_names_the_sensor(tmp_path: Path) -> None:
    host = planted(tmp_path, count=1)
    host.write(f"{simulate.folder(Mi300(count=1), 0)}/hwmon/hwmon0/temp1_input", "101000")
    made = vendor(host)
    made.scan()
    (bad,) = evidence(made.check(())).values()
    assert (bad.severity.value, bad.reason) == ("soft", "junction 101 °C, limit 100 °C")


def test_a_suspended_gpu_is_not_woken(tmp_path: Path) -> None:
    host = planted(tmp_path, count=1)
    folder = simulate.folder(Mi300(count=1), 0)
    host.write(f"{folder}/hwmon/hwmon0/temp1_input", "101000")
    host.write(f"{folder}/power/runtime_status", "suspended")
    made = vendor(host)
    made.scan()
    assert evidence(made.check(())) == {}


def test_only_the_word_unhealthy_of_the_exporter_counts() -> None:
    def state(address: str, word: str) -> bytes:
        body = b"\x1a" + bytes([len(word)]) + word.encode() + b"\x2a" + bytes([len(address)]) + address.encode()
        return b"\x0a" + bytes([len(body)]) + body

    message = state("0000:05:00.0", "healthy") + state("0000:15:00.0", "Unhealthy") + state("0000:25:00.0", "unknown")
    assert parse(message) == {"0000:15:00.0"}
    assert METHOD.startswith("/metricssvc.")


# Files


def test_cdi_names_lead_to_the_same_nodes(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=2), strategy="cdi").scan()
    one = devices(found)["0000:05:00.0"]
    assert answer(one)["cdi"] == ("amd.com/gpu=0000:05:00.0",)
    assert answer(one)["devices"] == []
    (file,) = [file for file in found.files if file.path.endswith(".json")]
    spec = json.loads(file.text)
    assert spec["kind"] == "amd.com/gpu"
    assert [node["path"] for node in spec["containerEdits"]["deviceNodes"]] == ["/dev/kfd"]
    named = {each["name"]: [node["path"] for node in each["containerEdits"]["deviceNodes"]] for each in spec["devices"]}
    assert named["0000:15:00.0"] == ["/dev/dri/card1", "/dev/dri/renderD129"]


def test_labels_are_those_of_the_vendors_labeller(tmp_path: Path) -> None:
    host = planted(tmp_path, count=2, compute="CPX", memory="NPS4")
    made = vendor(host)
    assert features.labels(host.host, made._found.gpus) == {}
    made.scan()
    found = features.labels(host.host, made._found.gpus)
    assert found["amd.com/gpu.vram"] == "192G"
    assert found["amd.com/gpu.vram.192G"] == "2"
    assert found["amd.com/gpu.device-id"] == "74a1"
    assert found["amd.com/gpu.family"] == "AI"
    assert found["amd.com/gpu.product-name"] == "AMD-Instinct-MI300X"
    assert found["amd.com/gpu.compute-memory-partition"] == "cpx_nps4"
    assert found["amd.com/gpu.compute-partitioning-supported"] == "true"
    assert found["amd.com/gpu.driver-version"] == "6.12.12"


@pytest.mark.parametrize(
    ("gfx", "family"), [(90402, "AI"), (90012, "RV"), (100303, "VGH"), (110501, "GC_11_5_0"), (1, "")]
)
def test_families(gfx: int, family: str) -> None:
    assert features.family(gfx) == family


# Change


def test_another_split_is_seen_by_the_next_scan(tmp_path: Path) -> None:
    made = vendor(planted(tmp_path, count=1))
    assert resources(made.scan()) == {"amd.com/gpu": ["0000:05:00.0"]}
    Planted(tmp_path, simulate.tree(Mi300(count=1, compute="DPX")))
    assert resources(made.scan()) == {"amd.com/gpu": ["0000:05:00.0", "amdgpu_xcp_0"]}
    assert Path(f"{tmp_path}{PLATFORM}").is_dir()


# Configuration


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        (Config(domain="Not A Domain"), ("domain",), "no domain"),
        (Config(include=("0",), exclude=("0",)), ("exclude",), "included and excluded"),
        (Config(include=("MI300",)), ("include", 0), "no selector"),
        (Config(resources=(Named("a b", ("0",)),)), ("resources", 0, "name"), "no resource name"),
        (Config(sharing=(Sharing(2), Sharing(3, ("0",)))), ("sharing", 0), "put it last"),
    ],
)
def test_each_mistake_has_one_clear_error(config: Config, key: tuple[Any, ...], words: str) -> None:
    ((where, text),) = validate(config)
    assert where == key
    assert words in text


def test_the_defaults_are_right() -> None:
    assert validate(Config()) == []
