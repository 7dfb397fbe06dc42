"""What a real front writes down about a simulated node's day, and that it serves on whatever happens to the trail."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from devherd.trail import Event, Wanted, read_events
from support.frontnode import RESOURCE, XDEV, FrontNode, xdevs


@pytest.fixture
def node() -> Iterator[FrontNode]:
    with FrontNode(xdevs(4)) as running:
        running.up(allocatable=4)
        yield running


def events(node: FrontNode, *kinds: str) -> list[Event]:
    return list(read_events(f"{node.folder}/log/events", Wanted(kinds=kinds)))


def wait(node: FrontNode, kind: str, count: int = 1, **fields: Any) -> list[Event]:
    """So many events of a kind with these fields."""

    def found() -> list[Event] | None:
        rows = [one for one in events(node, kind) if fields.items() <= one.items()]
        return rows if len(rows) >= count else None

    rows: list[Event] = node.until(found, what=f"{count} {kind} {fields}")
    return rows


def test_a_kubelets_restart_with_durations_and_processes(node: FrontNode) -> None:
    old = node.kubelet.pid
    (first,) = wait(node, "registered")
    assert first["resource"] == RESOURCE
    assert (first["kubelet_pid"], 0 < first["ms"] < 5000) == (old, True)
    node.kubelet.restart(hard=True)
    wait(node, "registered", 2)
    (down,) = wait(node, "kubelet-down")
    assert down["pid"] == old
    assert down["seconds_up"] >= 0
    (lost,) = wait(node, "stream-lost")
    assert (lost["resource"], lost["kubelet_pid"]) == (RESOURCE, old)
    assert [one["pid"] for one in events(node, "kubelet-up")] == [old, node.kubelet.pid]
    story = [one["kind"] for one in events(node, "stream-lost", "kubelet-down", "kubelet-up", "registered")]
    assert story == ["kubelet-up", "registered", "stream-lost", "kubelet-down", "kubelet-up", "registered"]


def test_a_kubelet_that_stays_away_is_noted_as_down_at_the_moment_its_stream_ended(node: FrontNode) -> None:
    node.kubelet.stop()
    (lost,), (down,) = wait(node, "stream-lost"), wait(node, "kubelet-down")
    assert abs(down["since"] - lost["time"]) < 0.1


def test_what_somebody_asks_of_a_front_and_who(node: FrontNode) -> None:
    node.ask("rescan", by="a test")
    node.ask("status")
    (asked,) = wait(node, "asked")
    assert (asked["op"], asked["by"]) == ("rescan", "a test")


def test_verdicts_and_lists(node: FrontNode) -> None:
    (listed,) = wait(node, "list")
    assert (listed["devices"], listed["healthy"], len(listed["added"])) == (4, 4, 4)
    assert events(node, "verdict") == [], "healthy from the start is no change"
    id = node.devices()["/dev/x2"]["id"]
    node.node.break_device("/dev/x2")
    (bad,) = wait(node, "verdict", healthy=False)
    assert (bad["id"], bad["fault"]) == (id, "gone")
    assert "/dev/x2" in bad["reason"] or "gone" in bad["reason"]
    node.node.heal_device("/dev/x2")
    assert wait(node, "verdict", healthy=True)[0]["id"] == id


def test_allocations_refusals_and_releases(node: FrontNode) -> None:
    node.run_pod("p", {RESOURCE: 2})
    (given,) = wait(node, "allocated")
    assert given["ids"] == sorted(node.ids("p"))
    assert (given["devices"], given["ms"] < 1000) == (2, True)
    row = node.resource()["counters"]
    assert (row["allocations"], row["allocated"], row["refusals"]) == (1, 2, 0)
    latency = node.status()["counters"]["allocate"]
    assert latency["count"] == latency["buckets"][-1][1] == 1


def test_a_probe_that_hangs_and_comes_back(node: FrontNode) -> None:
    pid = node.status()["probe"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    (replaced,) = wait(node, "probe-replaced")
    assert (replaced["cause"], replaced["pid"], replaced["doing"]) == ("hung", pid, "scan")
    (stopped,), (back,) = wait(node, "heartbeat-stopped"), wait(node, "heartbeat-back")
    assert stopped["what"] == back["what"] == "probe"
    assert stopped["since"] == back["since"] < stopped["time"]
    assert back["seconds"] >= 0.5
    assert node.status()["counters"]["probe_hangs"] == 1
    os.kill(node.status()["probe"]["pid"], signal.SIGKILL)
    node.ask("rescan")
    assert wait(node, "probe-replaced", cause="ended")


def test_configuration_that_is_refused_and_then_good(node: FrontNode) -> None:
    assert node.front is not None
    node.configure("devices: [")
    node.front.send_signal(signal.SIGHUP)
    (refused,) = wait(node, "config-refused")
    assert "generic.yaml" in refused["problems"][0]
    node.configure(XDEV)
    node.front.send_signal(signal.SIGHUP)
    assert wait(node, "config-loaded")


def test_beginning_and_end_of_a_front(node: FrontNode) -> None:
    assert node.front is not None
    pid = node.front.pid
    assert node.end_front() == 0
    assert wait(node, "started")[0]["pid"] == pid
    (ended,) = wait(node, "stopped")
    assert (ended["pid"], ended["exit"], ended["reason"]) == (pid, 0, "SIGTERM")


def test_a_resource_that_is_withdrawn(node: FrontNode) -> None:
    assert node.front is not None
    node.configure({"domain": "example.com", "devices": []})
    node.front.send_signal(signal.SIGHUP)
    assert wait(node, "withdrawn", resource=RESOURCE)


def test_a_trail_that_cannot_be_written_costs_no_pod_and_shows_in_status() -> None:
    with FrontNode(xdevs(2)) as node:
        shutil.rmtree(f"{node.folder}/log")
        with open(f"{node.folder}/log", "w"):
            pass
        node.up(allocatable=2)
        node.run_pod("p", {RESOURCE: 1})
        status = node.until(lambda: (found := node.status())["state_problems"] and found)
        assert any("log/events" in problem for problem in status["state_problems"])
        # While a kubelet takes our lists in, events wait for a moment.
        node.until(lambda: node.status()["events"]["lost"] >= 3)
        os.unlink(f"{node.folder}/log")
        node.ask("rescan", by="a test")
        told = wait(node, "events-lost")[0]["count"]
        assert told >= 3
        assert node.status()["events"]["lost"] == 0
        assert not [one for one in node.status()["state_problems"] if "events" in one]
