"""Another server for our resource: a vendor's DaemonSet still runs. It is named, and not fought."""

from __future__ import annotations

import os
import time
from typing import Any

from support.frontnode import RESOURCE, FrontNode, xdevs
from support.rival import RivalProcess


def taken(node: FrontNode) -> dict[str, Any]:
    row: dict[str, Any] = node.until(
        lambda: (row := node.resource())["state"] == "taken" and row, timeout=20, what=f"taken: {node.resource()}"
    )
    return row


def names(row: dict[str, Any], rival: RivalProcess) -> None:
    first = row["others"][0]
    assert first["socket"] == rival.socket
    assert first["pid"] == rival.pid
    assert "support.rival" in first["command"]
    for word in (rival.socket, str(rival.pid), "support.rival"):
        assert word in row["error"]


def our_registers(node: FrontNode) -> int:
    return sum("devherd" in event["endpoint"] for event in node.kubelet.client.events(what="register"))


def test_a_rival_that_took_the_list_is_named_and_left_alone_until_it_goes() -> None:
    """The stream stays open, and the kubelet shows another list."""
    with FrontNode(xdevs(3)) as node:
        node.up(allocatable=3)
        node.until(lambda: node.resource()["state"] == "registered")
        with RivalProcess(node.kubelet.places.device_plugins, RESOURCE) as rival:
            node.kubelet.client.wait_resource(RESOURCE, allocatable=2)
            names(taken(node), rival)
            registers = our_registers(node)
            time.sleep(1.5)
            assert our_registers(node) == registers
            assert node.kubelet.client.node()["resources"][RESOURCE]["allocatable"] == 2
            assert node.resource()["stream_seconds"]
        # The kubelet disconnects the rival and shows nothing, with our stream still open: that one is made anew.
        node.kubelet.client.wait_resource(RESOURCE, allocatable=3, timeout=25)
        node.until(lambda: (row := node.resource())["state"] == "registered" and not row["others"], timeout=15)


def test_a_rival_for_which_our_stream_is_cut_again_and_again_is_named_and_not_fought() -> None:
    with FrontNode(xdevs(3)) as node:
        node.kubelet.set(end_older=True, fixed_disconnect=True)
        node.up(allocatable=3)
        node.until(lambda: node.resource()["state"] == "registered")
        with RivalProcess(node.kubelet.places.device_plugins, RESOURCE, insist=True) as rival:
            row = taken(node)
            names(row, rival)
            assert not row["stream_seconds"]
            registers = our_registers(node)
            assert registers <= 5
            time.sleep(2.5)
            assert our_registers(node) == registers
            assert node.kubelet.client.node()["resources"][RESOURCE]["allocatable"] == 2
            # Nobody's signal makes us fight either; only the kubelet's own answer counts.
            for _ in range(5):
                node.ask("register")
                time.sleep(0.05)
            assert our_registers(node) == registers
        node.kubelet.client.wait_resource(RESOURCE, allocatable=3, timeout=20)
        node.until(lambda: (row := node.resource())["state"] == "registered" and not row["others"], timeout=15)


def test_a_new_kubelet_is_registered_with_at_once_also_where_the_last_one_was_left_to_a_rival() -> None:
    with FrontNode(xdevs(3)) as node:
        node.kubelet.set(end_older=True, fixed_disconnect=True)
        node.up(allocatable=3)
        with RivalProcess(node.kubelet.places.device_plugins, RESOURCE, insist=True) as rival:
            taken(node)
            rival.kill()
        node.kubelet.restart(hard=True)
        node.kubelet.client.wait_resource(RESOURCE, allocatable=3, timeout=2)


def test_a_kubelet_that_cuts_streams_for_no_rivals_sake_gets_them_back_ever_more_slowly() -> None:
    with FrontNode(xdevs(3)) as node:
        node.up(allocatable=3)
        for _ in range(6):
            node.kubelet.client.wait_resource(RESOURCE, allocatable=3, stopped=False)
            node.kubelet.client.ask("cut", resource=RESOURCE)
            node.kubelet.client.wait_resource(RESOURCE, allocatable=0)
        node.kubelet.client.wait_resource(RESOURCE, allocatable=3, timeout=10)
        times = [event["t"] for event in node.kubelet.client.events(what="stream-end")]
        backs = [event["t"] for event in node.kubelet.client.events(what="stream-open")][1:]
        gaps = [back - end for end, back in zip(times, backs, strict=True)]
        assert max(gaps[:2]) < 1.0, gaps
        assert gaps[-1] > 2 * gaps[0], gaps
        assert node.resource()["state"] in ("registered", "unverified")


def test_other_plugins_of_the_node_are_not_suspected() -> None:
    """A server of another resource is no rival: with the list as we sent it, nobody is named."""
    with FrontNode(xdevs(3)) as node:
        node.up(allocatable=3)
        with RivalProcess(node.kubelet.places.device_plugins, "rival.example/other"):
            node.kubelet.restart()
            node.kubelet.client.wait_resource(RESOURCE, allocatable=3)
            row = node.until(lambda: (row := node.resource())["state"] == "registered" and row)
            assert row["others"] == []


def test_a_second_front_for_the_same_resource_says_who_has_it_and_changes_nothing() -> None:
    """Started by hand beside the supervised one, without the launcher's lock."""
    with FrontNode(xdevs(3)) as node:
        node.up(allocatable=3)
        first, node.front = node.front, None
        assert first is not None
        try:
            os.unlink(f"{node.folder}/run/generic.control.sock")
            node.start_front()
            row = node.until(lambda: (row := node.resource()).get("error") and row, what="the second says why it waits")
            assert str(first.pid) in row["error"]
            assert our_registers(node) == 1
            assert node.run_pod("p", {RESOURCE: 1})["phase"] == "Running"
            node.end_front()
            assert node.kubelet.client.node()["resources"][RESOURCE]["allocatable"] == 3
        finally:
            first.terminate()
            first.wait(15)
