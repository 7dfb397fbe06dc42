"""A very small HTTP server: GET of one page, nothing kept, nothing waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from devherd.log import event
from devherd.patience import within

from devherd_exporter.guard import Guard

logger = logging.getLogger(__name__)

MAX_HEAD = 8192
"""Longest request in bytes; there is no body."""
PATIENCE = 5.0
"""Seconds a client may take to send its request, and again to take its answer."""
MAX_CLIENTS = 16
"""Clients at once; further ones are told so."""

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Given the Accept header, returns body and content type."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_PLAIN = "text/plain; charset=utf-8"
_INDEX = b"devherd exporter; the metrics are at /metrics\n"


class Answer:
    """A whole HTTP answer."""

    def __init__(self, status: int, body: bytes, content_type: str = _PLAIN) -> None:
        self.status, self.body, self.content_type = status, body, content_type

    @classmethod
    def error(cls, status: int, text: str) -> Answer:
        """A short text with a status."""
        return cls(status, text.encode() + b"\n")

    def encode(self, head_only: bool = False) -> bytes:
        """As bytes; the connection is always closed after it."""
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if self.status == 401:
            lines.append("WWW-Authenticate: Bearer")
        if self.status == 405:
            lines.append("Allow: GET, HEAD")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if head_only else self.body)


class Web:
    """Answers clients of any listener: pass `client` to asyncio's servers. No guard: whoever connects may read."""

    def __init__(self, page: Page, guard: Guard | None = None) -> None:
        self._page = page
        self._guard = guard
        self._clients = 0

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._clients += 1
        try:
            writer.write(await self._serve(reader))
            await within(writer.drain(), PATIENCE)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._clients -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader) -> bytes:
        if self._clients > MAX_CLIENTS:
            return Answer.error(503, "too many clients").encode()
        try:
            head = await within(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        except asyncio.LimitOverrunError:
            return Answer.error(400, "the request is too long").encode()
        request = parse(head)
        if request is None:
            return Answer.error(400, "this is no HTTP request").encode()
        method, path, headers = request
        return (await self._answer(method, path, headers)).encode(head_only=method == "HEAD")

    async def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        refusal = self._guard.check(headers) if self._guard is not None else None
        if refusal is not None:
            if refusal.log:
                event(logger, "error", "request refused", reason=refusal.log)
            return Answer.error(refusal.status, refusal.text)
        if method not in ("GET", "HEAD"):
            return Answer.error(405, "only GET and HEAD")
        place = path.partition("?")[0]
        if place == "/":
            return Answer(200, _INDEX)
        if place != "/metrics":
            return Answer.error(404, "the metrics are at /metrics")
        try:
            body, content_type = await self._page(headers.get("accept", ""))
        except Exception:
            logger.exception("metrics cannot be made")
            return Answer.error(500, "the exporter failed; see its log")
        return Answer(200, body, content_type)


def parse(head: bytes) -> tuple[str, str, dict[str, str]] | None:
    """Method, path and headers (names in lower case); None if it is no HTTP/1 request.

    A header that comes twice is refused where it decides something: two readers might believe different ones.
    """
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            break
        name, colon, value = line.partition(":")
        key = name.lower()
        if not colon or not name or name != name.strip() or (key in headers and key in ("host", "authorization")):
            return None
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    return words[0], words[1], headers
