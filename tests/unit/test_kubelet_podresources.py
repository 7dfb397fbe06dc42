"""Who holds what: from the PodResources service and from the kubelet's checkpoint."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import podresources_v1_pb2 as pr
from devherd.kubelet.checkpoint import NAME, read_checkpoint
from devherd.kubelet.podresources import PodResources, PodResourcesError
from devherd.kubelet.verify import Verifier
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubelet_fake import run


class Lister:
    """Answers with `pods` and `healthy`, after refusing `limited` calls for their rate."""

    def __init__(self) -> None:
        self.pods = pr.ListPodResourcesResponse()
        self.healthy = pr.AllocatableResourcesResponse()
        self.limited = 0
        self.calls = 0

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        def of(name: str) -> grpc.RpcMethodHandler[Any, Any]:
            async def answer(_request: bytes, context: Any) -> bytes:
                self.calls += 1
                if self.limited > 0:
                    self.limited -= 1
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
                return bytes(getattr(self, name).SerializeToString())

            return grpc.unary_unary_rpc_method_handler(answer)

        return {"List": of("pods"), "GetAllocatableResources": of("healthy")}


@contextlib.asynccontextmanager
async def lister() -> AsyncIterator[tuple[Lister, PodResources]]:
    root = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    path = os.path.join(root, "kubelet.sock")
    fake, server = Lister(), grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", fake.handlers()),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield fake, PodResources(path)
    finally:
        await server.stop(0)
        shutil.rmtree(root)


def test_list_says_who_holds_which_id() -> None:
    async def work() -> None:
        async with lister() as (fake, client):
            pod = fake.pods.pod_resources.add(name="p", namespace="ns")
            container = pod.containers.add(name="c")
            # A device on two NUMA nodes is listed once for each.
            for _ in range(2):
                container.devices.add(resource_name="example.com/r", device_ids=["a"])
            container.devices.add(resource_name="example.com/s", device_ids=["x", "y"])
            fake.pods.pod_resources.add(name="idle", namespace="ns")
            assert await client.list() == {
                "example.com/r": {"a": "ns/p/c"},
                "example.com/s": {"x": "ns/p/c", "y": "ns/p/c"},
            }

    run(work())


def test_allocatable_gathers_ids_per_resource() -> None:
    async def work() -> None:
        async with lister() as (fake, client):
            for one in ("a", "b", "a"):
                fake.healthy.devices.add(resource_name="example.com/r", device_ids=[one])
            assert await client.allocatable() == {"example.com/r": frozenset({"a", "b"})}

    run(work())


def test_an_answer_larger_than_grpcs_default_is_read() -> None:
    async def work() -> None:
        async with lister() as (fake, client):
            for number in range(60_000):
                fake.healthy.devices.add(resource_name="example.com/r", device_ids=[f"{number:080}"])
            assert fake.healthy.ByteSize() > 4 << 20
            assert len((await client.allocatable())["example.com/r"]) == 60_000

    run(work())


def test_the_rate_limit_is_waited_for() -> None:
    async def work() -> None:
        async with lister() as (fake, client):
            fake.limited = 2
            assert await client.list() == {}
            assert fake.calls == 3
            fake.limited = 100
            with pytest.raises(PodResourcesError, match="rejected by rate limit"):
                await client.list()

    run(work())


def test_a_kubelet_that_is_away_is_an_error_and_not_an_empty_list() -> None:
    async def work() -> None:
        with pytest.raises(PodResourcesError, match="/tmp/dh-not-there"):
            await PodResources("/tmp/dh-not-there/kubelet.sock").list()

    run(work())


def test_sixty_resources_that_ask_together_cost_one_question() -> None:
    async def work() -> None:
        async with lister() as (fake, client):
            fake.healthy.devices.add(resource_name="r1", device_ids=["a"])
            verifier = Verifier(client)
            shown = await asyncio.gather(*(verifier.shown(f"r{number}") for number in range(60)))
            assert shown[1] == {"a"}
            assert shown[2] == frozenset()
            assert fake.calls == 1

    run(work())


def test_no_descriptor_is_left_behind() -> None:
    async def work() -> None:
        async with lister() as (_fake, client):
            await client.list()
            await asyncio.sleep(0.05)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                await client.list()
            await asyncio.sleep(0.05)
            assert len(os.listdir("/proc/self/fd")) <= before + 1

    run(work())


# The checkpoint.


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def entry(**changes: Any) -> dict[str, Any]:
    answer = pb.ContainerAllocateResponse()
    answer.devices.add(host_path="/dev/a", container_path="/dev/a", permissions="rw")
    return {
        "PodUID": "uid",
        "ContainerName": "c",
        "ResourceName": "example.com/r",
        "DeviceIDs": {"0": ["a"], "1": ["a", "b"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
        **changes,
    }


def write(folder: Path, entries: Any, registered: Any = None) -> None:
    data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
    (folder / NAME).write_text(json.dumps({"Data": data, "Checksum": 1}))


def test_held_ids_and_answers_are_read(folder: Path) -> None:
    write(folder, [entry()], {"example.com/r": ["a", "b", "c"]})
    held = read_checkpoint(str(folder))
    assert held.problem == ""
    assert held.owners == {"example.com/r": {"a": "uid/c", "b": "uid/c"}}
    assert held.registered == {"example.com/r": ("a", "b", "c")}
    (one,) = held.answers
    assert one.answer is not None
    assert [node.host_path for node in one.answer.nodes] == ["/dev/a"]


def test_no_checkpoint_holds_nothing(folder: Path) -> None:
    assert read_checkpoint(str(folder)).problem == ""
    assert read_checkpoint(str(folder / "missing")).owners == {}


def test_a_new_kubelets_checkpoint_holds_nothing(folder: Path) -> None:
    write(folder, None, {})
    held = read_checkpoint(str(folder))
    assert (held.problem, held.answers) == ("", ())


def test_one_bad_entry_does_not_lose_the_others(folder: Path) -> None:
    write(folder, [entry(DeviceIDs=7), entry(ContainerName=None), "x", entry(ContainerName="d", AllocResp="!!")])
    held = read_checkpoint(str(folder))
    assert held.owners == {"example.com/r": {"a": "uid/d", "b": "uid/d"}}
    assert held.answers[0].answer is None
    assert "entry 0 not understood" in held.problem


def test_a_corrupt_checkpoint_is_said(folder: Path) -> None:
    for text in (b"", b"\xff\x00", b"[]", b'{"Data": 3}', b"null", b"[" * 100_000):
        (folder / NAME).write_bytes(text)
        held = read_checkpoint(str(folder))
        assert "not understood" in held.problem
        assert held.owners == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=JSON, registered=JSON, ids=JSON, answer=JSON)
def test_any_json_is_survived(folder: Path, entries: Any, registered: Any, ids: Any, answer: Any) -> None:
    write(folder, entries, registered)
    read_checkpoint(str(folder))
    write(folder, [entry(DeviceIDs=ids, AllocResp=answer), entry()], registered)
    assert read_checkpoint(str(folder)).owners["example.com/r"]["b"] == "uid/c"
