"""The kubelet's listening sockets, made the way the real one makes them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat

import grpc.aio

from devherd.sim.checkpoint import FILE as CHECKPOINT
from devherd.sim.eventlog import EventLog

PIECE = 65536


class StartError(Exception):
    """The kubelet cannot start and exits."""


def clean(folder: str, log: EventLog) -> None:
    """Delete sockets, and links to sockets, directly in the folder. Raises StartError when one cannot be removed."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name == CHECKPOINT:
            continue
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            log("clean-skipped", path=path, error=str(error))
            continue
        if not stat.S_ISSOCK(mode):
            continue
        try:
            os.unlink(path)
        except OSError as error:
            raise StartError(f"failed to clean up device plugin directory: {error}") from error


def bind(server: grpc.aio.Server, path: str) -> None:
    """Bind and listen at once. Raises StartError."""
    if os.path.isdir(path):
        raise StartError(f"listen unix {path}: bind: address already in use (it is a directory)")
    try:
        if server.add_insecure_port("unix:" + path) == 0:
            raise StartError(f"listen unix {path}: failed")
    except RuntimeError as error:
        raise StartError(f"listen unix {path}: {error}") from error


def bind_and_rename(server: grpc.aio.Server, path: str) -> None:
    """Bind under a temporary name in the same folder and rename it in, over whatever is there."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o750, exist_ok=True)
    temp = os.path.join(folder, str(secrets.randbelow(10**9)))
    bind(server, temp)
    os.rename(temp, path)


class SlowListener:
    """A socket that is bound but refuses for a while, then passes each connection on to the real server.

    gRPC binds and listens in one step, so the gap a plugin must survive is made in front of it.
    """

    def __init__(self, path: str, behind: str) -> None:
        self._behind = behind
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """From now on connections are accepted."""
        self._server = await asyncio.start_unix_server(self._accept, sock=self._socket)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_unix_connection(self._behind)
        await asyncio.gather(_pass_on(reader, back_writer), _pass_on(back_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
