"""The other way to register: the kubelet watches `plugins_registry` and asks each socket in it who it is.

Looks once a second, as the real one's reconciler does. Its messages (pluginregistration v1) are few and small, so they
are read and written here by hand: PluginInfo is type=1, name=2, endpoint=3, supported_versions=4, all strings;
RegistrationStatus is plugin_registered=1 (bool), error=2 (string).
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct

from devherd.sim.eventlog import EventLog
from devherd.sim.names import extended_resource
from devherd.sim.plugin import PluginError, go_text
from devherd.sim.registrar import VERSIONS, Registrar

FOLDER = "plugins_registry"
_TYPE = "DevicePlugin"
_PERIOD = 1.0
_PAUSE, _PAUSE_MAX = 0.5, 122.0
_DIAL, _ASK, _TELL = 10.0, 1.0, 5.0
_SERVICE = "/pluginregistration.Registration/"
_CHANNEL = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]

Identity = tuple[int, int]


class _Info(Struct):
    """What a plugin says of itself."""

    type: str = ""
    name: str = ""
    endpoint: str = ""
    versions: list[str] = []


class RegistryWatcher:
    """Desired is what lies in the folder, actual is what is registered; once a second one is made the other."""

    def __init__(self, folder: str, registrar: Registrar, log: EventLog, gate: Callable[[], Awaitable[None]]) -> None:
        self.folder = folder
        self._registrar = registrar
        self._log = log
        self._gate = gate
        self._actual: dict[str, tuple[Identity, _Info]] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, tuple[float, float]] = {}

    async def run(self) -> None:
        """For ever."""
        os.makedirs(self.folder, mode=0o750, exist_ok=True)
        while True:
            await self._gate()
            desired = dict(_sockets(self.folder))
            for path, (identity, info) in list(self._actual.items()):
                if desired.get(path) != identity:
                    del self._actual[path]
                    await self._registrar.deregister(info.name, info.endpoint)
            now = asyncio.get_running_loop().time()
            for path, identity in desired.items():
                due = self._pauses.get(path, (0.0, 0.0))[1] <= now
                if path not in self._actual and path not in self._busy and due:
                    self._busy[path] = asyncio.create_task(self._try(path, identity))
            await asyncio.sleep(_PERIOD)

    async def _try(self, path: str, identity: Identity) -> None:
        try:
            await self._register(path, identity)
            self._pauses.pop(path, None)
        except PluginError as error:
            self._log("registry-failed", path=path, error=str(error))
            pause = min(_PAUSE_MAX, self._pauses.get(path, (_PAUSE / 2, 0.0))[0] * 2)
            self._pauses[path] = (pause, asyncio.get_running_loop().time() + pause)
        finally:
            self._busy.pop(path, None)

    async def _register(self, path: str, identity: Identity) -> None:
        async with grpc.aio.insecure_channel("unix:" + path, options=_CHANNEL) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), _DIAL)
            except asyncio.TimeoutError:
                raise PluginError(f"dial failed at socket {path}") from None
            info = _info(await _call(channel, "GetInfo", b"", _ASK))
            info.endpoint = info.endpoint or path
            try:
                _validate(info, path)
                self._actual[path] = (identity, info)
                await self._connect(info, path)
            except PluginError as error:
                await _call(channel, "NotifyRegistrationStatus", _status(str(error)), _TELL)
                raise
            try:
                await _call(channel, "NotifyRegistrationStatus", _status(""), _TELL)
            except PluginError:
                del self._actual[path]
                await self._registrar.deregister(info.name, info.endpoint)
                raise

    async def _connect(self, info: _Info, path: str) -> None:
        try:
            await self._registrar.connect(info.name, info.endpoint, info.endpoint)
        except PluginError as error:
            del self._actual[path]
            raise PluginError(f"RegisterPlugin error -- plugin registration failed with err: {error}") from error


def _sockets(folder: str) -> Iterator[tuple[str, Identity]]:
    """Sockets below a folder, but for those whose name begins with a dot."""
    for where, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(where, name)
            try:
                found = os.stat(path)
            except OSError:
                continue
            if stat.S_ISSOCK(found.st_mode) and not name.startswith("."):
                yield path, (found.st_ino, found.st_ctime_ns)


def _validate(info: _Info, path: str) -> None:
    failed = "RegisterPlugin error -- plugin validation failed with err:"
    if info.type != _TYPE:
        text = f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {path}"
        raise PluginError(text)
    if not set(info.versions) & set(VERSIONS):
        among = f"manager version, {VERSIONS[0]}, is not among plugin supported versions [{' '.join(info.versions)}]"
        raise PluginError(f"{failed} {among}")
    if not extended_resource(info.name):
        what = f'the ResourceName "{info.name}" is invalid'
        raise PluginError(f"{failed} invalid name of device plugin socket: {what}")


async def _call(channel: grpc.aio.Channel, method: str, request: bytes, timeout: float) -> bytes:
    try:
        ask: Any = channel.unary_unary(_SERVICE + method)
        return bytes(await ask(request, timeout=timeout))
    except grpc.aio.AioRpcError as error:
        raise PluginError(go_text(error)) from error


def _info(message: bytes) -> _Info:
    """Decode PluginInfo: every field is a length and that many bytes."""
    info = _Info()
    at = 0
    while at < len(message):
        number, size, shift = message[at] >> 3, 0, 0
        at += 1
        while True:
            size |= (message[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not message[at - 1] & 0x80:
                break
        text = message[at : at + size].decode()
        at += size
        if number == 4:
            info.versions.append(text)
        else:
            setattr(info, {1: "type", 2: "name", 3: "endpoint"}[number], text)
    return info


def _status(error: str) -> bytes:
    """Encode RegistrationStatus: registered where there is no error."""
    if not error:
        return b"\x08\x01"
    text = error.encode()
    size = len(text)
    length = b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return b"\x12" + length + bytes([size]) + text
