"""Who may read the metrics over TCP: the right Host header, and the token where one is set."""

from __future__ import annotations

import hmac
import ipaddress
import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

MIN_TOKEN = 16
"""Characters a token has at least."""


class Refusal(NamedTuple):
    """HTTP status and a text for the client; `log` is for the operator only."""

    status: int
    text: str
    log: str = ""


class Guard:
    """Checks requests. The token is read anew each time, so that it can be changed without a restart."""

    def __init__(self, hosts: tuple[str, ...], token_file: str) -> None:
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._token_file = token_file

    def check(self, headers: Mapping[str, str]) -> Refusal | None:
        """None: the request may pass."""
        if not self.host_allowed(headers.get("host", "")):
            return Refusal(403, "the Host header is not one of ours; see tcp.hosts in exporter.yaml")
        if not self._token_file:
            return None
        try:
            token = read_token(self._token_file)
        except (OSError, ValueError) as error:
            return Refusal(503, "the token cannot be checked; see the exporter's log", str(error))
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            return Refusal(401, "send the token: Authorization: Bearer ...")
        return None

    def host_allowed(self, value: str) -> bool:
        """An IP address, localhost, or a listed name, with or without a port.

        A page that makes a browser ask us by a name of its own (DNS rebinding) sends that name.
        """
        host = value.strip().lower()
        if host.startswith("["):
            host = host[1:].partition("]")[0]
        elif host.count(":") == 1:
            host = host.partition(":")[0]
        host = host.rstrip(".")
        if host == "localhost" or host in self._hosts:
            return bool(host)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def read_token(path: str) -> str:
    """The token in a file. Raises OSError, or ValueError for one that protects nothing."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise ValueError(f"{path}: must be a regular file that only its owner can read (chmod 600)")
        token = file.read(4096).decode("utf-8", "replace").strip()
    if len(token) < MIN_TOKEN:
        raise ValueError(f"{path}: the token is shorter than {MIN_TOKEN} characters")
    return token
