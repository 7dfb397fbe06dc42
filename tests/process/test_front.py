"""A real front and its probe on a simulated node, against the simulated kubelet: what a pod would notice."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frontnode import RESOURCE, XDEV, FrontNode, xdevs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def node() -> Iterator[FrontNode]:
    with FrontNode(xdevs(6)) as running:
        running.up(allocatable=6)
        yield running


def registered(node: FrontNode, name: str = RESOURCE) -> dict[str, Any]:
    row: dict[str, Any] = node.until(
        lambda: (found := node.resource(name))["state"] == "registered" and found, what=f"{name} registered"
    )
    return row


def test_a_pod_gets_exactly_the_nodes_of_its_ids(node: FrontNode) -> None:
    pod = node.run_pod("p", {RESOURCE: 2})
    paths = sorted(given["host_path"] for given in pod["containers"][0]["record"]["nodes"])
    wanted = sorted(path for path, row in node.devices().items() if row["id"] in node.ids("p"))
    assert paths == wanted
    assert len(paths) == 2


def test_numa_nodes_reach_the_kubelet(node: FrontNode) -> None:
    assert [row["numa"] for _, row in sorted(node.devices().items())] == [[0], [1], [0], [1], [0], [1]]


def test_a_kubelet_restart_costs_one_register_call_and_no_pod(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 2})
    ids, before = node.ids("p"), registered(node)["registrations"]
    socket = f"{node.kubelet.places.device_plugins}/{registered(node)['socket']}"
    inode = os.stat(socket).st_ino
    node.kubelet.restart(hard=True)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=6)
    assert registered(node)["registrations"] == before + 1
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"
    assert node.ids("p") == ids
    assert os.stat(socket).st_ino == inode


def test_sockets_are_for_root_alone(node: FrontNode) -> None:
    path = f"{node.kubelet.places.device_plugins}/{registered(node)['socket']}"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_top_level_layout_is_bound_again_after_the_kubelets_wipe() -> None:
    with FrontNode(xdevs(3), settings={"kubelet": {"layout": "top"}}) as node:
        node.up(allocatable=3)
        node.run_pod("p", {RESOURCE: 1})
        ids = node.ids("p")
        for _ in range(3):
            node.kubelet.restart()
            node.kubelet.client.wait_resource(RESOURCE, allocatable=3)
        assert "/" not in registered(node)["socket"]
        assert node.ids("p") == ids
        assert node.status()["layout"] == "top"


def test_a_kubelet_that_refuses_subfolders_switches_the_node_over_and_is_remembered() -> None:
    with FrontNode(xdevs(2)) as node:
        node.kubelet.set(refuse_subfolders=True)
        node.up(allocatable=2)
        assert node.until(lambda: node.status()["layout"] == "top")
        node.end_front()
        node.start_front()
        node.until(lambda: registered(node)["registrations"] == 1)
        events = node.kubelet.client.events(what="register-refused")
        assert len(events) <= 1, events


def test_a_device_that_goes_is_unhealthy_within_a_second_and_one_that_returns_is_healthy(node: FrontNode) -> None:
    start = time.monotonic()
    node.node.break_device("/dev/x2")
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=5)
    assert time.monotonic() - start < 1.0
    node.node.heal_device("/dev/x2")
    node.kubelet.client.wait_resource(RESOURCE, allocatable=6, capacity=6, timeout=5)


def test_a_missing_device_that_a_pod_holds_stays_in_the_list_and_one_that_nobody_holds_leaves(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 1})
    held = next(path for path, row in node.devices().items() if row["id"] in node.ids("p"))
    free = next(path for path in node.devices() if path != held)
    node.node.break_device(held)
    node.node.break_device(free)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=4, capacity=5, timeout=10)
    row = node.devices()[held]
    assert (row["healthy"], row["kind"]) == (False, "gone")
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


def test_a_new_device_is_listed_within_a_second() -> None:
    with FrontNode(xdevs(3)) as node:
        node.node.break_device("/dev/x1")
        node.up(allocatable=2)
        start = time.monotonic()
        node.node.heal_device("/dev/x1")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=3, timeout=5)
        assert time.monotonic() - start < 1.0


def test_a_hung_probe_changes_nothing_for_pods_and_is_replaced(node: FrontNode) -> None:
    registered(node)
    probe = node.status()["probe"]["pid"]
    before = node.resource()["registrations"]
    os.kill(probe, signal.SIGSTOP)
    node.ask("rescan")
    assert node.run_pod("during", {RESOURCE: 2})["phase"] == "Running"
    status = node.until(lambda: (now := node.status())["probe"]["replaced"] >= 1 and now, what="probe replaced")
    node.until(lambda: node.status()["probe"]["state"] == "idle" and node.status()["probe"]["pid"] != probe)
    assert node.resource()["registrations"] == before
    assert node.resource()["state"] == "registered"
    assert "hangs" in Path(node.log).read_text(encoding="utf-8")
    assert status["probe"]["error"] or status["probe"]["replaced"]
    with pytest.raises(ProcessLookupError):
        os.kill(probe, 0)


def test_a_kubelet_restart_while_the_probe_hangs_still_registers(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 1})
    os.kill(node.status()["probe"]["pid"], signal.SIGSTOP)
    node.kubelet.restart(hard=True)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=6, timeout=2)
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


def test_a_killed_probe_is_replaced_at_once_though_no_scan_is_due() -> None:
    with FrontNode(xdevs(3), settings={"probe": {"scan_interval": 3600}}) as node:
        node.up(allocatable=3)
        probe = node.status()["probe"]["pid"]
        os.kill(probe, signal.SIGKILL)
        node.until(lambda: (now := node.status()["probe"])["state"] == "idle" and now["pid"] != probe, timeout=5)
        node.node.break_device("/dev/x1")
        node.kubelet.client.wait_resource(RESOURCE, allocatable=2, timeout=5)


def test_a_device_that_is_back_says_when_it_will_be_healthy(node: FrontNode) -> None:
    node.node.break_device("/dev/x1")
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=5)
    node.change_settings({"health": {"recover": 60}})
    assert node.front is not None
    os.kill(node.front.pid, signal.SIGHUP)
    node.node.heal_device("/dev/x1")
    reason = node.until(lambda: (text := node.devices()["/dev/x1"]["reason"]).count("Healthy in") and text)
    assert "good again" in reason
    found = node.ask("explain", what="c:240:1")["found"]
    assert any("good again" in row["text"] for row in found)


def test_a_killed_probe_is_replaced_and_finds_what_changed_meanwhile(node: FrontNode) -> None:
    os.kill(node.status()["probe"]["pid"], signal.SIGKILL)
    node.node.break_device("/dev/x0")
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=10)


def test_a_device_number_that_moved_never_reaches_a_pod_through_a_replayed_answer(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 6})
    hardware = {path: node.node.hardware(path) for path in ("/dev/x3", "/dev/x4")}
    node.node.renumber({"/dev/x3": "/dev/x4", "/dev/x4": "/dev/x3"})
    assert node.node.hardware("/dev/x4") == hardware["/dev/x3"]
    node.kubelet.client.wait_resource(RESOURCE, allocatable=4, capacity=6, timeout=5)
    # A scan in the middle of the exchange finds neither: both are gone for a moment.
    stale = {"/dev/x3", "/dev/x4"}
    node.until(lambda: {path for path, row in node.devices().items() if row["kind"] == "stale"} == stale)
    for path in stale:
        assert node.devices()[path]["reason"].startswith("answer stale")
    node.kubelet.client.pod_rm("p")
    pod = node.kubelet.client.pod_add("q", {RESOURCE: 5}, wait=5)
    assert pod["phase"] == "Failed", "stale ids must not be given out before they are released"


@pytest.mark.parametrize("ledger", ["written", "lost"])
def test_after_a_reboot_with_a_lost_device_no_pod_gets_its_neighbour(node: FrontNode, ledger: str) -> None:
    node.until(lambda: os.path.exists(f"{node.folder}/state/generic.inventory.json"))
    node.run_pod("p", {RESOURCE: 6})
    things = {row["id"]: row["things"] for row in node.devices().values()}
    node.end_front(signal.SIGKILL)
    if ledger == "lost":
        Path(f"{node.folder}/state/generic.ledger.json").unlink(missing_ok=True)
    node.kubelet.kill()
    node.kubelet.lose_containers()
    node.node.break_device("/dev/x2")
    node.node.reboot()
    node.start_front()
    node.until(lambda: node.resource()["snapshot"] >= 1)
    node.kubelet.start()
    node.kubelet.client.wait(10, resource=RESOURCE, stopped=False)
    rows = {row["id"]: row for row in node.devices().values()}
    moved = [id for id, row in rows.items() if row["things"] and row["things"] != things[id]]
    assert moved
    assert all(not rows[id]["healthy"] and rows[id]["kind"] == "stale" for id in moved), rows
    node.kubelet.client.wait_pod("p", "Failed")
    assert node.kubelet.client.pods("p")[0]["reason"] == "UnexpectedAdmissionError"


def test_sighup_changes_what_changed_and_leaves_the_rest_registered(node: FrontNode) -> None:
    before = registered(node)
    more = {"name": "first", "shared": True, "groups": [{"paths": [{"path": "/dev/x0"}]}]}
    xdev = {**XDEV["devices"][0], "shared": True}  # type: ignore[dict-item]
    node.configure({**XDEV, "devices": [xdev, more]})
    assert node.front is not None
    os.kill(node.front.pid, signal.SIGHUP)
    node.kubelet.client.wait_resource("example.com/first", allocatable=1)
    after = registered(node)
    assert after["registrations"] == before["registrations"]
    assert after["stream_seconds"] >= before["stream_seconds"]


def test_a_wrong_configuration_is_reported_and_changes_nothing(node: FrontNode) -> None:
    node.configure("domain: example.com\ndevices:\n- nmae: xdev\n  groups: []\n")
    assert node.front is not None
    os.kill(node.front.pid, signal.SIGHUP)
    problems = node.until(lambda: node.status()["config"]["problems"])
    assert any(problem["line"] == 3 and "nmae" in problem["message"] + problem["key"] for problem in problems)
    assert node.run_pod("p", {RESOURCE: 1})["phase"] == "Running"


def test_a_configuration_broken_before_a_restart_leaves_the_last_good_one_in_force(node: FrontNode) -> None:
    node.until(lambda: os.path.exists(f"{node.folder}/state/generic.config.json"))
    node.end_front(signal.SIGKILL)
    node.configure("devices: 7\n")
    node.start_front()
    node.kubelet.client.wait_resource(RESOURCE, allocatable=6)
    assert node.status()["config"]["problems"]


def test_a_withdrawn_resource_drains_before_it_closes(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 1})
    socket = f"{node.kubelet.places.device_plugins}/{registered(node)['socket']}"
    other = {"name": "other", "groups": [{"paths": [{"path": "/dev/x*"}]}]}
    node.configure({**XDEV, "devices": [other]})
    assert node.front is not None
    os.kill(node.front.pid, signal.SIGHUP)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=0, capacity=1, timeout=10)
    assert node.resource()["draining"]
    node.kubelet.client.pod_rm("p")
    assert os.path.exists(socket)


def test_without_a_kubelet_it_waits_and_registers_when_one_comes() -> None:
    with FrontNode(xdevs(2)) as node:
        node.start_front()
        node.until(lambda: node.status()["kubelet"]["state"] == "away")
        node.kubelet.start()
        node.kubelet.client.wait_resource(RESOURCE, allocatable=2)


def test_sigterm_ends_the_stream_and_removes_every_socket(node: FrontNode) -> None:
    registered(node)
    probe = node.status()["probe"]["pid"]
    assert node.end_front() == 0
    found = [f"{where}/{name}" for where, _, names in os.walk(node.kubelet.places.device_plugins) for name in names]
    assert [path for path in found if stat.S_ISSOCK(os.stat(path).st_mode)] == [node.kubelet.socket]
    assert not os.path.exists(f"{node.folder}/run/generic.control.sock")
    with pytest.raises(ProcessLookupError):
        os.kill(probe, 0)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=0, capacity=6)


def test_a_killed_front_takes_its_probe_along_and_its_successor_serves_the_same_pods(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 2})
    ids, probe = node.ids("p"), node.status()["probe"]["pid"]
    node.end_front(signal.SIGKILL)
    node.until(lambda: not os.path.exists(f"/proc/{probe}/cmdline") or not Path(f"/proc/{probe}/cmdline").read_bytes())
    node.start_front()
    node.kubelet.client.wait_resource(RESOURCE, allocatable=6)
    assert node.ids("p") == ids


def test_what_the_checkpoint_holds_is_listed_even_with_all_state_lost(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 1})
    held = next(path for path, row in node.devices().items() if row["id"] in node.ids("p"))
    node.end_front(signal.SIGKILL)
    for name in os.listdir(f"{node.folder}/state"):
        if name.startswith("generic."):
            os.unlink(f"{node.folder}/state/{name}")
    node.node.break_device(held)
    seen = node.kubelet.client.events()[-1]["seq"]
    node.start_front()
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, capacity=6)
    lists = node.kubelet.client.events(since=seen, what="list")
    assert lists[0]["unhealthy"] == 1, "the very first list has to hold it"
    assert node.kubelet.client.pods("p")[0]["phase"] == "Running"


def test_a_damaged_state_file_is_set_aside_and_said(node: FrontNode) -> None:
    node.until(lambda: os.path.exists(f"{node.folder}/state/generic.inventory.json"))
    node.end_front()
    Path(f"{node.folder}/state/generic.inventory.json").write_text("rubbish", encoding="utf-8")
    node.start_front()
    node.kubelet.client.wait_resource(RESOURCE, allocatable=6)
    assert any("generic.inventory.json" in text for text in node.status()["state_problems"])


def test_nothing_to_serve_ends_with_the_one_expected_code_after_startsecs() -> None:
    with FrontNode(xdevs(1), config={"devices": []}) as node:
        node.start_front()
        start = time.monotonic()
        assert node.front is not None
        assert node.front.wait(30) == 69
        assert time.monotonic() - start > 10
        node.front = None


def test_a_configuration_wrong_from_the_first_start_is_shown_and_is_no_reason_to_leave() -> None:
    with FrontNode(xdevs(2), config="devices:\n- name: null\n") as node:
        pid = node.start_front()
        assert node.until(lambda: node.status()["config"]["problems"])
        node.configure(XDEV)
        os.kill(pid, signal.SIGHUP)
        node.kubelet.start()
        node.kubelet.client.wait_resource(RESOURCE, allocatable=2)


def test_explain_finds_a_device_that_is_gone_by_id_and_by_path(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 1})
    gone = next(path for path, row in node.devices().items() if row["id"] not in node.ids("p"))
    identity = node.devices()[gone]["id"]
    node.node.break_device(gone)
    node.kubelet.client.wait_resource(RESOURCE, allocatable=5, timeout=5)
    for what in (identity, gone):
        found = node.ask("explain", what=what)["found"]
        assert any(RESOURCE in row["text"] and "unhealthy" in row["text"] for row in found), what


def test_the_vendor_in_the_documentation_works(tmp_path: Path) -> None:
    text = (DOCS / "writing-a-vendor.md").read_text(encoding="utf-8")
    code = re.search(r"```python file=blinker.py\n(.*?)```", text, re.S)
    assert code is not None
    (tmp_path / "blinker.py").write_text(code[1], encoding="utf-8")
    os.chmod(tmp_path, 0o755)
    group = {"path": "/dev/blinker{n}", "count": 3, "major": 511, "subsystem": "blinker"}
    with FrontNode(
        {"name": "test", "devices": [group]},
        config="resource: blinker.example/card\n",
        settings={"vendors": ["blinker"], "probe": {"check_interval": 0.2}},  # type: ignore[dict-item]
        plugin="blinker",
        manifest="blinker:MANIFEST",
        pythonpath=str(tmp_path),
    ) as node:
        node.up(allocatable=3, resource="blinker.example/card")
        state = Path(node.node.root) / "sys/class/blinker/blinker1/state"
        state.write_text("overheated", encoding="utf-8")
        node.kubelet.client.wait_resource("blinker.example/card", allocatable=2)
        assert "the card says overheated" in node.devices("blinker.example/card")["/dev/blinker1"]["reason"]
        state.write_text("ok", encoding="utf-8")
        node.kubelet.client.wait_resource("blinker.example/card", allocatable=3)


def test_a_vendor_that_is_not_allow_listed_is_not_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "loaded"
    (tmp_path / "foreign.py").write_text(f"open({str(marker)!r}, 'w').close()\n", encoding="utf-8")
    with FrontNode(xdevs(1), plugin="foreign", manifest="foreign:MANIFEST", pythonpath=str(tmp_path)) as node:
        node.start_front()
        assert node.front is not None
        assert node.front.wait(20) == 1
        node.front = None
        assert "vendors" in Path(node.log).read_text(encoding="utf-8")
    assert not marker.exists()


def test_a_front_of_another_name_than_its_manifest_does_not_start(node: FrontNode) -> None:
    command = [sys.executable, "-I", "-m", "devherd.front", "--plugin", "other", "--manifest"]
    more = ["devherd_generic.manifest:MANIFEST", "--config", node.config_path]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "is the plugin 'generic', not 'other'" in done.stderr
