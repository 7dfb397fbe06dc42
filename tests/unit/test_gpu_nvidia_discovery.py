"""gpu-nvidia finds GPUs, loses one without losing others, and survives whatever the driver does."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from devherd.ledger import Ledger
from devherd.values import NOTHING_NOW, Device, Inventory, Severity
from devherd_gpu.nvidia import migprofile
from devherd_gpu.nvidia.nvml import address
from devherd_gpu.nvidia.standinstate import GIB
from support import nvmlbuild
from support.nvidianode import NvidiaNode, gpu, ids, mig_gpu, pci, reasons, resource, uuid

LOST = {"*": "gpu_is_lost"}
HANDED = {"nvmlDeviceGetHandle*": "ok", "*": "gpu_is_lost"}
BY_NODE = {"device_list": ["envvar"], "pass_device_specs": True}


@pytest.fixture(autouse=True, params=[False, True], ids=["standin", "library"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test with both stand-ins for NVML."""
    if request.param and (why := nvmlbuild.no_compiler()):
        pytest.skip(why)
    monkeypatch.setattr(NvidiaNode, "compiled", request.param)
    return bool(request.param)


@pytest.fixture
def node(tmp_path: Path) -> NvidiaNode:
    return NvidiaNode(tmp_path, *(gpu(number) for number in range(8)))


def devices(inventory: Inventory, name: str = "nvidia.com/gpu") -> dict[str, Device]:
    return {device.id: device for device in resource(inventory, name).devices}


def against(inventory: Inventory) -> dict[str, str]:
    return {item.thing: item.kind for item in inventory.evidence if item.bad}


def own_node(device: Device) -> str:
    return next(node.host_path for node in device.parts.nodes if node.thing.startswith("gpu:"))


# -- what a GPU is


def test_gpus_with_their_ids_numa_nodes_things_and_facts(node: NvidiaNode) -> None:
    found = devices(node.scan())
    assert list(found) == [uuid(number) for number in range(8)]
    device = found[uuid(5)]
    assert (device.things, device.numa) == ((f"pci:{pci(5)}",), (1,))
    assert device.attributes == {
        "model": "NVIDIA H100 80GB HBM3",
        "pci": pci(5),
        "index": "5",
        "minor": "5",
        "memory": "81920 MiB",
        "compute": "9.0",
    }


def test_an_unknown_numa_node_is_unset(tmp_path: Path) -> None:
    assert devices(NvidiaNode(tmp_path, gpu(0), numa=False).scan())[uuid(0)].numa == ()


def test_bus_ids_are_read_as_sysfs_writes_them() -> None:
    assert address(b"00000000:1B:00.0") == "0000:1b:00.0"
    assert address("00010000:41:00.0") == "10000:41:00.0"
    assert address("00000009:01:00.0") == "0009:01:00.0"


def test_cards_for_screens_virtual_machines_and_other_drivers_are_left_out(tmp_path: Path) -> None:
    screen = gpu(1, name="NVIDIA DGX Display")
    node = NvidiaNode(tmp_path, gpu(0), screen, gpu(2, virtualization=3))
    node.card(gpu(5), driver="vfio-pci")
    node.card(gpu(6), driver="nouveau")
    node.card(gpu(7), driver="")
    inventory = node.scan()
    assert ids(inventory) == [uuid(0)]
    said = reasons(inventory)
    assert "screens" in said[pci(1)]
    assert "vGPU" in said[pci(2)]
    assert "generic plugin" in said[pci(5)]
    assert "nouveau" in said[pci(6)]
    assert "no driver" in said[pci(7)]
    assert inventory.evidence == ()


# -- one GPU lost


@pytest.mark.parametrize("errors", [LOST, HANDED, {"nvmlDeviceGetUUID": "unknown"}])
def test_a_lost_gpu_is_that_gpu_only(node: NvidiaNode, errors: dict[str, str]) -> None:
    vendor = node.vendor()
    before = devices(vendor.scan())
    node.set_gpu(3, errors=errors)
    inventory = vendor.scan()
    assert devices(inventory).keys() == before.keys()
    assert against(inventory) == {f"pci:{pci(3)}": "gpu-lost"}
    assert all(item.severity is Severity.HARD for item in inventory.evidence)
    node.set_gpu(3, errors={})
    assert vendor.scan().evidence == ()


@pytest.mark.parametrize("errors", [LOST, HANDED])
def test_a_lost_gpu_is_that_gpu_only_after_a_restart_of_ours(node: NvidiaNode, errors: dict[str, str]) -> None:
    node.set_gpu(3, errors=errors)
    inventory = node.scan()
    assert ids(inventory) == [uuid(number) for number in range(8)]
    assert against(inventory) == {f"pci:{pci(3)}": "gpu-lost"}


def test_a_gpu_that_the_driver_does_not_even_count_is_lost(node: NvidiaNode) -> None:
    node.set_gpu(3, gone=True)
    inventory = node.scan()
    assert against(inventory) == {f"pci:{pci(3)}": "gpu-lost"}
    assert len(ids(inventory)) == 8


def test_a_lost_gpu_that_nobody_can_name_is_skipped_with_the_reason(node: NvidiaNode) -> None:
    node.set_gpu(3, errors=LOST)
    node.info(pci(3), "GPU-????????-????-????-????-????????????", 3, "Unknown")
    inventory = node.scan()
    assert ids(inventory) == [uuid(number) for number in range(8) if number != 3]
    assert "lost" in reasons(inventory)[pci(3)]


def test_a_gpu_that_the_driver_was_told_to_leave_out_is_no_fault(node: NvidiaNode) -> None:
    node.set_gpu(3, gone=True)
    node.write(f"/proc/driver/nvidia/gpus/{pci(3)}/information", f"GPU UUID: {uuid(3)}\nGPU Excluded: Yes\n")
    inventory = node.scan()
    assert inventory.evidence == ()
    assert "excluded" in reasons(inventory)[pci(3)]


def test_two_lost_gpus_are_two(node: NvidiaNode) -> None:
    vendor = node.vendor()
    vendor.scan()
    node.set_gpu(1, errors=LOST)
    node.set_gpu(6, errors=LOST)
    assert against(vendor.scan()) == {f"pci:{pci(1)}": "gpu-lost", f"pci:{pci(6)}": "gpu-lost"}


def missing_at_boot(node: NvidiaNode, number: int) -> None:
    """The card is not on the bus; the driver numbers those after it anew."""
    node.unplug(pci(number))
    node.no_node(f"/dev/nvidia{len(node.state.gpus) - 1}")
    for later in range(number, len(node.state.gpus)):
        node.set_gpu(later, **({"gone": True} if later == number else {"minor": later - 1}))
        node.info(pci(later), uuid(later), later - 1, "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize("config", [BY_NODE, {"device_list": ["envvar"], "ids": "index"}, {"ids": "index"}])
def test_reboot_with_gpu_3_of_8_missing_never_leads_a_container_to_another_gpu(
    node: NvidiaNode, config: dict[str, object]
) -> None:
    """What was answered by node or index before the reboot is stale for every GPU whose number moved, for no other."""
    before = devices(node.scan(**config))
    ledger = Ledger()
    for id, device in before.items():
        ledger.record("nvidia.com/gpu", id, device.parts, "boot-1", 0.0)
    missing_at_boot(node, 3)
    after = devices(node.scan(**config))
    assert list(after) == [uuid(number) for number in range(8) if number != 3]
    stale = ledger.stale_in("nvidia.com/gpu", after)
    assert sorted(stale) == [uuid(number) for number in (4, 5, 6, 7)]
    assert all("stale" in reason for reason in stale.values())


def test_reboot_with_a_gpu_missing_leaves_answers_by_uuid_right(node: NvidiaNode) -> None:
    ledger = Ledger()
    for id, device in devices(node.scan()).items():
        ledger.record("nvidia.com/gpu", id, device.parts, "boot-1", 0.0)
    missing_at_boot(node, 3)
    assert ledger.stale_in("nvidia.com/gpu", devices(node.scan())) == {}


def test_other_names_for_the_same_gpus_make_no_answer_stale(node: NvidiaNode) -> None:
    """A change of `ids` on a node with pods: the specification names each GPU both ways."""
    for before, after in (("index", "uuid"), ("uuid", "index")):
        ledger = Ledger()
        for id, device in devices(node.scan(ids=before)).items():
            ledger.record("nvidia.com/gpu", id, device.parts, "boot-1", 0.0)
        assert ledger.stale_in("nvidia.com/gpu", devices(node.scan(ids=after))) == {}


def test_a_dynamic_major_that_changed_makes_no_answer_stale(node: NvidiaNode) -> None:
    ledger = Ledger()
    for id, device in devices(node.scan(**BY_NODE)).items():
        ledger.record("nvidia.com/gpu", id, device.parts, "boot-1", 0.0)
    node.node("/dev/nvidia-uvm", 510, 0)
    assert ledger.stale_in("nvidia.com/gpu", devices(node.scan(**BY_NODE))) == {}


def test_the_minor_of_a_lost_gpu_that_another_has_by_now_is_not_given(node: NvidiaNode) -> None:
    """Unloading and loading the driver renumbers while the lost card is still on the bus."""
    vendor = node.vendor(**BY_NODE)
    vendor.scan()
    node.set(init="driver_not_loaded")
    vendor.scan()
    node.set_gpu(3, gone=True)
    for later in range(4, 8):
        node.set_gpu(later, minor=later - 1)
    node.set(init="ok")
    found = devices(vendor.scan())
    assert own_node(found[uuid(4)]) == "/dev/nvidia3"
    lost = found.get(uuid(3))
    assert lost is None or all(node.host_path != "/dev/nvidia3" for node in lost.parts.nodes)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda node: node.no_node("/dev/nvidia2"), "nvidia-modprobe"),
        (lambda node: node.node("/dev/nvidia2", 195, 5), "195:5"),
        (lambda node: node.node("/dev/nvidia2", 240, 2), "240:2"),
    ],
)
def test_a_node_that_is_missing_or_another_is_not_given(node: NvidiaNode, change: object, word: str) -> None:
    change(node)  # type: ignore[operator]
    inventory = node.scan(**BY_NODE)
    assert against(inventory) == {f"pci:{pci(2)}": "node"}
    assert word in inventory.evidence[0].reason
    assert all(node.thing[:4] != "gpu:" for node in devices(inventory)[uuid(2)].parts.nodes)


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations", "driver-mount"])
def test_a_missing_node_counts_wherever_nodes_are_given_and_nowhere_else(node: NvidiaNode, strategy: str) -> None:
    node.no_node("/dev/nvidia2")
    assert against(node.scan(device_list=[strategy])) == {f"pci:{pci(2)}": "node"}
    assert against(node.scan(device_list=["envvar"])) == {}


def test_a_missing_uvm_node_is_said(node: NvidiaNode) -> None:
    assert "/dev/nvidia-uvm" not in reasons(node.scan())
    node.no_node("/dev/nvidia-uvm")
    assert "nvidia-modprobe" in reasons(node.scan())["/dev/nvidia-uvm"]


# -- the driver


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"init": "driver_not_loaded"}, "modprobe"),
        ({"init": "lib_rm_version_mismatch"}, "580.95.05"),
        ({"init": "library_not_found"}, "driver.root"),
        ({"init": "unknown"}, "NVML error 999"),
        ({"errors": {"nvmlInitWithFlags": "function_not_found"}}, "too old"),
        ({"errors": {"nvmlDeviceGetCount": "unknown"}}, "does not list"),
        ({"errors": {"nvmlSystemGetDriverVersion": "uninitialized"}}, "NVML does not start"),
    ],
)
def test_a_driver_that_fails_is_said_and_survived_and_its_return_is_seen(
    node: NvidiaNode, fields: dict[str, object], word: str
) -> None:
    vendor = node.vendor()
    before = vendor.scan()
    node.set(**fields)
    vendor.driver.close()
    broken = vendor.scan()
    assert resource(broken).devices == ()
    assert broken.absent == ""
    assert len(against(broken)) == 8
    assert set(against(broken).values()) == {"gone"}
    assert all(word in item.reason for item in broken.evidence)
    assert word in reasons(broken)[pci(0)]
    node.set(init="ok", errors={})
    assert vendor.scan() == before


def test_a_driver_that_is_unloaded_below_us_is_noticed_and_its_return_too(node: NvidiaNode) -> None:
    vendor = node.vendor()
    before = vendor.scan()
    node.set(init="driver_not_loaded")
    node.write("/proc/driver/nvidia/version", "")
    assert resource(vendor.scan()).devices == ()
    node.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n")
    node.set(init="ok")
    assert vendor.scan() == before


def test_a_node_without_the_library_says_so(node: NvidiaNode) -> None:
    (node.root / "run/devherd-sim/nvml.json").unlink()
    inventory = node.scan()
    assert "libnvidia-ml.so.1" in reasons(inventory)[pci(0)]
    assert inventory.absent == ""


def test_a_library_that_is_none_is_survived(node: NvidiaNode) -> None:
    (node.root / "run/devherd-sim/nvml.json").unlink()
    node.write("/usr/lib64/libnvidia-ml.so.1", "not a library")
    assert "cannot be loaded" in reasons(node.scan())[pci(0)] or "can be written" in reasons(node.scan())[pci(0)]


def test_a_node_without_cards_is_absent_and_loads_no_library(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path)
    (node.root / "run/devherd-sim/nvml.json").unlink()
    node.write("/usr/lib64/libnvidia-ml.so.1", "not a library")
    inventory = node.scan()
    assert "no NVIDIA GPU" in inventory.absent
    assert inventory.resources == ()


def test_a_node_whose_cards_all_belong_to_virtual_machines_is_absent(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path)
    (node.root / "run/devherd-sim/nvml.json").unlink()
    node.card(gpu(0), driver="vfio-pci")
    inventory = node.scan()
    assert inventory.absent
    assert "vfio-pci" in reasons(inventory)[pci(0)]


def test_a_card_that_is_plugged_in_is_found(node: NvidiaNode) -> None:
    vendor = node.vendor()
    assert len(ids(vendor.scan())) == 8
    node.set(gpus=(*node.state.gpus, gpu(8)))
    node.card(gpu(8))
    assert len(ids(vendor.scan())) == 9


def test_a_driver_that_is_not_held_is_let_go_after_each_look(node: NvidiaNode) -> None:
    vendor = node.vendor(driver={"hold": False})
    assert len(ids(vendor.scan())) == 8
    first = vendor.driver.generation
    assert len(ids(vendor.scan())) == 8
    assert vendor.driver.generation == first + 1


def test_a_containerised_driver_is_looked_for(node: NvidiaNode) -> None:
    vendor = node.vendor()
    assert vendor.driver.root == "/"
    node.write("/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "")
    assert vendor.driver.root == "/run/nvidia/driver"


# -- MIG


def mixed(tmp_path: Path) -> NvidiaNode:
    return NvidiaNode(tmp_path, gpu(0), mig_gpu(1, "1g.5gb", "1g.5gb", "3g.20gb"), mig_gpu(2), mig_gpu(3, "1g.5gb+me"))


def offered(inventory: Inventory) -> dict[str, int]:
    return {one.name: len(one.devices) for one in inventory.resources}


def test_mig_none_offers_whole_gpus(tmp_path: Path) -> None:
    assert ids(mixed(tmp_path).scan()) == [uuid(number) for number in range(4)]


def test_mig_mixed_names_each_profile(tmp_path: Path) -> None:
    inventory = mixed(tmp_path).scan(mig="mixed")
    assert offered(inventory) == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-1g.5gb": 2,
        "nvidia.com/mig-1g.5gb.me": 1,
        "nvidia.com/mig-3g.20gb": 1,
    }
    assert "no MIG device" in reasons(inventory)[uuid(2)]
    device = resource(inventory, "nvidia.com/mig-3g.20gb").devices[0]
    assert device.things == (f"pci:{pci(1)}", f"mig:{device.id}")
    assert (device.attributes["profile"], device.attributes["gpu"]) == ("3g.20gb", uuid(1))


def test_mig_single_offers_the_commonest_profile_and_says_why_not_the_others(tmp_path: Path) -> None:
    inventory = mixed(tmp_path).scan(mig="single")
    assert offered(inventory) == {"nvidia.com/gpu": 2}
    said = reasons(inventory)
    assert "not divided" in said[uuid(0)]
    assert "no MIG device" in said[uuid(2)]
    assert sum("most are 1g.5gb" in reason for reason in said.values()) == 2


def test_mig_single_without_mig_offers_whole_gpus(node: NvidiaNode) -> None:
    assert len(ids(node.scan(mig="single"))) == 8


def test_mig_geometry_that_changes_is_followed(tmp_path: Path) -> None:
    node = mixed(tmp_path)
    vendor = node.vendor(mig="mixed")
    vendor.scan()
    node.set_gpu(1, mig=mig_gpu(1, "7g.40gb").mig)
    assert offered(vendor.scan()) == {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb.me": 1, "nvidia.com/mig-7g.40gb": 1}


def test_a_compute_instance_smaller_than_its_gpu_instance_has_a_name_too(tmp_path: Path) -> None:
    import msgspec

    one = mig_gpu(0, "3g.20gb")
    assert one.mig is not None
    device = msgspec.structs.replace(one.mig.devices[0], ci_slices=1)
    node = NvidiaNode(tmp_path, msgspec.structs.replace(one, mig=msgspec.structs.replace(one.mig, devices=(device,))))
    assert offered(node.scan(mig="mixed")) == {"nvidia.com/mig-1c.3g.20gb": 1}


def test_a_profile_that_is_newer_than_we_are_is_named_by_the_driver_or_skipped(tmp_path: Path) -> None:
    import msgspec

    one = mig_gpu(0, "1g.5gb", "2g.10gb")
    assert one.mig is not None
    named = msgspec.structs.replace(one.mig.profiles[0], profile=17, id=77, name="5g.30gb+gfx")
    devices = (
        msgspec.structs.replace(one.mig.devices[0], profile=40),
        one.mig.devices[1],
    )
    mig = msgspec.structs.replace(one.mig, devices=devices, profiles=(*one.mig.profiles, named))
    inventory = NvidiaNode(tmp_path, msgspec.structs.replace(one, mig=mig)).scan(mig="mixed")
    assert offered(inventory) == {"nvidia.com/mig-2g.10gb": 1}
    assert any("profile 1040" in reason for reason in reasons(inventory).values())


def test_a_mig_device_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    node = mixed(tmp_path)
    node.set_gpu(3, errors={"nvmlDeviceGetAttributes": "unknown"})
    assert offered(node.scan(mig="mixed")) == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-1g.5gb": 2,
        "nvidia.com/mig-3g.20gb": 1,
    }


def test_capabilities_that_the_kernel_does_not_list_are_evidence_against_that_device(tmp_path: Path) -> None:
    node = mixed(tmp_path)
    cap = node.cap(1, 3)
    node.no_node(f"/dev/nvidia-caps/nvidia-cap{cap}")
    inventory = node.scan(mig="mixed", **BY_NODE)
    (thing,) = against(inventory)
    assert thing == resource(inventory, "nvidia.com/mig-3g.20gb").devices[0].things[1]


@pytest.mark.parametrize(
    ("profile", "slices", "compute", "memory", "total", "name"),
    [
        (0, 1, 1, 4864, 40 * GIB, "1g.5gb"),
        (7, 1, 1, 9728, 80 * GIB, "1g.10gb+me"),
        (9, 1, 1, 19968, 80 * GIB, "1g.20gb"),
        (4, 7, 7, 81152, 80 * GIB, "7g.80gb"),
        (2, 3, 2, 40192, 80 * GIB, "2c.3g.40gb"),
        (0, 1, 1, 16128, 141 * GIB, "1g.18gb"),
        (0, 1, 1, 22528, 179 * GIB + 1, "1g.23gb"),
        (13, 1, 1, 22528, 179 * GIB + 1, "1g.23gb-me"),
        (15, 1, 1, 22528, 179 * GIB + 1, "1g.23gb+me.all"),
        (10, 1, 1, 24320, 96 * GIB, "1g.24gb+gfx"),
        (18, 1, 1, 12000, 95 * GIB, ""),
    ],
)
def test_profile_names(profile: int, slices: int, compute: int, memory: int, total: int, name: str) -> None:
    assert migprofile.name(profile, slices, compute, memory, total) == name


# -- rules


def test_include_and_exclude_by_every_kind_of_selector(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path, gpu(0), gpu(1, name="NVIDIA L4"), mig_gpu(2, "1g.5gb", "3g.20gb"))
    assert ids(node.scan(include=["0"])) == [uuid(0)]
    assert ids(node.scan(include=["model:*l4"])) == [uuid(1)]
    assert ids(node.scan(include=[uuid(1), pci(0)])) == [uuid(0), uuid(1)]
    assert ids(node.scan(exclude=["model:*A100*", "index:1"])) == [uuid(0)]
    assert offered(node.scan(mig="mixed", include=["profile:3g.20gb"])) == {"nvidia.com/mig-3g.20gb": 1}
    assert offered(node.scan(mig="mixed", exclude=["2:0", "0", "1"])) == {"nvidia.com/mig-3g.20gb": 1}


def test_names_by_pattern(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path, gpu(0), gpu(1, name="NVIDIA L4"), mig_gpu(2, "1g.5gb"))
    rules = [{"select": ["model:*L4"], "name": "gpu-small"}, {"select": ["profile:1g*"], "name": "acme.org/slice"}]
    assert offered(node.scan(mig="mixed", resources=rules)) == {
        "acme.org/slice": 1,
        "nvidia.com/gpu": 1,
        "nvidia.com/gpu-small": 1,
    }
    (small,) = devices(node.scan(resources=rules[:1]), "nvidia.com/gpu-small").values()
    assert small.attributes["rule"] == "resources[0]"


def test_shares_per_selector(node: NvidiaNode) -> None:
    rules = [{"replicas": 2, "select": ["0", "1"], "name": "gpu-half"}, {"replicas": 4, "select": ["2"]}]
    inventory = node.scan(sharing=rules)
    assert offered(inventory) == {"nvidia.com/gpu": 9, "nvidia.com/gpu-half": 4}
    shares = [device for device in resource(inventory).devices if device.id.startswith(uuid(2))]
    assert {device.things for device in shares} == {(f"pci:{pci(2)}",)}
    assert {claim.mode for device in shares for claim in device.claims} == {"shared"}


def test_selectors_and_rules_that_mean_nothing_are_warned_about_once_each(node: NvidiaNode) -> None:
    inventory = node.scan(
        include=["all", "model:*B200*"],
        exclude=["GPU-nowhere"],
        resources=[{"select": ["model:*L40*"], "name": "gpu-l40"}],
        sharing=[{"replicas": 2, "select": ["0"]}, {"replicas": 4, "select": ["0"]}],
    )
    idle = [(skipped.what, skipped.rule) for skipped in inventory.skipped if skipped.reason.startswith(NOTHING_NOW)]
    assert idle == [
        ("model:*B200*", "include"),
        ("GPU-nowhere", "exclude"),
        ("model:*L40*", "resources[0]"),
        ("sharing[1]", "sharing[1]"),
    ]


def test_replicas_on_mig_single_are_pointed_out_unless_the_rule_says_that_they_are_meant(tmp_path: Path) -> None:
    node = NvidiaNode(tmp_path, mig_gpu(0, "1g.5gb", "1g.5gb"))
    inventory = node.scan(mig="single", sharing=[{"replicas": 2}])
    assert len(ids(inventory)) == 4
    assert [skipped.rule for skipped in inventory.skipped if "mig: single" in skipped.reason] == ["sharing[0]"]
    meant = node.scan(mig="single", sharing=[{"replicas": 2, "select": ["profile:1g.*"]}])
    assert len(ids(meant)) == 4
    assert not any("mig: single" in skipped.reason for skipped in meant.skipped)


def test_a_required_imex_channel_that_is_missing_is_held_against_the_gpus(node: NvidiaNode) -> None:
    inventory = node.scan(imex={"channels": [0], "required": True})
    assert set(against(inventory).values()) == {"imex"}
    assert len(against(inventory)) == 8
    relaxed = node.scan(imex={"channels": [0]})
    assert relaxed.evidence == ()
    assert "IMEX channel 0" in reasons(relaxed)


# -- cost


def test_a_second_look_asks_a_gpu_three_questions(node: NvidiaNode) -> None:
    """What cannot change while NVML is open is asked once: on real cards each question may take milliseconds."""
    vendor = node.vendor()
    vendor.scan()
    nvml = vendor.driver.open(tuple(pci(number) for number in range(8)))
    asked: list[str] = []
    call = nvml.call
    nvml.call = lambda function, *args: asked.append(function) or call(function, *args)  # type: ignore[method-assign, func-returns-value]
    vendor.scan()
    per_gpu = [function for function in asked if function.startswith("nvmlDevice") and function != "nvmlDeviceGetCount"]
    assert len(per_gpu) <= 4 * 8
    assert len(asked) <= 4 * 8 + 3


def test_a_look_at_eight_gpus_takes_a_few_milliseconds_of_our_own(node: NvidiaNode) -> None:
    vendor = node.vendor()
    vendor.scan()
    took = []
    for _ in range(5):
        began = time.process_time()
        vendor.scan()
        took.append(time.process_time() - began)
    assert min(took) < 0.1


def test_the_same_host_gives_the_same_inventory(node: NvidiaNode) -> None:
    assert node.scan() == node.scan()


def test_a_state_file_that_is_half_written_changes_nothing(node: NvidiaNode) -> None:
    vendor = node.vendor()
    before = vendor.scan()
    path = node.root / "run/devherd-sim/nvml.json"
    path.write_text(json.dumps({"version": 1})[:-4])
    assert vendor.scan() == before
