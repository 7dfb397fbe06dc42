"""What the kubelet does with plugins that misbehave: the facts that devherd's rules stand on, on this very version.

Numbers in names are those of the acceptance cases (README.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.api import deviceplugin_v1beta1_pb2_grpc as rpc

from e2e import podresources
from e2e.compare.plugin import Loop, Plugin, device
from e2e.node import DEVICE_PLUGINS, SOCKET
from e2e.pods import container
from e2e.programs import wait
from e2e.rig import Rig

ODD = "example.com/odd"


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def odd(loop: Loop) -> Iterator[Plugin]:
    plugin = Plugin(loop, str(DEVICE_PLUGINS), ODD, [device("a"), device("b")], "odd/odd.sock")
    yield plugin
    with contextlib.suppress(Exception):
        plugin.stop()


def register(loop: Loop, endpoint: str, resource: str) -> str:
    """Call Register; return the error's text, empty for none."""

    async def call() -> str:
        options = [("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(f"unix:{SOCKET}", options=options) as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
            try:
                await rpc.RegistrationStub(channel).Register(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                return error.details() or str(error.code())
            return ""

    return loop.run(call())


@pytest.mark.skew
def test_case_13_an_error_for_options_fails_register(rig: Rig, loop: Loop, odd: Plugin) -> None:
    odd.options_error = "no options today"
    odd.serve()
    assert "no options today" in register(loop, odd.endpoint, ODD)
    assert odd.kinds() == ["options"]
    assert ODD not in podresources.allocatable()
    assert ODD not in rig.node.checkpoint().get("RegisteredDevices", {})


@pytest.mark.skew
def test_case_17_a_stream_that_fails_at_once_is_never_tried_again(rig: Rig, loop: Loop, odd: Plugin) -> None:
    odd.list_error = "no list today"
    odd.serve()
    assert register(loop, odd.endpoint, ODD) == ""
    wait(lambda: odd.kinds() == ["options", "list"], 20, "the stream was asked for")
    # The kubelet's next syncs, and a restart of the scan of its own, change nothing.
    loop.run(asyncio.sleep(12))
    assert odd.kinds() == ["options", "list"]
    assert ODD not in podresources.allocatable()


@pytest.mark.skew
def test_case_36_prestart_is_called_with_all_ids_and_not_for_none(rig: Rig, loop: Loop, odd: Plugin) -> None:
    odd.options = pb.DevicePluginOptions(pre_start_required=True)
    odd.serve()
    assert register(loop, odd.endpoint, ODD) == ""
    rig.node.wait(lambda: podresources.allocatable().get(ODD), 20, "the kubelet knows both devices")
    rig.node.wait_pod(rig.node.static("two", containers=[container("c", {ODD: 2}), container("none", {ODD: 0})]))
    calls = [call for call in odd.calls if call[0] in ("allocate", "prestart")]
    assert [(call[0], call[1]) for call in calls] == [("allocate", [["a", "b"]]), ("prestart", ["a", "b"])]
