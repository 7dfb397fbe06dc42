"""The way to the kubelet's Registration service: one channel per kubelet, shared by all resources of a process."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum

import grpc
import grpc.aio

from devherd.kubelet.encode import encode_register
from devherd.kubelet.identity import Identity

_METHOD = "/v1beta1.Registration/Register"
_OWN_METHOD = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
_LINGER = 2.0  # seconds an unused channel stays open, so that a burst of resources shares it
_OPTIONS = (
    # The kubelet's Go server refuses the percent-encoded path that gRPC would send for a Unix socket.
    ("grpc.default_authority", "localhost"),
    # A shared subchannel would bring its back-off from the kubelet before.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


class Refused(str, Enum):
    """Why a registration failed, by what helps."""

    PERMANENT = "permanent"
    """The name or the version: only a change of configuration helps."""
    DIAL = "dial"
    """The kubelet cannot reach our socket."""
    CONNECTED = "connected"
    """The kubelet counts the path as connected, rightly or not; another path helps (from 1.37 on)."""
    PLUGIN = "plugin"
    """The kubelet reached us and did not like the answer, or refuses for a reason we do not know."""
    AWAY = "away"
    """The kubelet went away or another one came."""
    TIMEOUT = "timeout"
    """No answer in time."""


class RegisterError(Exception):
    """A failed Register call; the text is the kubelet's."""

    def __init__(self, kind: Refused, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Line:
    """A channel to one kubelet, and how many calls are using it."""

    def __init__(self, path: str, identity: Identity) -> None:
        self.identity = identity
        self.channel = grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS)
        self.register: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(_METHOD)
        self.calls = 0
        self.closed = False
        self.timer: asyncio.TimerHandle | None = None


class KubeletLink:
    """Sends Register. `deadline` is in seconds; the kubelet's own dial back to us may take ten."""

    def __init__(self, socket_path: str, *, deadline: float = 15.0) -> None:
        self._path = socket_path
        self._deadline = deadline
        self._line: _Line | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._warm = False

    async def warm_up(self, own_socket: str) -> None:
        """Call one of our own servers once: the first Register must not pay for what gRPC makes on first use."""
        if self._warm:
            return
        self._warm = True
        channel = grpc.aio.insecure_channel(f"unix:{own_socket}", options=_OPTIONS)
        with contextlib.suppress(grpc.aio.AioRpcError):
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_OWN_METHOD)
            await call(b"", timeout=1.0)
        await _close(channel)

    async def register(self, identity: Identity, endpoint: str, resource: str, options: tuple[bool, bool]) -> None:
        """Offer a resource to this kubelet. Raises RegisterError."""
        line = self._line_to(identity)
        line.calls += 1
        call = line.register(encode_register(endpoint, resource, options), timeout=self._deadline)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            failure = _classified(error)
            if failure.kind in (Refused.AWAY, Refused.TIMEOUT):
                self._drop(line)
            raise failure from None
        except asyncio.CancelledError:
            if not line.closed:
                call.cancel()
                raise
            raise RegisterError(Refused.AWAY, "another kubelet has come") from None
        finally:
            line.calls -= 1
            self._let_go(line)

    def abandon(self, identity: Identity) -> None:
        """End every call to any other kubelet than this one."""
        if self._line is not None and self._line.identity != identity:
            self._drop(self._line)

    async def close(self) -> None:
        """Close the channel."""
        if self._line is not None:
            self._drop(self._line)
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

    def _line_to(self, identity: Identity) -> _Line:
        self.abandon(identity)
        if self._line is None:
            self._line = _Line(self._path, identity)
        if self._line.timer is not None:
            self._line.timer.cancel()
            self._line.timer = None
        return self._line

    def _let_go(self, line: _Line) -> None:
        if line.calls == 0 and not line.closed:
            line.timer = asyncio.get_running_loop().call_later(_LINGER, self._drop, line)

    def _drop(self, line: _Line) -> None:
        if line.closed:
            return
        line.closed = True
        if line.timer is not None:
            line.timer.cancel()
        if self._line is line:
            self._line = None
        task = asyncio.get_running_loop().create_task(_close(line.channel))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(channel: grpc.aio.Channel) -> None:
    with contextlib.suppress(Exception):
        await channel.close()


def _classified(error: grpc.aio.AioRpcError) -> RegisterError:
    """Sort a failure. The kubelet gives every refusal the code UNKNOWN; only its texts differ."""
    code, text = error.code(), error.details() or ""
    low = text.lower()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        kind = Refused.AWAY
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        kind, text = Refused.TIMEOUT, "the kubelet did not answer Register in time"
    elif "failed to dial" in low:
        kind = Refused.DIAL
    elif code is grpc.StatusCode.UNIMPLEMENTED or (
        ("version" in low and "support" in low) or ("resourcename" in low and "invalid" in low)
    ):
        kind = Refused.PERMANENT
    else:
        kind = Refused.CONNECTED if "already connected" in text else Refused.PLUGIN
    return RegisterError(kind, text or str(code))
