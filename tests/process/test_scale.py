"""Large resources and many of them, in one front."""

from __future__ import annotations

import os
import signal

from support.frontnode import FrontNode, xdevs

PATIENT = {"probe": {"deadline": 60, "first_scan": 60, "scan_interval": 60}}


def rule(name: str, *groups: tuple[str, int]) -> dict[str, object]:
    return {"name": name, "groups": [{"count": count, "paths": [{"path": path}]} for path, count in groups]}


def test_ten_thousand_devices_are_listed_and_allocated_and_survive_a_restart() -> None:
    config = {"domain": "example.com", "devices": [rule("many", ("/dev/x0", 10_000))]}
    with FrontNode(xdevs(1), config=config, settings=PATIENT) as node:
        node.up(allocatable=10_000, resource="example.com/many")
        pod = node.run_pod("p", {"example.com/many": 500})
        assert len(pod["containers"][0]["record"]["nodes"]) == 1
        node.kubelet.restart(hard=True)
        node.kubelet.client.wait_resource("example.com/many", allocatable=10_000)
        assert node.kubelet.client.pods("p")[0]["phase"] == "Running"
        node.node.break_device("/dev/x0")
        node.kubelet.client.wait_resource("example.com/many", allocatable=0)


def test_sixty_resources_in_one_process_register_again_together() -> None:
    config = {"domain": "example.com", "devices": [rule(f"r{n}", (f"/dev/x{n}", 1)) for n in range(60)]}
    with FrontNode(xdevs(60), config=config, settings=PATIENT) as node:
        node.kubelet.start()
        pid = node.start_front()
        names = [f"example.com/r{n}" for n in range(60)]
        for name in names:
            node.kubelet.client.wait_resource(name, allocatable=1, timeout=20)
        for _ in range(3):
            node.kubelet.restart()
            for name in names:
                node.kubelet.client.wait_resource(name, allocatable=1)
        before = len(os.listdir(f"/proc/{pid}/fd"))
        for _ in range(3):
            node.kubelet.restart()
            for name in names:
                node.kubelet.client.wait_resource(name, allocatable=1)
        assert abs(len(os.listdir(f"/proc/{pid}/fd")) - before) <= 2
        assert {row["registrations"] for row in node.status()["resources"]} == {7}


def test_a_list_over_four_mebibytes_keeps_held_ids_and_what_fits_and_says_what_it_left_out() -> None:
    config = {"domain": "example.com", "devices": [rule("huge", ("/dev/x0", 45_000))]}
    with FrontNode(xdevs(2), config=config, settings=PATIENT) as node:
        node.up(allocatable=45_000, resource="example.com/huge")
        node.run_pod("p", {"example.com/huge": 300})
        held = set(node.ids("p", "example.com/huge"))
        node.configure({"domain": "example.com", "devices": [rule("huge", ("/dev/x0", 65_000), ("/dev/x1", 65_000))]})
        assert node.front is not None
        os.kill(node.front.pid, signal.SIGHUP)
        left_out = node.until(lambda: node.resource("example.com/huge")["left_out"], timeout=60)
        listed = node.resource("example.com/huge")["devices"]
        node.kubelet.client.wait_resource("example.com/huge", capacity=listed, timeout=20)
        assert listed + left_out >= 65_000
        shown = node.kubelet.client.node()["resources"]["example.com/huge"]
        assert held <= set(shown["healthy"])
        assert node.kubelet.client.pods("p")[0]["phase"] == "Running"
