"""gpu-intel on generated trees: what it offers, under which names, with which answers; gpu.md names the rows."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from devherd.compose import compose
from devherd.prefer import choose
from devherd.values import Device, Evidence, Inventory
from devherd_gpu.common.wedged import WedgedEvents, address_of
from devherd_gpu.intel import features, levelzero, simulate
from devherd_gpu.intel.config import Config, Health, Named
from devherd_gpu.intel.simulate import IntelNode
from devherd_gpu.intel.validate import validate
from devherd_gpu.intel.vendor import IntelVendor, make
from support.planted import Planted

I915, XE = "gpu.intel.com/i915", "gpu.intel.com/xe"


def vendor(host: Planted, **config: Any) -> IntelVendor:
    return make(Config(**config), host.host)


def planted(tmp_path: Path, **more: Any) -> Planted:
    return Planted(tmp_path, simulate.tree(IntelNode(**more)))


def resources(found: Inventory) -> dict[str, list[str]]:
    return {one.name: [device.id for device in one.devices] for one in found.resources}


def devices(found: Inventory) -> dict[str, Device]:
    return {device.id: device for one in found.resources for device in one.devices}


def answer(*given: Device) -> dict[str, Any]:
    made = compose([device.parts for device in given])
    return {
        "devices": [(node.container_path, node.host_path, node.permissions) for node in made.nodes],
        "mounts": [(mount.container_path, mount.host_path, mount.read_only) for mount in made.mounts],
        "env": made.env,
        "annotations": made.annotations,
        "cdi": list(made.cdi),
    }


def test_a_card_has_the_vendors_names_and_answer(tmp_path: Path) -> None:
    """Section 1, resource names and device ids; section 2, Intel, bypath=single."""
    found = vendor(planted(tmp_path)).scan()
    assert resources(found) == {I915: ["card0-0", "card1-0"]}
    by_path = "/dev/dri/by-path/pci-0000:13:00.0"
    assert answer(devices(found)["card1-0"]) == {
        "devices": [
            ("/dev/dri/card1", "/dev/dri/card1", "rw"),
            ("/dev/dri/renderD129", "/dev/dri/renderD129", "rw"),
        ],
        "mounts": [(f"{by_path}-{end}", f"{by_path}-{end}", True) for end in ("card", "render")],
        "env": {},
        "annotations": {},
        "cdi": ["intel.cdi.k8s.io/gpu=card1"],
    }


def test_two_shares_of_one_card_list_each_thing_once(tmp_path: Path) -> None:
    """The vendor's plugin lists everything twice."""
    found = devices(vendor(planted(tmp_path), shared=3).scan())
    assert list(found) == [f"card{card}-{n}" for card in (0, 1) for n in range(3)]
    assert answer(found["card0-0"], found["card0-2"]) == answer(found["card0-1"])


def test_each_driver_is_a_resource(tmp_path: Path) -> None:
    assert resources(vendor(planted(tmp_path, drivers=("xe", "i915"))).scan()) == {I915: ["card1-0"], XE: ["card0-0"]}


@pytest.mark.parametrize(
    ("by_path", "mounts"),
    [("none", []), ("all", [("/dev/dri/by-path", "/dev/dri/by-path", True)])],
)
def test_by_path_modes(tmp_path: Path, by_path: str, mounts: list[Any]) -> None:
    found = devices(vendor(planted(tmp_path), by_path=by_path).scan())
    assert answer(found["card0-0"], found["card1-0"])["mounts"] == mounts


def test_a_by_path_entry_of_something_else_is_left_out(tmp_path: Path) -> None:
    """Pain 22: a frame buffer's entry broke pods."""
    found = devices(vendor(planted(tmp_path, count=1, frame_buffer=True)).scan())
    assert all("framebuffer" not in place for place, _, _ in answer(found["card0-0"])["mounts"])


def test_a_physical_function_with_virtual_ones_is_hidden(tmp_path: Path) -> None:
    found = vendor(planted(tmp_path, count=1, functions=2)).scan()
    assert resources(found) == {I915: ["card1-0", "card2-0"]}
    assert "physical function" in {one.what: one.reason for one in found.skipped}["0000:03:00.0"]


def test_allowed_and_denied_device_ids(tmp_path: Path) -> None:
    host = planted(tmp_path)
    assert resources(vendor(host, allow=("0x56C0",)).scan()) == {I915: ["card0-0", "card1-0"]}
    assert resources(vendor(host, allow=("0x0bda",)).scan()) == {}
    found = vendor(host, deny=("0x56c0",)).scan()
    assert {one.what for one in found.skipped} == {"card0", "card1"}


def test_include_exclude_and_names(tmp_path: Path) -> None:
    host = planted(tmp_path, count=3)
    assert resources(vendor(host, include=("0", "13:00.0"), exclude=("0",)).scan()) == {I915: ["card1-0"]}
    named = (Named("flex", ("device:0x56c0",)),)
    assert list(resources(vendor(host, resources=named).scan())) == ["gpu.intel.com/flex"]


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("single", {"gpu.intel.com/monitoring": 2}),
        ("split", {"gpu.intel.com/i915_monitoring": 1, "gpu.intel.com/xe_monitoring": 1}),
    ],
)
def test_a_monitor_gets_every_card_and_nothing_else(tmp_path: Path, mode: str, names: dict[str, int]) -> None:
    """Section 2: all cards' nodes and /dev/meiN, no mounts, no CDI."""
    found = vendor(planted(tmp_path, drivers=("i915", "xe")), monitoring=mode).scan()
    monitors = {one.name: one.devices[0] for one in found.resources if "monitoring" in one.name}
    assert {one.id for one in monitors.values()} == {"all"}
    for name, cards in names.items():
        given = answer(monitors[name])
        assert len(given["devices"]) == 3 * cards
        assert sum("/dev/mei" in path for path, _, _ in given["devices"]) == cards
        assert (given["mounts"], given["cdi"]) == ([], [])


def test_a_node_without_intel_gpus_is_absent(tmp_path: Path) -> None:
    assert vendor(Planted(tmp_path)).scan().absent == "no Intel GPU on the PCI bus"


def test_a_card_of_another_driver_or_a_starting_one_costs_no_other(tmp_path: Path) -> None:
    host = planted(tmp_path, count=3, drivers=("vfio-pci",))
    host.remove("/dev/dri/card1")
    found = vendor(host).scan()
    assert resources(found) == {I915: ["card2-0"]}
    reasons = {one.what: one.reason for one in found.skipped}
    assert "vfio-pci" in reasons["0000:03:00.0"]
    assert "still starting" in reasons["0000:13:00.0"]


def test_an_unknown_numa_node_is_unset(tmp_path: Path) -> None:
    assert devices(vendor(planted(tmp_path, count=1, numa_nodes=0)).scan())["card0-0"].numa == ()


@pytest.mark.parametrize(("policy", "cards"), [("none", 2), ("balanced", 2), ("packed", 1)])
def test_shares_of_different_cards_or_of_few(tmp_path: Path, policy: str, cards: int) -> None:
    (resource,) = vendor(planted(tmp_path), shared=4, policy=policy).scan().resources
    chosen = choose(resource.preference, [device.id for device in resource.devices], [], 2)
    assert len({id.partition("-")[0] for id in chosen}) == cards


def test_balanced_takes_the_card_that_is_least_in_use(tmp_path: Path) -> None:
    (resource,) = vendor(planted(tmp_path), shared=4, policy="balanced").scan().resources
    free = ["card0-3", "card1-0", "card1-1", "card1-2", "card1-3"]
    assert choose(resource.preference, free, [], 1)[0].startswith("card1")


# Files


def test_the_specification_stands_where_the_vendors_would(tmp_path: Path) -> None:
    """One replaces the other, so no name is ever specified twice."""
    found = vendor(planted(tmp_path)).scan()
    files = {Path(file.path).name: file.text for file in found.files}
    spec = json.loads(files["intel.cdi.k8s.io-gpu-card1.yaml"])
    (device,) = spec["devices"]
    assert (spec["kind"], device["name"]) == ("intel.cdi.k8s.io/gpu", "card1")
    assert [node["path"] for node in device["containerEdits"]["deviceNodes"]] == [
        "/dev/dri/card1",
        "/dev/dri/renderD129",
    ]
    assert len(device["containerEdits"]["mounts"]) == 2


def test_labels_are_those_of_the_vendors_rules(tmp_path: Path) -> None:
    made = vendor(planted(tmp_path))
    made.scan()
    assert features.labels(made._found.cards) == {
        "gpu.intel.com/device-id.0380-56c0.present": "true",
        "gpu.intel.com/device-id.0380-56c0.count": "2",
        "gpu.intel.com/product": "Flex_170",
        "gpu.intel.com/device.count": "2",
        "gpu.intel.com/family": "Flex_Series",
    }
    assert features.labels(()) == {}


# Health


def bad(found: Any) -> dict[tuple[str, str], Evidence]:
    return {(one.thing, one.kind): one for one in found if one.bad}


def test_heat_is_soft_and_of_that_card(tmp_path: Path) -> None:
    made = vendor(planted(tmp_path, temperature={1: 104}))
    made.scan()
    ((place, found),) = bad(made.check(())).items()
    assert place == ("pci:0000:13:00.0", "heat")
    assert (found.severity.value, found.reason) == ("soft", "pkg 104 °C, limit 100 °C")


def test_without_a_limit_of_ours_the_sensors_own_counts(tmp_path: Path) -> None:
    made = vendor(planted(tmp_path, temperature={1: 104}), health=Health(temperature_max=0))
    made.scan()
    assert bad(made.check(())) == {}


class FakeMonitor:
    def __init__(self, *events: dict[str, str]) -> None:
        self.events = list(events)

    def fileno(self) -> int:
        return 0

    def poll(self, timeout: float) -> Any:
        return self.events.pop(0) if self.events else None


def event(action: str, subsystem: str, **more: str) -> dict[str, str]:
    path = "/devices/pci0000:00/0000:00:01.0/0000:03:00.0" + ("/drm/card0" if subsystem == "drm" else "")
    return {"ACTION": action, "SUBSYSTEM": subsystem, "DEVPATH": path, **more}


def test_a_wedged_card_stays_so_until_its_driver_is_bound_anew(tmp_path: Path) -> None:
    made = vendor(planted(tmp_path))
    made.scan()
    monitor = FakeMonitor(event("change", "drm", WEDGED="rebind,bus-reset"))
    made._wedged = WedgedEvents(monitor)
    assert made._wedged.drain() == "wedged"
    (found,) = bad(made.check(())).values()
    assert (found.thing, found.reason) == ("pci:0000:03:00.0", "i915 declared it wedged; recovery: rebind,bus-reset")
    monitor.events = [event("change", "drm"), event("unbind", "pci")]
    assert made._wedged.drain() == "wedged"
    assert bad(made.check(())) == {}


def test_the_address_is_the_functions_not_the_bridges() -> None:
    assert address_of("/devices/pci0000:00/0000:00:01.0/0000:03:00.0/drm/card0") == "0000:03:00.0"
    assert address_of("/devices/virtual/tty") == ""


def test_the_sidecars_word() -> None:
    assert levelzero.parse_health(b"\x08\x01\x10\x01\x18\x01") == []
    assert levelzero.parse_health(b"\x08\x01\x18\x01") == ["bus"]
    assert levelzero.parse_health(b"\xd2\x02\x02\x10\x05") is None
    message = b"\x09" + struct.pack("<d", 71.5) + b"\x11" + struct.pack("<d", 80.0)
    assert levelzero.parse_temperatures(message) == {"temperature": 71.5, "GPU temperature": 80.0}
    assert levelzero.bad_parts("/nonexistent", "0000:03:00.0") is None


# Configuration


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        (Config(allow=("0x1234",), deny=("0x5678",)), ("deny",), "exclude each other"),
        (Config(allow=("56c0",)), ("allow", 0), "0x56c0"),
        (Config(include=("card0",)), ("include", 0), "no selector"),
        (Config(domain="x_y"), ("domain",), "no domain"),
        (Config(resources=(Named("a b", ("0",)),)), ("resources", 0, "name"), "no resource name"),
    ],
)
def test_each_mistake_has_one_clear_error(config: Config, key: tuple[Any, ...], words: str) -> None:
    ((where, text),) = validate(config)
    assert where == key
    assert words in text


def test_the_vendors_flags_are_imported() -> None:
    from devherd.config.rival import Rival
    from devherd_gpu.intel.importer import load

    args = ("-shared-dev-num=4", "-enable-monitoring", "-monitoring-mode=split", "-allocation-policy", "packed")
    more = ("-bypath=none", "-allow-ids=0x56c0,0x56c1", "-temp-limit=90", "-health-management", "-v=2")
    imported = load(Rival(args=args + more))
    assert imported.config == {
        "shared": 4,
        "policy": "packed",
        "by_path": "none",
        "monitoring": "split",
        "allow": ["0x56c0", "0x56c1"],
        "health": {"temperature_max": 90},
    }
    assert len(imported.notes) == 1
