"""Control sockets: what a client sees from the three ends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from devherd.control import (
    MAX_REQUEST,
    ControlDown,
    ControlError,
    ControlServer,
    ControlTimeout,
    PollServer,
    Published,
    Reply,
    Request,
    ask,
    wait_readable,
)


@pytest.fixture
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    yield path
    shutil.rmtree(path)


async def echo(request: Request) -> Reply:
    if request.get("op") == "fail":
        raise ValueError("no such device: x9")
    if request.get("op") == "slow":
        await asyncio.sleep(30)
    return {"got": request}


def with_server(path: str, use: Callable[[], None], handler: Callable[[Request], Awaitable[Reply]] = echo) -> None:
    async def main() -> None:
        server = ControlServer(path, handler)
        await server.start()
        try:
            await asyncio.get_running_loop().run_in_executor(None, use)
        finally:
            await server.stop()

    asyncio.run(main())


def raw(path: str, data: bytes, replies: int) -> list[Reply]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(path)
        sock.sendall(data)
        file = sock.makefile("rb")
        return [json.loads(file.readline()) for _ in range(replies)]


def test_a_request_gets_its_reply_and_the_socket_is_private_and_removed(folder: str) -> None:
    path = f"{folder}/a.control.sock"

    def use() -> None:
        assert ask(path, {"op": "ping", "text": "ä\n"}) == {"got": {"op": "ping", "text": "ä\n"}}
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert os.listdir(folder) == ["a.control.sock"]

    with_server(path, use)
    assert os.listdir(folder) == []


def test_many_requests_on_one_connection_are_answered_in_order(folder: str) -> None:
    path = f"{folder}/a.sock"

    def use() -> None:
        data = b"".join(b'{"n": %d}\n' % n for n in range(50))
        assert [reply["got"]["n"] for reply in raw(path, data, 50)] == list(range(50))

    with_server(path, use)


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b"[1]\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"\n", b"{" * 9 + b"\0\n"]
)
def test_rubbish_is_answered_with_an_error_and_the_connection_lives_on(folder: str, line: bytes) -> None:
    path = f"{folder}/a.sock"

    def use() -> None:
        first, second = raw(path, line + b'{"n": 1}\n', 2)
        assert "JSON" in first["error"]
        assert second == {"got": {"n": 1}}

    with_server(path, use)


def test_a_request_over_the_limit_is_refused_and_others_are_served(folder: str) -> None:
    path = f"{folder}/a.sock"

    def use() -> None:
        (reply,) = raw(path, b"x" * (MAX_REQUEST + 10), 1)
        assert "longer than" in reply["error"]
        assert ask(path, {"n": 1}) == {"got": {"n": 1}}

    with_server(path, use)


def test_errors_of_the_handler_reach_the_client_as_text(folder: str) -> None:
    path = f"{folder}/a.sock"

    def use() -> None:
        with pytest.raises(ControlError, match="no such device: x9"):
            ask(path, {"op": "fail"})

    with_server(path, use)


def test_nobody_there_and_no_answer_are_told_apart(folder: str) -> None:
    path = f"{folder}/a.sock"
    with pytest.raises(ControlDown, match="is the process running"):
        ask(path, {"op": "ping"})
    Published(path).sock.close()
    with pytest.raises(ControlDown, match="is the process running"):
        ask(path, {"op": "ping"})

    def use() -> None:
        started = time.monotonic()
        with pytest.raises(ControlTimeout, match=r"within 0\.2 s"):
            ask(path, {"op": "slow"}, timeout=0.2)
        assert time.monotonic() - started < 2
        assert ask(path, {"n": 2}) == {"got": {"n": 2}}

    with_server(path, use)


def test_a_stale_socket_is_replaced_and_a_live_one_respected(folder: str) -> None:
    path = f"{folder}/a.sock"
    Published(path).sock.close()
    assert os.path.exists(path)

    def use() -> None:
        with pytest.raises(OSError, match="another process listens"):
            Published(path)
        assert ask(path, {"n": 1}) == {"got": {"n": 1}}

    with_server(path, use)


def test_a_path_longer_than_a_socket_address_works(folder: str) -> None:
    deep = os.path.join(folder, "d" * 100, "e" * 100)
    os.makedirs(deep)
    path = f"{deep}/a.control.sock"

    def use() -> None:
        assert ask(path, {"n": 1}) == {"got": {"n": 1}}

    with_server(path, use)
    assert os.listdir(deep) == []


def test_replies_larger_than_a_socket_buffer_arrive_whole(folder: str) -> None:
    async def large(_: Request) -> Reply:
        return {"devices": ["x" * 100] * 50_000}

    path = f"{folder}/a.sock"

    def use() -> None:
        assert len(ask(path, {"op": "devices"}, timeout=10)["devices"]) == 50_000

    with_server(path, use, large)


def test_the_poll_server_answers_the_same_way(folder: str) -> None:
    path = f"{folder}/a.sock"

    def handler(request: Request) -> Reply:
        if request.get("op") == "fail":
            raise ValueError("refused")
        return {"got": request}

    server = PollServer(path, handler)
    ending, end = os.pipe()

    def loop() -> None:
        while ending not in (ready := wait_readable([ending, *server.fds()], None)):
            for fd in ready:
                server.ready(fd)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert ask(path, {"n": 1}) == {"got": {"n": 1}}
        assert [r["got"]["n"] for r in raw(path, b'{"n":1}\n{"n":2}\n', 2)] == [1, 2]
        assert "JSON" in raw(path, b"rubbish\n", 1)[0]["error"]
        assert "longer than" in raw(path, b"y" * (MAX_REQUEST + 1), 1)[0]["error"]
        with pytest.raises(ControlError, match="refused"):
            ask(path, {"op": "fail"})
    finally:
        os.close(end)
        thread.join()
        os.close(ending)
        server.close()
    assert os.listdir(folder) == []
