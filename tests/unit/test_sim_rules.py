"""Rules of the simulated kubelet that need no process: names, endpoints, NUMA hints, merged answers, requests."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile

import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.sim import checkpoint, topology
from devherd.sim.checkpoint import Held
from devherd.sim.eventlog import EventLog
from devherd.sim.names import endpoint_path, extended_resource
from devherd.sim.options import Options, changed
from devherd.sim.pods import Kind, pod_from
from devherd.sim.runtime import merge
from devherd.sim.topology import AffinityError, Hint
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    "name",
    [
        "example.com/dev",
        "a/b",
        "nvidia.com/mig-1g.5gb",
        "x.y-z.io/A_b.c-1",
        "example.com/" + "a" * 63,
        "a" * 63 + "/x",
        ".".join(["a" * 60] * 4) + "/x",
    ],
)
def test_good_names(name: str) -> None:
    assert extended_resource(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "dev",
        "cpu",
        "/x",
        "x/",
        "a/b/c",
        "kubernetes.io/x",
        "x.kubernetes.io/y",
        "requests.a/b",
        "requests.cpu",
        "A.com/x",
        "a_b/x",
        "a..b/x",
        "-a/x",
        "a/-x",
        "a/x-",
        "a/" + "x" * 64,
        "a b/x",
        "a/ü",
        "a/x\n",
        ".".join(["a" * 62] * 4) + "/x",
    ],
)
def test_bad_names(name: str) -> None:
    assert not extended_resource(name)


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_none(name: str) -> None:
    assert extended_resource(name) in (True, False)


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("x.sock", "/d/x.sock"), ("s/x.sock", "/d/s/x.sock"), ("../x", "/x"), ("/abs/x", "/d/abs/x"), ("", "/d")],
)
def test_endpoints(endpoint: str, path: str) -> None:
    assert endpoint_path("/d", endpoint) == path


def test_merged_hints_prefer_the_narrowest_common_mask() -> None:
    zero, one, both = frozenset({0}), frozenset({1}), frozenset({0, 1})
    wide = [Hint(zero, True), Hint(one, True), Hint(both, False)]
    narrow = [Hint(one, True), Hint(both, False)]
    assert topology.merge("best-effort", {"a": wide, "b": narrow, "c": None}, (0, 1)) == one
    assert topology.merge("none", {"a": wide}, (0, 1)) is None
    assert topology.merge("best-effort", {"a": [Hint(zero, True)], "b": [Hint(one, True)]}, (0, 1)) == both
    for policy in ("restricted", "single-numa-node"):
        with pytest.raises(AffinityError):
            topology.merge(policy, {"a": [Hint(zero, True)], "b": [Hint(one, True)]}, (0, 1))
    with pytest.raises(AffinityError):
        topology.merge("single-numa-node", {"a": [Hint(both, True)]}, (0, 1))
    assert topology.merge("restricted", {"a": [Hint(both, True)]}, (0, 1)) == both
    with pytest.raises(AffinityError):
        topology.merge("restricted", {"a": []}, (0, 1))
    assert topology.merge("single-numa-node", {}, (0, 1)) is None


def test_the_first_answer_wins_and_the_other_is_named() -> None:
    first = pb.ContainerAllocateResponse(
        envs={"A": "1"}, devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/a", permissions="r")]
    )
    second = pb.ContainerAllocateResponse(
        envs={"A": "2", "B": "3"},
        devices=[pb.DeviceSpec(container_path="/dev/x", host_path="/dev/b", permissions="r")],
    )
    record = merge({"one": first, "two": second})
    assert record.env == {"A": "1", "B": "3"}
    assert [n["host_path"] for n in record.nodes] == ["/dev/a"]
    assert record.conflicts == [
        "env of two: A is '1' already, '2' ignored",
        "device of two: /dev/x is '/dev/a' already, '/dev/b' ignored",
    ]


def test_checkpoint_round_trip() -> None:
    folder = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    try:
        assert checkpoint.read(folder) == ({}, set())
        answer = pb.ContainerAllocateResponse(envs={"A": "ü"}, cdi_devices=[pb.CDIDevice(name="a/b=c")])
        checkpoint.write(folder, {"u": {"c": {"r/x": Held({-1: ["1"], 0: ["2", "3"]}, answer)}}}, {"r/x": {"1"}})
        pods, resources = checkpoint.read(folder)
        assert resources == {"r/x"}
        assert pods["u"]["c"]["r/x"].by_node == {-1: ["1"], 0: ["2", "3"]}
        assert pods["u"]["c"]["r/x"].answer == answer
        with pytest.raises(OSError, match="No space left"):
            checkpoint.write(folder, {}, {}, disk_full=True)
        assert os.listdir(folder) == [checkpoint.FILE]
    finally:
        shutil.rmtree(folder)


def test_pod_requests() -> None:
    pod = pod_from(
        {
            "name": "p",
            "init": [{"requests": {"r/x": 5}}, {"requests": {"r/x": 2}, "sidecar": True}],
            "containers": [{"requests": {"r/x": 1}}, {"name": "second", "requests": {"r/x": 1}}],
        }
    )
    assert [(c.name, c.kind) for c in pod.containers] == [
        ("init-0", Kind.INIT),
        ("init-1", Kind.SIDECAR),
        ("main-0", Kind.MAIN),
        ("second", Kind.MAIN),
    ]
    assert pod.total("r/x") == 5
    assert pod.total("r/y") == 0
    assert pod_from({"name": "p", "requests": {"r/x": 2}}).containers[0].name == "main"


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"name": 5},
        {"name": "p", "requests": {"a": "many"}},
        {"name": "p", "requests": {"a": -1}},
        {"name": "p", "init": ["x"]},
        {"name": "p", "containers": [{"name": "a"}, {"name": "a"}]},
    ],
)
def test_bad_pod_requests_are_refused_with_a_reason(request_: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"pod|name|request|container|int"):
        pod_from(request_)


def test_options_name_what_is_wrong() -> None:
    assert changed(Options(), {"grace": "2.5"}).grace == 2.5
    for bad in ({"grace": -1}, {"nonsense": 1}, {"topology_policy": "maybe"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            changed(Options(), bad)


def test_event_log_wakes_those_who_wait_and_stays_bounded() -> None:
    async def scenario() -> None:
        log = EventLog()
        waiting = [asyncio.create_task(log.until(lambda: log.since(0, "x"), 5)) for _ in range(3)]
        await asyncio.sleep(0)
        log("y")
        log("x", resource="r")
        log("x", resource="r")
        assert all(await asyncio.gather(*waiting))
        assert await log.until(lambda: None, 0.01) is None
        first = log.first["x", "r"]
        for _ in range(6000):
            log("z")
        assert len(log.since(0)) == 5000
        assert log.first["x", "r"] == first

    asyncio.run(scenario())
