"""The gRPC server of one resource: all five methods of v1beta1.DevicePlugin, answered from memory.

Messages cross as bytes and are decoded here, so that a malformed one is an INVALID_ARGUMENT and a list is encoded
once for all streams. The kubelet waits for Allocate without a deadline: nothing here waits for a disk or a driver.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from devherd.api import deviceplugin_v1beta1_pb2 as pb
from devherd.kubelet import encode
from devherd.kubelet.endpoint import Endpoint
from devherd.kubelet.feed import SnapshotFeed
from devherd.kubelet.identity import Identity
from devherd.values import Composed, Snapshot

_LOG = logging.getLogger(__name__)
_TEXT_MAX = 200
# Nothing that cuts an idle stream: each cut takes the devices away for a moment. Pings never count as abuse.
_OPTIONS = (("grpc.http2.max_ping_strikes", 0),)
_M = TypeVar("_M", bound=Message)


class Refusal(Exception):
    """A request that cannot be met. The text is short: it ends up in the pod's status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


class PreferredRequest(Struct, frozen=True):
    """The kubelet's question for one container: `size` devices out of `available`, `must_include` among them."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


class Handler(Protocol):
    """What the front knows about a resource. Called on the event loop; only `pre_start` may take time."""

    def options(self) -> tuple[bool, bool]:
        """Return (PreStartContainer wanted, preferred allocation offered)."""
        ...

    def allocate(self, containers: Sequence[Sequence[str]]) -> Sequence[Composed]:
        """Return one answer per container, or raise Refusal."""
        ...

    def preferred(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        """Return the chosen ids per container; advice only."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Make devices ready for a container about to start, or raise Refusal (the kubelet retries)."""
        ...


class Stream:
    """One open ListAndWatch call, of the kubelet `identity` names.

    `sent` is the list it was sent last, `since` Unix seconds, `opened_at` and `sent_at` monotonic seconds.
    """

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        self.identity: Identity | None = None
        self.sent: Snapshot | None = None
        self.since = time.time()
        self.opened_at = time.monotonic()
        self.sent_at = 0.0
        self.was_cut = False
        self._task = task

    def cut(self) -> None:
        """End it from our side, even if a message is stuck on its way."""
        self.was_cut = True
        if self._task is not None:
            self._task.cancel()


class ResourceServer:
    """Serves one resource on one socket. `feed` is where its snapshots are published.

    `on_streams` is called when a stream opened, sent, or ended. A socket whose file was lost is replaced by
    `bind` while the old server lives on until its streams end.
    """

    def __init__(self, resource: str, handler: Handler) -> None:
        self.resource = resource
        self.handler = handler
        self.feed = SnapshotFeed()
        self.on_streams: Callable[[Stream], None] | None = None
        self._streams: dict[Stream, grpc.aio.Server] = {}
        self._server: grpc.aio.Server | None = None
        self._retired: set[grpc.aio.Server] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The open streams, oldest first."""
        return tuple(self._streams)

    async def bind(self, endpoint: Endpoint) -> None:
        """Listen on the endpoint with a new server. Raises OSError or EndpointError."""
        private = endpoint.private()
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((self._handlers(server),))
        try:
            server.add_insecure_port(f"unix:{private}")
            await server.start()
            endpoint.adopt(private)
        except BaseException as error:
            # An error or a cancellation on the way leaves nothing behind. Not sooner among the retired: a stream that
            # ends meanwhile has those stopped that serve none.
            self._retired.add(server)
            self._stop_retired()
            if isinstance(error, RuntimeError):
                raise OSError(f"cannot listen on {private}: {error}") from error
            raise
        if self._server is not None:
            self._retired.add(self._server)
        self._server = server
        self._stop_retired()

    async def stop(self, grace: float = 0.0) -> None:
        """Refuse new calls, end the streams, let running calls finish for `grace` seconds."""
        self._closing = True
        for stream in self.streams:
            stream.cut()
        servers = [*self._retired, *([self._server] if self._server else [])]
        self._server = None
        self._retired.clear()
        await asyncio.gather(*(server.stop(grace) for server in servers), *self._tasks, return_exceptions=True)

    def cut_streams(self) -> None:
        """End all streams from our side."""
        for stream in self.streams:
            stream.cut()

    def _handlers(self, server: grpc.aio.Server) -> grpc.GenericRpcHandler:
        async def list_and_watch(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await self._list_and_watch(server, context)

        unary = grpc.unary_unary_rpc_method_handler
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": unary(self._answering(self._options)),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch),
            "GetPreferredAllocation": unary(self._answering(self._preferred)),
            "Allocate": unary(self._answering(self._allocate)),
            "PreStartContainer": unary(self._answering(self._pre_start)),
        }
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)

    def _answering(self, method: Callable[[bytes], Awaitable[bytes]]) -> Any:
        async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            try:
                return await method(request)
            except Refusal as refusal:
                await _refuse(context, refusal.code, refusal.text)
            except DecodeError:
                await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "malformed request")
            except Exception:
                _LOG.exception("a call failed", extra={"fields": {"resource": self.resource}})
                await _refuse(context, grpc.StatusCode.INTERNAL, "devherd failed; see its log")

        return answer

    async def _options(self, _request: bytes) -> bytes:
        return encode.encode_options(self.handler.options())

    async def _allocate(self, request: bytes) -> bytes:
        if self._closing:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "devherd is stopping")
        asked = _decode(pb.AllocateRequest, request)
        answers = self.handler.allocate([tuple(container.devices_ids) for container in asked.container_requests])
        return encode.encode_answers(answers)

    async def _preferred(self, request: bytes) -> bytes:
        asked = _decode(pb.PreferredAllocationRequest, request)
        requests = [
            PreferredRequest(tuple(one.available_deviceIDs), tuple(one.must_include_deviceIDs), one.allocation_size)
            for one in asked.container_requests
        ]
        try:
            return encode.encode_preferred(self.handler.preferred(requests))
        except Exception:
            # An error would fail the pod; without advice the kubelet just chooses by itself.
            _LOG.exception("preferred allocation failed", extra={"fields": {"resource": self.resource}})
            return encode.encode_preferred([() for _ in requests])

    async def _pre_start(self, request: bytes) -> bytes:
        await self.handler.pre_start(tuple(_decode(pb.PreStartContainerRequest, request).devices_ids))
        return b""

    async def _list_and_watch(self, server: grpc.aio.Server, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        if self._closing:
            return
        stream = Stream(asyncio.current_task())

        def sent(snapshot: Snapshot) -> None:
            if stream.sent is not snapshot:
                stream.sent, stream.sent_at = snapshot, time.monotonic()
                self._tell(stream)

        self._streams[stream] = server
        self._tell(stream)
        try:
            await self.feed.follow(context.write, sent)
        except asyncio.CancelledError:
            if not stream.was_cut:
                raise
        except Exception as error:
            # The kubelet went away in the middle of a message; its end of the stream says no more than that.
            _LOG.debug("a stream broke: %s", error, extra={"fields": {"resource": self.resource}})
        finally:
            del self._streams[stream]
            self._tell(stream)
            self._stop_retired()

    def _tell(self, stream: Stream) -> None:
        if self.on_streams is not None:
            self.on_streams(stream)

    def _stop_retired(self) -> None:
        busy = set(self._streams.values())
        for server in [one for one in self._retired if one not in busy]:
            self._retired.discard(server)
            task = asyncio.get_running_loop().create_task(server.stop(5.0))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _decode(kind: type[_M], data: bytes) -> _M:
    return kind.FromString(data)


async def _refuse(context: grpc.aio.ServicerContext[bytes, bytes], code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort raises")
