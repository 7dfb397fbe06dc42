"""One gRPC call by hand, against gRPC's own server."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from devherd_gpu.common.protowire import WireError, fields
from devherd_gpu.common.unary import LARGEST, CallError, call
from hypothesis import given
from hypothesis import strategies as st

METHOD = "/test.Service/Ask"


@pytest.fixture
def place() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dh", dir="/tmp") as folder:
        yield f"{folder}/s"


@contextmanager
def serving(place: str, answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> Iterator[None]:
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Ask": handler}),))
    server.add_insecure_port(f"unix:{place}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


def test_a_question_gets_its_answer(place: str) -> None:
    with serving(place, lambda request, context: request[::-1]):
        assert call(place, METHOD, b"abc") == b"cba"
        assert call(place, METHOD) == b""


def test_a_large_answer_comes_whole(place: str) -> None:
    text = bytes(range(256)) * 2000
    with serving(place, lambda request, context: text):
        assert call(place, METHOD, timeout=20) == text


def test_an_answer_larger_than_any_may_be_is_refused(place: str) -> None:
    with serving(place, lambda request, context: bytes(LARGEST + 1)), pytest.raises(CallError):
        call(place, METHOD, timeout=20)


def test_an_error_is_an_error(place: str) -> None:
    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "no")

    with serving(place, refuse), pytest.raises(CallError, match="error"):
        call(place, METHOD)


def test_a_service_that_is_slow_does_not_hold_us(place: str) -> None:
    free = threading.Event()

    def slow(request: bytes, context: grpc.ServicerContext) -> bytes:
        free.wait(30)
        return b""

    with serving(place, slow):
        with pytest.raises(CallError):
            call(place, METHOD, timeout=0.3)
        free.set()


def test_no_socket_and_a_refused_one_say_so(place: str) -> None:
    with pytest.raises(CallError, match="No such file"):
        call(place, METHOD)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(place)
    with pytest.raises(CallError, match="refused"):
        call(place, METHOD)
    assert Path(place).exists()


@given(st.binary(max_size=200))
def test_rubbish_is_no_message(data: bytes) -> None:
    try:
        list(fields(data))
    except WireError:
        return


def test_fields_of_each_kind() -> None:
    data = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x1d\x01\x02\x03\x04" + b"\x21" + bytes(8)
    assert list(fields(data)) == [(1, 150), (2, b"hi"), (3, b"\x01\x02\x03\x04"), (4, bytes(8))]
