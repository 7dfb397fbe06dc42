"""The kubelet is seen as soon as it listens, whatever happens to its files and folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from time import monotonic

import pytest
from devherd.kubelet.folder import FolderWatch
from devherd.kubelet.identity import Identity, probe_socket
from devherd.kubelet.watch import KubeletWatch
from kubelet_fake import run


class Node:
    """A device plugin folder in which a test plays the kubelet with bare sockets."""

    def __init__(self, root: str, poll: float) -> None:
        self.folder = os.path.join(root, "kubelet", "device-plugins")
        self.life = 0
        self.probes = 0
        self.watch = KubeletWatch(self.folder, poll=poll, probe=self._probe)
        self._sockets: list[socket.socket] = []

    def _probe(self, path: str) -> Identity:
        self.probes += 1
        return Identity(probe_socket(path).pid, self.life)

    def bind(self) -> socket.socket:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.watch.socket_path)
        one = socket.socket(socket.AF_UNIX)
        one.bind(self.watch.socket_path)
        self._sockets.append(one)
        return one

    def listen(self) -> float:
        self.life += 1
        self.bind().listen()
        return monotonic()

    def touch(self, name: str) -> None:
        """A file comes and goes."""
        path = os.path.join(self.folder, name)
        with open(path, "w"):
            pass
        os.unlink(path)

    def die(self) -> None:
        """The process ends; its socket file stays."""
        while self._sockets:
            self._sockets.pop().close()


@contextlib.asynccontextmanager
async def node(poll: float = 60.0, folder: bool = True) -> AsyncIterator[Node]:
    """The poll is so slow that only events can pass a test."""
    root = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    made = Node(root, poll)
    if folder:
        os.makedirs(made.folder)
    made.watch.start()
    try:
        yield made
    finally:
        await made.watch.close()
        made.die()
        shutil.rmtree(root)


async def settle(node: Node) -> asyncio.Task[Identity]:
    """Somebody waits, and the eager second after that has passed: from here on only an event is quick."""
    waiting = asyncio.create_task(node.watch.listening())
    await asyncio.sleep(1.1)
    assert not waiting.done()
    return waiting


async def quickly(waiting: asyncio.Task[Identity], since: float, life: int) -> None:
    identity = await asyncio.wait_for(waiting, 5)
    assert identity == Identity(os.getpid(), life)
    assert monotonic() - since < 0.1, "seen by the slow tries only"


def test_the_socket_is_seen_at_once() -> None:
    async def work() -> None:
        async with node() as one:
            waiting = await settle(one)
            await quickly(waiting, one.listen(), 1)
            assert one.watch.up

    run(work())


def test_bind_long_before_listen() -> None:
    async def work() -> None:
        async with node() as one:
            waiting = await settle(one)
            bound = one.bind()
            await asyncio.sleep(0.2)
            assert not waiting.done()
            one.life = 1
            bound.listen()
            await quickly(waiting, monotonic(), 1)

    run(work())


def test_a_stale_socket_is_not_a_kubelet() -> None:
    async def work() -> None:
        async with node() as one:
            one.listen()
            assert (await one.watch.listening()).start_time == 1
            one.die()
            waiting = await settle(one)
            assert not one.watch.up
            assert "kubelet.sock: Connection refused" in one.watch.error
            await quickly(waiting, one.listen(), 2)

    run(work())


def test_the_folder_comes_after_us() -> None:
    async def work() -> None:
        async with node(folder=False) as one:
            came: list[float] = []
            one.watch.on_folder(lambda: came.append(monotonic()))
            waiting = await settle(one)
            os.mkdir(os.path.dirname(one.folder))
            await asyncio.sleep(0.05)
            os.mkdir(one.folder)
            await asyncio.sleep(0.05)
            assert len(came) == 1, "the folder must be known before the kubelet's socket is in it"
            await quickly(waiting, one.listen(), 1)

    run(work())


def test_the_folder_is_deleted_and_made_again() -> None:
    async def work() -> None:
        async with node() as one:
            came: list[float] = []
            one.watch.on_folder(lambda: came.append(monotonic()))
            waiting = await settle(one)
            shutil.rmtree(one.folder)
            await asyncio.sleep(0.05)
            os.mkdir(one.folder)
            await asyncio.sleep(0.05)
            assert len(came) == 1
            await quickly(waiting, one.listen(), 1)

    run(work())


def test_the_folder_is_moved_away_and_replaced() -> None:
    async def work() -> None:
        async with node() as one:
            waiting = await settle(one)
            os.rename(one.folder, f"{one.folder}.old")
            os.mkdir(one.folder)
            await asyncio.sleep(0.05)
            await quickly(waiting, one.listen(), 1)

    run(work())


def test_a_socket_renamed_into_place_is_seen() -> None:
    async def work() -> None:
        async with node() as one:
            waiting = await settle(one)
            hidden = socket.socket(socket.AF_UNIX)
            hidden.bind(f"{one.folder}/.tmp")
            hidden.listen()
            one.life = 1
            os.rename(f"{one.folder}/.tmp", one.watch.socket_path)
            await quickly(waiting, monotonic(), 1)
            hidden.close()

    run(work())


def test_a_signal_is_enough_when_nobody_waits() -> None:
    async def work() -> None:
        async with node() as one:
            seen: list[Identity] = []
            one.watch.on_kubelet(seen.append)
            one.listen()
            await one.watch.listening()
            await asyncio.sleep(0.02)
            one.die()
            one.listen()
            await asyncio.sleep(0.05)
            assert len(seen) == 1, "nothing looks while nobody waits"
            for _ in range(5):
                one.watch.poke()
            await asyncio.sleep(0.05)
            assert [identity.start_time for identity in seen] == [1, 2]

    run(work())


def test_the_slow_poll_is_enough_too() -> None:
    async def work() -> None:
        async with node(poll=0.1) as one:
            one.listen()
            await one.watch.listening()
            found = asyncio.Event()
            one.watch.on_kubelet(lambda _identity: found.set())
            one.die()
            one.listen()
            await asyncio.wait_for(found.wait(), 5)

    run(work())


def test_the_poll_notices_a_kubelet_that_ended_when_nobody_waits() -> None:
    async def work() -> None:
        async with node(poll=0.1) as one:
            child = await asyncio.create_subprocess_exec("sleep", "60")
            one.watch._probe = lambda path: Identity(child.pid, probe_socket(path).start_time)
            one.listen()
            await one.watch.listening()
            child.kill()
            await child.wait()
            await asyncio.sleep(0.3)
            assert not one.watch.up

    run(work())


def test_noise_in_the_folder_costs_no_probe() -> None:
    async def work() -> None:
        async with node() as one:
            one.listen()
            await one.watch.listening()
            before = one.probes
            for number in range(50):
                with open(f"{one.folder}/.{number}", "w"):
                    pass
                os.rename(f"{one.folder}/.{number}", f"{one.folder}/kubelet_internal_checkpoint")
            await asyncio.sleep(0.1)
            assert one.probes == before

    run(work())


def test_many_waiters_cost_one_probe() -> None:
    async def work() -> None:
        async with node() as one:
            one.listen()
            await one.watch.listening()
            before = one.probes
            await asyncio.gather(*(one.watch.listening() for _ in range(60)))
            assert one.probes == before + 1

    run(work())


def test_a_frozen_listener_with_a_full_queue_is_waited_for() -> None:
    async def work() -> None:
        async with node() as one:
            listener = one.bind()
            listener.listen(0)
            clients = []
            while True:
                client = socket.socket(socket.AF_UNIX)
                client.setblocking(False)
                try:
                    client.connect(one.watch.socket_path)
                except BlockingIOError:
                    client.close()
                    break
                clients.append(client)
            waiting = asyncio.create_task(one.watch.listening())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            for client in clients:
                listener.accept()[0].close()
                client.close()
            await asyncio.wait_for(waiting, 5)

    run(work())


def test_descriptors_stay_flat() -> None:
    async def work() -> None:
        async with node() as one:
            counts = []
            for _ in range(30):
                one.die()
                waiting = asyncio.create_task(one.watch.listening())
                await asyncio.sleep(0.005)
                one.listen()
                await waiting
                counts.append(len(os.listdir("/proc/self/fd")))
            assert max(counts[5:]) <= counts[4] + 1

    run(work())


def test_once_the_kubelet_is_seen_files_in_its_folder_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes: list[None] = []
    readable = FolderWatch._readable

    def counted(self: FolderWatch) -> None:
        wakes.append(None)
        readable(self)

    monkeypatch.setattr(FolderWatch, "_readable", counted)

    async def scenario() -> None:
        async with node() as there:
            waiting = asyncio.ensure_future(there.watch.listening())
            await asyncio.sleep(0)
            there.listen()
            await asyncio.wait_for(waiting, 5)
            woken = len(wakes)
            for number in range(20):
                # As the kubelet does with its checkpoint, for each list of each plugin.
                there.touch(f".{number}")
            await asyncio.sleep(0.1)
            assert len(wakes) == woken
            # And armed again for the next one.
            waiting = asyncio.ensure_future(there.watch.listening())
            await asyncio.wait_for(waiting, 5)
            there.die()
            os.unlink(there.watch.socket_path)
            waiting = asyncio.ensure_future(there.watch.listening())
            await asyncio.sleep(0.05)
            there.listen()
            assert (await asyncio.wait_for(waiting, 5)).start_time == 2

    run(scenario())


def test_a_signal_that_comes_late_is_known_to_be_late() -> None:
    async def scenario() -> None:
        async with node() as there:
            assert not there.watch.knows()
            there.listen()
            await asyncio.wait_for(there.watch.listening(), 5)
            assert there.watch.knows()
            there.listen()
            assert not there.watch.knows()

    run(scenario())
