"""One physical thing, one owner on the node."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from devherd.claims import (
    LINGER,
    ClaimRegistry,
    ClaimsBusy,
    ClaimsError,
    Owner,
    alive,
    conflicts_by_id,
    plan,
)
from devherd.values import Claim, Device, Parts, Resource
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

CARD = "pci:0000:81:00.0"
ME = os.getpid()


def start_time(pid: int = ME) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


class Node:
    """A registry's world: which processes live, and what time it is."""

    def __init__(self, folder: Path) -> None:
        self.dead: set[int] = set()
        self.now = 1000.0
        self.registry = ClaimRegistry(str(folder), is_alive=lambda pid, _: pid not in self.dead, clock=lambda: self.now)

    def claim(self, plugin: str, pid: int, mode: str = "exclusive", thing: str = CARD) -> dict[str, str]:
        return self.registry.replace(plugin, pid, 1, {thing: (f"{plugin}.example/res", mode)})

    def owners(self, thing: str = CARD) -> list[str]:
        return [owner.plugin for owner in self.registry.owners().get(thing, ())]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_first_come_keeps_and_the_conflict_names_both(node: Node) -> None:
    assert node.claim("gpu", 1) == {}
    conflicts = node.claim("generic", 2)
    assert set(conflicts) == {CARD}
    for word in (CARD, "plugin gpu", "gpu.example/res", "plugin generic", "generic.example/res"):
        assert word in conflicts[CARD]
    assert node.owners() == ["gpu"]
    assert node.claim("gpu", 1) == {}, "claiming again is fine"


def test_shared_claims_get_along_and_nothing_else_does(node: Node) -> None:
    assert node.claim("a", 1, "shared") == {}
    assert node.claim("b", 2, "shared") == {}
    assert node.claim("c", 3, "exclusive")
    assert node.owners() == ["a", "b"]
    assert node.claim("a", 1, "exclusive"), "b still shares it"
    node.registry.release("b")
    assert node.claim("a", 1, "exclusive") == {}
    assert node.claim("b", 2, "shared")


def test_an_unknown_mode_is_taken_as_exclusive(node: Node) -> None:
    assert node.claim("a", 1, "whatever") == {}
    assert node.claim("b", 2, "shared")


def test_what_is_no_longer_claimed_is_free_for_the_next(node: Node) -> None:
    node.claim("a", 1)
    assert node.claim("b", 2)
    node.registry.replace("a", 1, 1, {})
    assert node.claim("b", 2) == {}
    assert node.registry.owners() == {CARD: (Owner("b", "b.example/res", "exclusive"),)}


def test_a_conflict_about_one_thing_does_not_cost_the_others(node: Node) -> None:
    node.claim("a", 1)
    conflicts = node.registry.replace("b", 2, 1, {CARD: ("b/r", "exclusive"), "pci:other": ("b/r", "exclusive")})
    assert set(conflicts) == {CARD}
    assert node.owners("pci:other") == ["b"]


def test_a_plugin_that_restarts_keeps_its_things(node: Node) -> None:
    node.claim("gpu", 1)
    node.dead.add(1)
    assert node.claim("generic", 2), "its pods still run on it"
    node.now += LINGER / 2
    assert node.claim("gpu", 3) == {}
    node.now += 10 * LINGER
    assert node.claim("generic", 2)


def test_a_plugin_that_stays_away_loses_its_things(node: Node) -> None:
    node.claim("gpu", 1)
    node.dead.add(1)
    assert node.claim("generic", 2)
    node.now += LINGER
    assert node.claim("generic", 2) == {}
    assert node.claim("gpu", 3)


def test_releasing_gives_everything_back_at_once(node: Node) -> None:
    node.claim("gpu", 1)
    node.registry.release("gpu")
    node.registry.release("never-there")
    assert node.claim("generic", 2) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"plugins": 3}', b'{"plugins":{"a":{}}}'])
def test_a_damaged_file_is_started_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "claims.json").write_bytes(content)
    subject = Node(tmp_path)
    assert subject.registry.owners() == {}
    assert subject.claim("a", 1) == {}
    assert subject.claim("b", 2)


def test_files_are_private(node: Node, tmp_path: Path) -> None:
    node.claim("a", 1)
    for name in ("claims.json", "claims.lock"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["claims.json", "claims.lock"]


def test_nothing_is_written_when_nothing_changed(node: Node, tmp_path: Path) -> None:
    node.claim("a", 1)
    before = (tmp_path / "claims.json").stat().st_ino
    node.claim("a", 1)
    assert (tmp_path / "claims.json").stat().st_ino == before


def test_a_missing_run_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match=r"no-such-folder"):
        ClaimRegistry(str(tmp_path / "no-such-folder")).replace("a", 1, 1, {})


def test_a_lock_that_stays_taken_is_reported_within_two_seconds(node: Node, tmp_path: Path) -> None:
    with open(tmp_path / "claims.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(ClaimsBusy):
            node.claim("a", 1)
        assert 1.9 < time.monotonic() - began < 3.5
    assert node.claim("a", 1) == {}


def test_a_lock_that_is_free_soon_is_waited_for(node: Node, tmp_path: Path) -> None:
    with open(tmp_path / "claims.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        timer = threading.Timer(0.2, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        timer.start()
        assert node.claim("a", 1) == {}
        timer.join()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_alive_means_this_very_process(child: subprocess.Popen[bytes]) -> None:
    began = start_time(child.pid)
    assert alive(ME, start_time())
    assert not alive(ME, start_time() + 1), "another process has the number now"
    assert alive(child.pid, began)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(child.pid, began), "a zombie holds nothing"
    child.wait()
    assert not alive(child.pid, began)


def test_a_real_dead_process_loses_its_claims(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    registry = ClaimRegistry(str(tmp_path), linger=0.0)
    registry.replace("a", child.pid, start_time(child.pid), {CARD: ("a/r", "exclusive")})
    assert registry.replace("b", ME, start_time(), {CARD: ("b/r", "exclusive")})
    child.kill()
    child.wait()
    assert registry.replace("b", ME, start_time(), {CARD: ("b/r", "exclusive")}) == {}


CLAIMER = """
import sys
from devherd.claims import ClaimRegistry
registry = ClaimRegistry(sys.argv[1], is_alive=lambda pid, start: True)
name = sys.argv[2]
print(sum(not registry.replace(name, 1, 1, {f"t{i}": (name, "exclusive")}) for i in range(60)), flush=True)
print(sorted(registry.owners()))
"""


def test_processes_at_once_never_both_own_a_thing(tmp_path: Path) -> None:
    every = [
        subprocess.Popen([sys.executable, "-c", CLAIMER, str(tmp_path), f"p{i}"], stdout=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    for process in every:
        process.communicate(timeout=60)
        assert process.returncode == 0
    owners = ClaimRegistry(str(tmp_path)).owners()
    assert owners
    assert all(len(names) == 1 for names in owners.values())


def resource(name: str, *devices: tuple[str, str, str]) -> Resource:
    return Resource(
        name, tuple(Device(i, (thing,), Parts(), claims=(Claim(thing, mode),)) for i, thing, mode in devices)
    )


def test_a_plan_gathers_claims_and_finds_contradictions_within_a_plugin() -> None:
    planned = plan(
        [
            resource("v/a", ("one", "x", "exclusive"), ("two", "y", "shared")),
            resource("v/b", ("three", "x", "exclusive"), ("four", "y", "shared"), ("five", "y", "exclusive")),
        ]
    )
    assert planned.claims == {"x": ("v/a", "exclusive"), "y": ("v/a", "shared")}
    assert set(planned.conflicts) == {"v/b"}
    assert set(planned.conflicts["v/b"]) == {"three", "five"}
    assert "v/a" in planned.conflicts["v/b"]["three"]
    assert "one" in planned.conflicts["v/b"]["three"]


def test_conflicts_reach_every_device_that_claims_the_thing() -> None:
    shares = resource("v/a", ("s1", "x", "shared"), ("s2", "x", "shared"), ("other", "y", "shared"))
    assert conflicts_by_id(shares, {"x": "why"}) == {"s1": "why", "s2": "why"}
    assert conflicts_by_id(shares, {}) == {}


names = st.sampled_from(["a", "b", "c"])
wishes = st.dictionaries(st.sampled_from(["x", "y", "z"]), st.sampled_from(["exclusive", "shared"]))


class Sequences(RuleBasedStateMachine):
    """Plugins claim, die and come back in any order."""

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory(prefix="dh")
        self.node = Node(Path(self.folder.name))
        self.pid = 0
        self.pids: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(plugin=names, wanted=wishes, new=st.booleans())
    def claim(self, plugin: str, wanted: dict[str, str], new: bool) -> None:
        if new or plugin not in self.pids or self.pids[plugin] in self.node.dead:
            self.pid += 1
            self.pids[plugin] = self.pid
        before = self.node.registry.owners()
        claims = {thing: (f"{plugin}/r", mode) for thing, mode in wanted.items()}
        conflicts = self.node.registry.replace(plugin, self.pids[plugin], 1, claims)
        after = self.node.registry.owners()
        for owners in after.values():
            assert len(owners) == 1 or {owner.mode for owner in owners} == {"shared"}
            assert len({owner.plugin for owner in owners}) == len(owners)
        for thing in wanted:
            assert (thing in conflicts) != (plugin in [owner.plugin for owner in after.get(thing, ())])
        for thing, owners in before.items():  # who had it and lives keeps it
            for owner in owners:
                if owner.plugin != plugin and self.pids[owner.plugin] not in self.node.dead:
                    assert owner in after[thing]

    @rule(plugin=names)
    def die(self, plugin: str) -> None:
        self.node.dead.add(self.pids.get(plugin, 0))

    @rule(plugin=names)
    def release(self, plugin: str) -> None:
        self.node.registry.release(plugin)
        assert all(o.plugin != plugin for owners in self.node.registry.owners().values() for o in owners)

    @rule(seconds=st.sampled_from([1.0, LINGER - 1, LINGER + 1]))
    def wait(self, seconds: float) -> None:
        self.node.now += seconds


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, database=None)
