"""The exporter's HTTP: who gets in, what a hostile client can do, on real sockets of this machine."""

from __future__ import annotations

import asyncio
import grp
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from devherd_exporter.config import Tcp, Tls
from devherd_exporter.guard import Guard, read_token
from devherd_exporter.listeners import TcpListener, UnixListener, group_id
from devherd_exporter.web import MAX_CLIENTS, MAX_HEAD, Web, parse

TOKEN = "0123456789abcdef-secret"


async def page(accept: str) -> tuple[bytes, str]:
    return f"a 1\n# {accept}\n".encode(), "text/plain; version=0.0.4"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
    yield made
    shutil.rmtree(made)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(text + "\n")
    path.chmod(mode)
    return str(path)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def exchange(port: int, request: bytes, context: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def served(tcp: Tcp, *requests: bytes, context: ssl.SSLContext | None = None) -> list[bytes]:
    async def main() -> list[bytes]:
        listener = TcpListener(tcp, page)
        await listener.open()
        try:
            return [await exchange(tcp.port, request, context) for request in requests]
        finally:
            await listener.close()

    return asyncio.run(main())


def get(path: str = "/metrics", host: str = "localhost", method: str = "GET", *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_paths_and_methods() -> None:
    tcp = Tcp(free_port())
    answers = served(
        tcp, get(), get("/metrics?x=1"), get("/"), get("/etc/passwd"), get(method="POST"), get(method="HEAD")
    )
    assert [status(answer) for answer in answers] == [200, 200, 200, 404, 405, 200]
    assert answers[0].partition(b"\r\n\r\n")[2].startswith(b"a 1\n")
    head, _, body = answers[5].partition(b"\r\n\r\n")
    assert body == b""
    assert b"Content-Length: 7" in head
    assert all(b"Connection: close" in answer for answer in answers)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:9478", True),
        ("LOCALHOST", True),
        ("127.0.0.1:9478", True),
        ("[::1]:9478", True),
        ("10.9.8.7", True),
        ("node7.example.com:9478", True),
        ("NODE7.example.com.", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example#127.0.0.1", False),
        ("", False),
        ("[evil]", False),
        ("a:b:c", False),
    ],
)
def test_only_hosts_that_no_foreign_page_can_have(host: str, allowed: bool) -> None:
    assert Guard(("Node7.example.com",), "").host_allowed(host) == allowed


def test_a_foreign_host_gets_nothing_over_tcp() -> None:
    (answer,) = served(Tcp(free_port()), get(host="evil.example"))
    assert status(answer) == 403
    assert b"a 1" not in answer


def test_the_token_is_asked_for_and_may_change_while_running(folder: Path) -> None:
    tcp = Tcp(free_port(), token_file=token_file(folder))
    right, wrong = f"Authorization: Bearer {TOKEN}", "Authorization: Bearer 0123456789abcdef-Secret"

    async def main() -> list[int]:
        listener = TcpListener(tcp, page)
        await listener.open()
        tries = ((), (wrong,), ("Authorization: Basic eA==",), (f"authorization: bearer {TOKEN}",), (right,))
        found = [status(await exchange(tcp.port, get("/metrics", "localhost", "GET", *one))) for one in tries]
        token_file(folder, "another-token-of-length")
        found.append(status(await exchange(tcp.port, get("/metrics", "localhost", "GET", right))))
        token_file(folder, mode=0o644)
        found.append(status(await exchange(tcp.port, get("/metrics", "localhost", "GET", right))))
        await listener.close()
        return found

    assert asyncio.run(main()) == [401, 401, 401, 200, 200, 401, 503]


@pytest.mark.parametrize(("text", "mode"), [("short", 0o600), (TOKEN, 0o644), (TOKEN, 0o640), ("", 0o600)])
def test_a_token_that_protects_nothing_opens_no_port(folder: Path, text: str, mode: int) -> None:
    path = token_file(folder, text, mode)
    with pytest.raises(ValueError, match="token"):
        read_token(path)
    with pytest.raises(ValueError, match="token"):
        served(Tcp(free_port(), token_file=path), get())
    with pytest.raises(OSError, match="No such file"):
        served(Tcp(free_port(), token_file="/none"), get())


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /metrics\r\n\r\n",
        b"GET metrics HTTP/1.1\r\n\r\n",
        b"GET http://evil/metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n folded\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
    ],
)
def test_what_is_no_plain_request_is_refused(head: bytes) -> None:
    assert parse(head) is None


def test_an_endless_request_is_cut_off() -> None:
    (answer,) = served(Tcp(free_port()), b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD // 6 + 9) + b"\r\n")
    assert status(answer) == 400


def test_clients_that_send_nothing_are_cut_off_and_lock_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devherd_exporter.web.PATIENCE", 0.5)
    tcp = Tcp(free_port())

    async def main() -> tuple[int, int]:
        listener = TcpListener(tcp, page)
        await listener.open()
        slow = [await asyncio.open_connection("127.0.0.1", tcp.port) for _ in range(MAX_CLIENTS)]
        refused = status(await exchange(tcp.port, get()))
        for reader, writer in slow:
            assert await reader.read() == b""
            writer.close()
        later = status(await exchange(tcp.port, get()))
        await listener.close()
        return refused, later

    assert asyncio.run(main()) == (503, 200)


def test_a_page_that_fails_is_an_error_and_tells_no_secret() -> None:
    async def broken(_accept: str) -> tuple[bytes, str]:
        raise RuntimeError("secret")

    async def main() -> bytes:
        server = await asyncio.start_server(Web(broken).client, "127.0.0.1", 0)
        answer = await exchange(server.sockets[0].getsockname()[1], get())
        server.close()
        return answer

    answer = asyncio.run(main())
    assert status(answer) == 500
    assert b"secret" not in answer


def test_the_unix_socket_is_for_its_owner_or_a_group(folder: Path) -> None:
    path = f"{folder}/m.sock"
    group = grp.getgrgid(os.getgid()).gr_name

    async def main(group: str) -> tuple[int, bytes]:
        listener = UnixListener(path, group, page)
        await listener.open()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(get(host="whatever"))
        answer, mode = await reader.read(), os.stat(path).st_mode & 0o777
        writer.close()
        await listener.close()
        return mode, answer

    assert asyncio.run(main(""))[0] == 0o600
    mode, answer = asyncio.run(main(group))
    assert (mode, status(answer)) == (0o660, 200)
    assert not os.path.exists(path)
    with pytest.raises(ValueError, match="no group"):
        group_id("no-such-group")
    with pytest.raises(ValueError, match="no group"):
        asyncio.run(main("no-such-group"))
    assert not os.path.exists(path)


def certificate(folder: Path, name: str) -> Tls:
    """A self-signed certificate, made by the openssl command."""
    key, chain = folder / f"{name}.key", folder / f"{name}.crt"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += [*subject, "-keyout", str(key), "-out", str(chain)]
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return Tls(str(chain), str(key))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with the openssl command")
def test_tls_serves_its_certificate_and_takes_in_a_renewed_one(folder: Path) -> None:
    tls, renewed = certificate(folder, "one"), certificate(folder, "two")
    tcp = Tcp(free_port(), tls=tls)

    async def main() -> None:
        listener = TcpListener(tcp, page)
        await listener.open()
        old = ssl.create_default_context(cafile=tls.certificate)
        assert status(await exchange(tcp.port, get(), old)) == 200
        assert not (await exchange(tcp.port, get())).startswith(b"HTTP/1.1 200"), "plain HTTP on the TLS port"
        new = ssl.create_default_context(cafile=renewed.certificate)
        os.replace(renewed.key, tls.key)
        with pytest.raises(ValueError, match="cannot be used"):
            listener.refresh()
        assert status(await exchange(tcp.port, get(), old)) == 200, "half a renewal changes nothing"
        os.replace(renewed.certificate, tls.certificate)
        listener.refresh()
        assert status(await exchange(tcp.port, get(), new)) == 200
        with pytest.raises(ssl.SSLError):
            await exchange(tcp.port, get(), old)
        await listener.close()

    asyncio.run(main())
    os.chmod(tls.key, 0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        served(tcp, get())
