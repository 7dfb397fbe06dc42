"""Control sockets: how people and programs ask a running devherd process something.

One JSON object a line in, one JSON object a line out, as many as wanted on one connection, answered in
order. A reply `{"error": text}` means that the request failed. The sockets belong to the user the process
runs as (mode 0600) and live in `paths.run`.

Three ends: `ask` for clients (blocking, standard library only), `ControlServer` for asyncio processes,
`PollServer` for processes with a poll loop of their own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

MAX_REQUEST = 1024 * 1024
"""Longest request in bytes; a longer one is answered with an error and the connection closed."""
MAX_REPLY = 256 * 1024 * 1024
"""Longest reply in bytes a client accepts."""
MAX_CONNECTIONS = 64
"""Connections one server keeps open at once; further ones are told so and closed."""
SEND_TIMEOUT = 10.0
"""Seconds a client may take to read its reply before it is cut off."""

Request = dict[str, Any]
Reply = dict[str, Any]


class ControlError(Exception):
    """The other side said no, or nothing usable; the text is for a person."""


class ControlDown(ControlError):
    """Nobody listens there: the process is not running."""


class ControlTimeout(ControlError):
    """Somebody listens and does not answer in time."""


def ask(path: str, request: Request, timeout: float = 2.0) -> Reply:
    """Send one request and return its reply. `timeout` in seconds covers all of it.

    Raises ControlDown, ControlTimeout or, for an error reply and everything else, ControlError.
    """
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        try:
            _remaining(sock, deadline)
            with _address(path) as address:
                sock.connect(address)
            sock.sendall(json.dumps(request).encode() + b"\n")
            line = _read_line(sock, deadline)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise ControlDown(f"{path}: nobody answers there ({error.strerror}); is the process running?") from None
        except (TimeoutError, BlockingIOError):
            raise ControlTimeout(f"{path}: no answer within {timeout:g} s") from None
        except PermissionError:
            raise ControlError(f"{path}: permission denied; ask as the user devherd runs as (root on a node)") from None
        except OSError as error:
            raise ControlError(f"{path}: {error.strerror or error}") from None
    return _reply_of(path, line)


def _remaining(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _read_line(sock: socket.socket, deadline: float) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while not (chunks and chunks[-1].endswith(b"\n")):
        _remaining(sock, deadline)
        chunk = sock.recv(256 * 1024)
        if not chunk:
            raise ConnectionResetError("the connection was closed before an answer came")
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_REPLY:
            raise OSError(f"the answer is longer than {MAX_REPLY} bytes")
    return b"".join(chunks)


def _reply_of(path: str, line: bytes) -> Reply:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise ControlError(f"{path}: the answer is not JSON") from None
    if not isinstance(reply, dict):
        raise ControlError(f"{path}: the answer is not a JSON object")
    error = reply.get("error")
    if isinstance(error, str) and error:
        raise ControlError(error)
    return reply


def parse_request(line: bytes) -> Request:
    """The request in a line. Raises ValueError with a text for the client."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("the request is not JSON; send one JSON object a line") from None
    if not isinstance(request, dict):
        raise ValueError('the request is not a JSON object; send {"op": ...}')
    return request


def encode_reply(reply: Reply) -> bytes:
    """A reply as one line."""
    return json.dumps(reply, separators=(",", ":")).encode() + b"\n"


def failure(error: BaseException) -> Reply:
    """The reply for a handler that raised."""
    return {"error": str(error) or type(error).__name__}


@contextlib.contextmanager
def _address(path: str) -> Iterator[str]:
    """A socket address for a path of any length (the kernel takes 107 bytes), through the folder's descriptor."""
    if len(os.fsencode(path)) <= 107:
        yield path
        return
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


class Published:
    """A listening socket under its path, mode 0600 from the first moment, complete when it appears.

    A stale file is replaced; a path on which somebody answers raises OSError (EADDRINUSE).
    """

    def __init__(self, path: str) -> None:
        if _answers(path):
            raise OSError(errno.EADDRINUSE, f"{path}: another process listens there")
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        name = f"{path}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            os.fchmod(self.sock.fileno(), 0o600)
            with _address(name) as address:
                self.sock.bind(address)
            self.sock.listen(MAX_CONNECTIONS)
            self._inode = os.stat(name).st_ino
            os.rename(name, path)
        except BaseException:
            self.sock.close()
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def withdraw(self) -> None:
        """Close, and remove the file unless it is somebody else's by now."""
        self.sock.close()
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)


def dial(path: str) -> socket.socket:
    """A connected socket that blocks in nothing. Raises OSError: nobody listens; BlockingIOError: too busy."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with _address(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _answers(path: str) -> bool:
    try:
        dial(path).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


class ControlServer:
    """Serves a control socket on the running asyncio loop.

    `handler` gets each request and returns the reply; what it raises becomes `{"error": text}`.
    """

    def __init__(self, path: str, handler: Callable[[Request], Awaitable[Reply]]) -> None:
        self.path = path
        self._handler = handler
        self._published: Published | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises OSError when the path cannot be used or another process listens there."""
        import asyncio

        self._published = Published(self.path)
        self._server = await asyncio.start_unix_server(
            self._connected, sock=self._published.sock, limit=MAX_REQUEST, start_serving=True
        )

    async def stop(self) -> None:
        """Stop listening, end open connections, remove the file."""
        import asyncio

        if self._server is not None:
            self._server.close()
            self._server = None
        if self._published is not None:
            self._published.withdraw()
            self._published = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import asyncio

        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.write(encode_reply({"error": f"too many connections (limit {MAX_CONNECTIONS})"}))
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import asyncio

        from devherd.patience import within

        try:
            while True:
                try:
                    line = await reader.readline()
                except ValueError:
                    writer.write(encode_reply({"error": f"the request is longer than {MAX_REQUEST} bytes"}))
                    await within(writer.drain(), SEND_TIMEOUT)
                    return
                if not line.endswith(b"\n"):
                    return
                writer.write(await self._answer(line))
                await within(writer.drain(), SEND_TIMEOUT)
        except (OSError, asyncio.TimeoutError):
            return
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> bytes:
        try:
            return encode_reply(await self._handler(parse_request(line)))
        except Exception as error:
            return encode_reply(failure(error))


class PollServer:
    """The same for a process with a poll loop of its own: register `fds()`, pass readable ones to `ready`.

    `handler` must not block. A reply that the client does not take in at once ends the connection
    (replies here are small; socket buffers are not).
    """

    def __init__(self, path: str, handler: Callable[[Request], Reply]) -> None:
        self.path = path
        self._handler = handler
        self._published = Published(path)
        self._connections: dict[int, tuple[socket.socket, bytearray]] = {}

    def fds(self) -> list[int]:
        """Descriptors to poll for reading."""
        return [self._published.sock.fileno(), *self._connections]

    def ready(self, fd: int) -> bool:
        """Handle a readable descriptor. False: not one of ours."""
        if fd == self._published.sock.fileno():
            self._accept()
        elif fd in self._connections:
            self._receive(fd)
        else:
            return False
        return True

    def close(self) -> None:
        """Stop listening, end open connections, remove the file."""
        self._published.withdraw()
        for fd in list(self._connections):
            self._drop(fd)

    def _accept(self) -> None:
        try:
            sock, _ = self._published.sock.accept()
        except OSError:
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        self._connections[sock.fileno()] = (sock, bytearray())

    def _receive(self, fd: int) -> None:
        sock, buffer = self._connections[fd]
        try:
            data = sock.recv(64 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
            return
        buffer += data
        self._answer_lines(fd, sock, buffer)

    def _answer_lines(self, fd: int, sock: socket.socket, buffer: bytearray) -> None:
        while (end := buffer.find(b"\n")) >= 0 or len(buffer) > MAX_REQUEST:
            too_long = not 0 <= end <= MAX_REQUEST
            reply = {"error": f"the request is longer than {MAX_REQUEST} bytes"} if too_long else None
            line = bytes(buffer[: end + 1])
            del buffer[: end + 1]
            out = encode_reply(reply or self._answer(line))
            try:
                sent = sock.send(out)
            except OSError:
                sent = -1
            if sent != len(out) or too_long:
                self._drop(fd)
                return

    def _answer(self, line: bytes) -> Reply:
        try:
            return self._handler(parse_request(line))
        except Exception as error:
            return failure(error)

    def _drop(self, fd: int) -> None:
        sock, _ = self._connections.pop(fd)
        sock.close()


def wait_readable(fds: list[int], timeout: float | None) -> list[int]:
    """Descriptors among `fds` that can be read (or have ended) within `timeout` seconds; None waits for ever."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout is None else max(0, timeout * 1000))]
