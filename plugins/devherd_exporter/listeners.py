"""The exporter's listeners: a Unix socket, and TCP where it is configured."""

from __future__ import annotations

import asyncio
import grp
import os
import ssl

from devherd.control import Published

from devherd_exporter.config import Tcp, Tls
from devherd_exporter.guard import Guard, read_token
from devherd_exporter.web import MAX_HEAD, PATIENCE, Page, Web


class UnixListener:
    """HTTP on a Unix socket. Its mode says who may read, so there is no other check."""

    def __init__(self, path: str, group: str, page: Page) -> None:
        self._path = path
        self._group = group
        self._web = Web(page)
        self._published: Published | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. Raises OSError, or ValueError for a group that does not exist."""
        group = group_id(self._group) if self._group else -1
        published = Published(self._path)
        try:
            if group >= 0:
                os.chown(self._path, -1, group)
                os.chmod(self._path, 0o660)
            self._server = await asyncio.start_unix_server(self._web.client, sock=published.sock, limit=MAX_HEAD)
        except BaseException:
            published.withdraw()
            raise
        self._published = published

    async def close(self) -> None:
        """Stop and remove the file."""
        if self._server is not None:
            self._server.close()
        if self._published is not None:
            self._published.withdraw()
        self._server = self._published = None


class TcpListener:
    """HTTP or HTTPS on a port, guarded."""

    def __init__(self, config: Tcp, page: Page) -> None:
        self._config = config
        self._web = Web(page, Guard(config.hosts, config.token_file))
        self._context: ssl.SSLContext | None = None
        self._files: tuple[tuple[int, int], ...] = ()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. Raises OSError or ValueError, saying which file or address will not do."""
        config = self._config
        if config.token_file:
            read_token(config.token_file)
        if config.tls is not None:
            self._files = _stamps(config.tls)
            self._context = _context(config.tls)
        self._server = await asyncio.start_server(
            self._web.client,
            config.address,
            config.port,
            limit=MAX_HEAD,
            ssl=self._context,
            ssl_handshake_timeout=PATIENCE if self._context else None,
        )

    def refresh(self) -> None:
        """Use a certificate that was renewed. Raises OSError or ValueError; the old one stays in use then."""
        tls = self._config.tls
        if self._context is None or tls is None or (stamps := _stamps(tls)) == self._files:
            return
        # A pair that does not fit is not loaded half: it is tried on a context of its own first.
        _context(tls)
        _load(self._context, tls)
        self._files = stamps

    async def close(self) -> None:
        """Stop."""
        if self._server is not None:
            self._server.close()
        self._server = None


def group_id(name: str) -> int:
    """A group's number. Raises ValueError."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"socket_group: there is no group {name!r}") from None


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: Tls) -> None:
    if os.stat(tls.key).st_mode & 0o077:
        raise ValueError(f"{tls.key}: a private key must be readable by its owner only (chmod 600)")
    try:
        # Without a password callback an encrypted key would make OpenSSL ask on a terminal.
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
    except ssl.SSLError as error:
        raise ValueError(f"{tls.certificate} and {tls.key} cannot be used: {error.reason or error}") from None


def _stamps(tls: Tls) -> tuple[tuple[int, int], ...]:
    found = []
    for path in (tls.certificate, tls.key):
        status = os.stat(path)
        found.append((status.st_ino, status.st_mtime_ns))
    return tuple(found)
