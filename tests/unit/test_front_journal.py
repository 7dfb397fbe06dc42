"""The front's diary: what is worth a line, what is cut, and what a kubelet's process tells of its version."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from devherd.audit import Audit
from devherd.front.counters import BUCKETS, Latency
from devherd.front.journal import MOST, Journal
from devherd.front.kubeletlife import KubeletLife, describe, ended, version_in
from devherd.kubelet.identity import Identity, start_time_of
from devherd.kubelet.regstatus import RegistrationStatus
from devherd.trail import Event, read_events
from devherd.values import Member, Snapshot


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(Audit(str(tmp_path), "p"))


def noted(journal: Journal, folder: Path) -> list[Event]:
    assert journal.audit.flush(5)
    return list(read_events(str(folder)))


def listed(journal: Journal, *members: Member) -> None:
    journal.listed(Snapshot("r/x", 1, members), {member.id: member for member in members})


def test_a_change_of_many_verdicts_is_cut_and_counted(journal: Journal, tmp_path: Path) -> None:
    listed(journal, *(Member(str(n), True) for n in range(300)))
    listed(journal, *(Member(str(n), False, reason="hot", kind="heat") for n in range(300)))
    listed(journal, *(Member(str(n), False, reason="hot", kind="heat") for n in range(300)))
    events = noted(journal, tmp_path)
    assert [event["kind"] for event in events] == ["list", *["verdict"] * MOST, "verdicts-cut"]
    assert events[-1]["more"] == 300 - MOST
    assert len(events[0]["added"]) == MOST


def test_who_came_and_who_went(journal: Journal, tmp_path: Path) -> None:
    listed(journal, Member("a", True), Member("b", True))
    listed(journal, Member("b", True), Member("c", False, reason="broken", kind="link"))
    _, second, verdict = noted(journal, tmp_path)
    assert (second["added"], second["removed"], second["healthy"]) == (["c"], ["a"], 1)
    assert (verdict["id"], verdict["reason"], verdict["fault"]) == ("c", "broken", "link")


def test_releases_are_one_event_a_resource(journal: Journal, tmp_path: Path) -> None:
    journal.released([("r/x", "a"), ("r/y", "b"), ("r/x", "c")])
    events = noted(journal, tmp_path)
    assert [(event["resource"], event["ids"]) for event in events] == [("r/x", ["a", "c"]), ("r/y", ["b"])]
    assert journal.counters.of("r/x")["released"] == 2


def test_another_server_and_its_end(journal: Journal, tmp_path: Path) -> None:
    tell = journal.following("r/x")
    for state, error in (("taken", "by a"), ("taken", "by a"), ("taken", "by b"), ("registered", "")):
        tell(RegistrationStatus(state=state, error=error))
    tell(RegistrationStatus(state="refused", error="bad name"))
    tell(RegistrationStatus(state="refused", error="bad name"))
    kinds = [(event["kind"], event.get("reason")) for event in noted(journal, tmp_path)]
    assert kinds == [("taken", "by a"), ("taken", "by b"), ("taken-back", None), ("registration-refused", "bad name")]
    assert journal.counters.of("r/x")["taken"] == 1


def test_a_probe_is_noted_as_silent_once(journal: Journal, tmp_path: Path) -> None:
    journal.probe_silent("one")
    journal.probe_silent("two")
    journal.probe_answered()
    journal.probe_answered()
    assert [event["kind"] for event in noted(journal, tmp_path)] == ["heartbeat-stopped", "heartbeat-back"]


def test_buckets_hold_the_ones_before() -> None:
    latency = Latency()
    for seconds in (0.0, BUCKETS[0], BUCKETS[1], 99.0):
        latency.observe(seconds)
    shown = latency.as_json()
    assert (shown["count"], [count for _, count in shown["buckets"]]) == (4, [2, 3, 3, 3, 3, 3, 3])


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/local/bin/kubelet-v1.31.2", "v1.31.2"),
        ("/opt/k8s/v1.30.0/kubelet", "v1.30.0"),
        ("/nix/store/abc-kubernetes-1.29.4/bin/kubelet", "v1.29.4"),
        ("/var/lib/rancher/k3s/data/kubelet_1.28.9", "v1.28.9"),
        ("/opt/v1.33.0-rc.1+k3s1/kubelet", "v1.33.0-rc.1+k3s1"),
        ("/usr/bin/kubelet", ""),
        ("/opt/11.30.1/kubelet", ""),
        ("/opt/1.30/kubelet", ""),
        ("", ""),
    ],
)
def test_a_version_is_taken_from_a_path_that_names_one(path: str, version: str) -> None:
    assert version_in(path) == version


def test_what_cannot_be_known_is_not_noted(tmp_path: Path) -> None:
    assert describe(0, "/proc") == {}
    assert describe(4242, str(tmp_path)) == {}
    own = describe(os.getpid(), "/proc")
    assert own["exe"] == os.readlink("/proc/self/exe")
    assert own["exe_modified"] > 0
    assert "version" not in own or own["version"].startswith("v")


def test_the_end_of_a_kubelet_is_noted_once_and_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = Identity(child.pid, start_time_of(child.pid))
    found: list[tuple[str, dict[str, Any]]] = []
    life = KubeletLife(lambda kind, **fields: found.append((kind, fields)))

    async def main() -> None:
        life.seen(identity)
        life.look()
        assert not ended(identity)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        life.look_soon()
        life.look()
        life.look()

    asyncio.run(main())
    child.wait()
    assert [kind for kind, _ in found] == ["kubelet-up", "kubelet-down"]
    assert not ended(Identity(0, 5)), "in another pid namespace nothing can be seen"
    assert ended(Identity(os.getpid(), 5)), "the number was given to another process"
