"""Registration against a kubelet that comes, goes, refuses, hangs and forgets."""

from __future__ import annotations

import asyncio
import os
import shutil
from time import monotonic

import pytest
from devherd.kubelet.link import KubeletLink
from kubelet_fake import bench, run, snapshot

R0 = "example.com/r0"


def test_registered_when_the_kubelet_comes() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            assert b.kubelet.healthy(R0) == ["d000", "d001"]
            assert b.kubelet.calls[0][:2] == (R0, "devherd/t.example.com_r0.sock")
            status = b.status(R0)
            assert status.count == 1
            assert status.stream_since > 0
            assert 0 < status.duration_ms < 2000
            assert [one.state for _, one in b.history] == ["registering", "registered"]

    run(work())


def test_registered_when_the_kubelet_was_there_first() -> None:
    async def work() -> None:
        async with bench(start=False) as b:
            await b.kubelet.start()
            b.start()
            await b.registered()

    run(work())


def test_a_restarted_kubelet_gets_one_register_and_needs_no_new_server() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            inode = os.stat(b.endpoints[R0].anchor).st_ino
            await b.kubelet.stop()
            await b.kubelet.until(lambda: b.status(R0).state == "waiting")
            await b.kubelet.start()
            await b.registered()
            assert len(b.kubelet.calls) == 2
            assert os.stat(b.endpoints[R0].anchor).st_ino == inode
            assert b.layout.current == "subfolder"

    run(work())


def test_in_the_top_layout_the_wiped_socket_is_back_before_register() -> None:
    async def work() -> None:
        async with bench(layout="top") as b:
            for life in range(1, 4):
                await b.kubelet.start()
                await b.registered()
                assert len(b.kubelet.calls) == life
                assert b.kubelet.calls[-1][1] == "devherd-t.example.com_r0.sock"
                await b.kubelet.stop()

    run(work())


def test_a_cut_stream_on_the_same_kubelet_waits_75_ms() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            cut = monotonic()
            await b.kubelet.cut(R0)
            b.watch.poke()
            b.registrations[R0].retry()
            await b.kubelet.until(lambda: len(b.kubelet.calls) == 2)
            assert 0.075 <= b.kubelet.calls[1][2] - cut < 1.0
            await b.registered()
            assert b.status(R0).count == 2

    run(work())


def test_never_two_streams_on_one_kubelet() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            for _ in range(10):
                b.watch.poke()
                b.registrations[R0].retry()
                await asyncio.sleep(0.02)
            assert len(b.kubelet.calls) == 1
            assert b.kubelet.most_streams == 1

    run(work())


def test_a_new_kubelet_is_registered_with_while_the_old_stream_still_hangs() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            # The old life's stream is not ended: as if its process hung about.
            kept = b.kubelet.connected.pop(R0)
            assert b.kubelet._server is not None
            await b.kubelet._server.stop(0)
            await b.kubelet.start()
            b.watch.poke()
            await b.kubelet.until(lambda: len(b.kubelet.calls) == 2)
            await b.kubelet.until(lambda: len(b.servers[R0].streams) == 2)
            b.kubelet.connected.pop(R0)
            await b.kubelet._end(kept)
            await b.kubelet.until(lambda: len(b.servers[R0].streams) == 1)
            await asyncio.sleep(0.2)
            assert len(b.kubelet.calls) == 2, "the old life's end concerns nobody"

    run(work())


def test_a_refused_name_is_shown_and_retried_slowly_and_the_others_live() -> None:
    async def work() -> None:
        async with bench(2, refused_retry=0.3) as b:
            b.kubelet.refusal = 'the ResourceName "example.com/r0" is invalid'
            b.kubelet.refused = {R0}
            await b.kubelet.start()
            await b.kubelet.until(
                lambda: b.status(R0).state == "refused" and b.status(b.names[1]).state == "registered"
            )
            assert b.status(R0).error == 'the ResourceName "example.com/r0" is invalid'
            calls = len(b.kubelet.calls)
            await asyncio.sleep(0.2)
            assert len(b.kubelet.calls) == calls
            assert b.status(R0).state == "refused"
            b.kubelet.refusal = ""
            await b.registered()
            assert b.status(R0).error == ""

    run(work())


def test_a_refused_version_is_tried_again_with_the_next_kubelet_at_once() -> None:
    async def work() -> None:
        async with bench() as b:
            b.kubelet.refusal = 'requested API version "v1beta1" is not supported by kubelet. Supported version is "v2"'
            await b.kubelet.start()
            await b.kubelet.until(lambda: b.status(R0).state == "refused")
            await b.kubelet.stop()
            b.kubelet.refusal = ""
            await b.kubelet.start()
            b.watch.poke()
            await b.registered(2.0)

    run(work())


def test_any_other_refusal_is_retried_soon() -> None:
    async def work() -> None:
        async with bench(layout="subfolder") as b:
            b.kubelet.refusal = "failed to get device plugin options: what"
            await b.kubelet.start()
            await b.kubelet.until(lambda: len(b.kubelet.calls) >= 3)
            assert b.status(R0).error == b.kubelet.refusal
            b.kubelet.refusal = ""
            await b.registered()

    run(work())


def test_a_kubelet_that_refuses_subfolders_gets_the_top_level_at_once() -> None:
    async def work() -> None:
        async with bench(3) as b:
            b.kubelet.refuse_subfolders = True
            begin = await b.kubelet.start()
            await b.registered()
            assert monotonic() - begin < 1.0
            assert b.layout.current == "top"
            assert "refused" in b.layout.reason
            assert {b.status(name).endpoint.count("/") for name in b.names} == {0}
            await b.kubelet.stop()
            b.kubelet.calls.clear()
            await b.kubelet.start()
            await b.registered()
            assert len(b.kubelet.calls) == 3

    run(work())


@pytest.mark.parametrize("layout", ["subfolder", "top", "auto"])
def test_a_path_that_the_kubelet_counts_as_connected_is_left_for_another_name(layout: str) -> None:
    async def work() -> None:
        async with bench(layout=layout) as b:
            await b.kubelet.start()
            await b.registered()
            used = [b.status(R0).endpoint]
            for _ in range(3):
                b.kubelet.stuck.add(os.path.join(b.kubelet.device_plugins, used[-1]))
                begin = monotonic()
                await b.kubelet.cut(R0)
                await b.kubelet.until(lambda: R0 in b.kubelet.connected)
                await b.registered()
                assert monotonic() - begin < 1.0
                assert b.status(R0).endpoint not in used
                used.append(b.status(R0).endpoint)
            assert len({os.path.dirname(name) for name in used}) == 1, "the layout is no part of it"
            # No name is left behind, and a later life begins with the usual one's folder in order.
            folder = os.path.join(b.kubelet.device_plugins, "devherd")
            assert len([name for name in os.listdir(folder) if name.endswith(".sock")]) <= 2

    run(work())


def test_a_forced_layout_is_kept_and_its_failure_said() -> None:
    async def work() -> None:
        async with bench(layout="subfolder") as b:
            b.kubelet.refuse_subfolders = True
            await b.kubelet.start()
            await b.kubelet.until(lambda: len(b.kubelet.calls) >= 2)
            assert "failed to dial" in b.status(R0).error
            assert b.layout.current == "subfolder"

    run(work())


def test_a_socket_that_vanished_from_the_subfolder_moves_to_the_top_level() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            await b.kubelet.stop()
            shutil.rmtree(b.endpoints[R0].folder)
            await b.kubelet.start()
            await b.registered()
            assert b.layout.current == "top"

    run(work())


def test_the_whole_folder_replaced_is_no_reason_to_change_the_layout() -> None:
    async def work() -> None:
        async with bench(2) as b:
            await b.kubelet.start()
            await b.registered()
            await b.kubelet.stop()
            shutil.rmtree(b.device_plugins)
            await asyncio.sleep(0.05)
            await b.kubelet.start()
            await b.registered()
            assert b.layout.current == "subfolder"
            assert sorted(os.listdir(b.endpoints[R0].folder)) == ["t.example.com_r0.sock", "t.example.com_r1.sock"]

    run(work())


def test_sockets_are_ready_before_the_kubelet_listens_in_a_new_folder() -> None:
    async def work() -> None:
        async with bench(folder=False) as b:
            await asyncio.sleep(0.05)
            assert "not there yet" in b.status(R0).error
            os.mkdir(b.device_plugins)
            await b.kubelet.until(lambda: os.path.exists(b.endpoints[R0].anchor) and b.status(R0).error == "")
            await b.kubelet.start()
            await b.registered()
            assert len(b.kubelet.calls) == 1

    run(work())


def test_a_register_that_hangs_is_given_up_and_the_next_kubelet_served() -> None:
    async def work() -> None:
        async with bench(start=False) as b:
            for registration in b.registrations.values():
                registration._link = b.link = KubeletLink(b.kubelet.socket, deadline=0.3)
            b.start()
            b.kubelet.hang = True
            await b.kubelet.start()
            await b.kubelet.until(lambda: len(b.kubelet.calls) >= 2)
            assert "did not answer Register in time" in b.status(R0).error
            b.kubelet.hang = False
            await b.registered()

    run(work())


def test_a_hanging_register_is_abandoned_when_another_kubelet_comes() -> None:
    async def work() -> None:
        async with bench() as b:
            b.kubelet.hang = True
            await b.kubelet.start()
            await b.kubelet.until(lambda: len(b.kubelet.calls) == 1)
            b.kubelet.hang = False
            # The hung life is left as it is; its successor has its own socket.
            hung = b.kubelet._server
            os.unlink(b.kubelet.socket)
            await b.kubelet.start()
            b.watch.poke()
            await b.registered(3.0)
            assert hung is not None
            await hung.stop(0)

    run(work())


def test_a_kubelet_that_dies_during_register() -> None:
    async def work() -> None:
        async with bench() as b:
            b.kubelet.hang = True
            await b.kubelet.start()
            await b.kubelet.until(lambda: len(b.kubelet.calls) == 1)
            await b.kubelet.stop()
            b.kubelet.hang = False
            await b.kubelet.start()
            await b.registered(3.0)

    run(work())


def test_ok_without_a_stream_is_no_registration() -> None:
    async def work() -> None:
        async with bench() as b:
            watch, said_ok = b.kubelet._watch, asyncio.Event()

            async def never(_resource: str, _client: object) -> None:
                said_ok.set()

            b.kubelet._watch = never  # type: ignore[method-assign, assignment]
            await b.kubelet.start()
            await said_ok.wait()
            b.kubelet._watch = watch  # type: ignore[method-assign]
            await b.kubelet.until(lambda: len(b.kubelet.calls) == 2, 5)
            assert b.kubelet.calls[1][2] - b.kubelet.calls[0][2] >= 1.9
            await b.registered()

    run(work())


def test_a_socket_removed_under_an_open_stream_is_put_back() -> None:
    async def work() -> None:
        async with bench(layout="top", start=False) as b:
            for registration in b.registrations.values():
                registration._poll = 0.1
            b.start()
            await b.kubelet.start()
            await b.registered()
            endpoint = b.endpoints[R0]
            os.unlink(endpoint.top)
            os.unlink(endpoint.anchor)
            await b.kubelet.until(lambda: endpoint.intact("top"))
            assert len(b.kubelet.calls) == 1
            assert b.kubelet.healthy(R0) == ["d000", "d001"]

    run(work())


def test_a_socket_behind_which_nobody_listens_any_more_is_bound_anew() -> None:
    """Whatever stopped the server: the file is there and the kubelet is refused. The layout is not to blame."""

    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            await b.kubelet.stop()
            deaf = b.servers[R0]._server
            assert deaf is not None
            await deaf.stop(0)
            assert os.path.exists(b.endpoints[R0].anchor)
            began = await b.kubelet.start()
            await b.registered()
            assert monotonic() - began < 2
            assert b.layout.current == "subfolder"

    run(work())


def test_sixty_resources_in_one_process() -> None:
    async def work() -> None:
        async with bench(60) as b:
            for _ in range(2):
                await b.kubelet.start()
                await b.registered()
                assert len(b.kubelet.lists) == 60
                await b.kubelet.stop()

    run(work())


def test_stop_ends_the_stream_and_leaves_no_file() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.kubelet.start()
            await b.registered()
            await b.registrations[R0].stop()
            assert b.status(R0).state == "stopped"
            assert os.listdir(b.endpoints[R0].folder) == []
            await b.kubelet.until(lambda: R0 not in b.kubelet.connected)

    run(work())


def test_descriptors_tasks_and_files_stay_flat_over_200_restarts() -> None:
    async def work() -> None:
        async with bench(3) as b:
            seen = []
            for life in range(200):
                await b.kubelet.start()
                await b.registered()
                await b.kubelet.stop()
                if life % 20 == 19:
                    await asyncio.sleep(0.1)
                    seen.append((len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())))
            descriptors, tasks = zip(*seen, strict=True)
            assert max(descriptors[1:]) <= descriptors[0] + 2, seen
            assert max(tasks[1:]) <= tasks[0] + 2, seen
            assert len(os.listdir(b.endpoints[R0].folder)) == 3
            assert all(b.status(name).count == 200 for name in b.names)
            assert b.kubelet.most_streams == 1

    run(work())


def test_registered_is_what_the_kubelet_shows() -> None:
    async def work() -> None:
        async with bench(verify=True) as b:
            await b.kubelet.serve_pod_resources()
            await b.kubelet.start()
            await b.registered()
            assert [one.state for _, one in b.history] == ["registering", "unverified", "registered"]

    run(work())


def test_without_pod_resources_the_stream_stays_unverified() -> None:
    async def work() -> None:
        async with bench(verify=True) as b:
            await b.kubelet.start()
            await b.kubelet.until(lambda: "pr.sock" in b.status(R0).error)
            assert b.status(R0).state == "unverified"
            await b.kubelet.serve_pod_resources()
            await b.registered()

    run(work())


def test_a_resource_taken_over_is_said_and_not_fought_for() -> None:
    async def work() -> None:
        async with bench(verify=True) as b:
            await b.kubelet.serve_pod_resources()
            b.kubelet.shown = {R0: {"theirs"}}
            await b.kubelet.start()
            await b.kubelet.until(lambda: b.status(R0).state == "taken")
            assert "shows 1 devices, we sent 2 healthy ones" in b.status(R0).error
            assert len(b.kubelet.calls) == 1
            # It is ours again: nothing to do but to say so.
            b.kubelet.shown = None
            await b.registered()
            assert len(b.kubelet.calls) == 1

    run(work())


def test_a_change_is_confirmed_again() -> None:
    async def work() -> None:
        async with bench(verify=True) as b:
            await b.kubelet.serve_pod_resources()
            await b.kubelet.start()
            await b.registered()
            b.kubelet.shown = {R0: {"d000", "d001"}}
            b.servers[R0].feed.publish(snapshot(R0, 1, 1, number=2))
            await b.kubelet.until(lambda: b.status(R0).state == "taken")

    run(work())


def test_devices_the_kubelet_dropped_are_registered_anew() -> None:
    async def work() -> None:
        async with bench(verify=True) as b:
            await b.kubelet.serve_pod_resources()
            b.kubelet.shown = {}
            await b.kubelet.start()
            await b.kubelet.until(lambda: len(b.kubelet.calls) == 2)
            b.kubelet.shown = None
            await b.registered()

    run(work())
