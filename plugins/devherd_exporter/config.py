"""`plugins.d/exporter.yaml`."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from devherd.settings import SECONDS, AbsolutePath, AbsolutePathOrEmpty
from msgspec import Meta, Struct

Hosts = tuple[str, ...]


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """What the TCP listener shows to its clients; both files are read again when they change."""

    certificate: Annotated[AbsolutePath, Meta(description="certificate chain, PEM")]
    key: Annotated[AbsolutePath, Meta(description="its private key, PEM; readable by the owner only")]


class Tcp(Struct, frozen=True, forbid_unknown_fields=True):
    """A TCP listener, for where neither the Unix socket nor the textfile will do."""

    port: Annotated[int, Meta(ge=1, le=65535, description="port to listen on")]
    address: Annotated[
        str, Meta(description="IP address to listen on; one that is not loopback needs `tls` and `token_file`")
    ] = "127.0.0.1"
    tls: Annotated[Tls | None, Meta(description="serve HTTPS; without it HTTP")] = None
    token_file: Annotated[
        AbsolutePathOrEmpty,
        Meta(
            description="file with the token (16 characters or more) that a client sends as `Authorization: Bearer`; "
            "readable by the owner only; empty: no token"
        ),
    ] = ""
    hosts: Annotated[
        Hosts,
        Meta(
            description="names that a request's Host header may have, beside localhost and IP addresses; "
            "any other is refused, so that no web page can read the metrics through a browser"
        ),
    ] = ()


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the metrics go."""

    socket: Annotated[
        bool, Meta(description="serve HTTP on the Unix socket `exporter.metrics.sock` in `paths.run`, mode 0600")
    ] = True
    socket_group: Annotated[
        str, Meta(description="group that may use the Unix socket too (mode 0660); empty: the owner only")
    ] = ""
    textfile: Annotated[
        str,
        Meta(
            pattern=r"^(auto|none|/.*\.prom)$",
            extra={"form": "`auto`, `none`, or an absolute path that ends in .prom"},
            description="file for node_exporter's textfile collector; auto: `devherd.prom` in the usual folder, "
            "if that exists",
        ),
    ] = "auto"
    textfile_interval: Annotated[
        float, Meta(ge=1, extra=SECONDS, description="pause between two writes of the textfile")
    ] = 15.0
    timeout: Annotated[
        float,
        Meta(gt=0, le=5, extra=SECONDS, description="a program that does not answer by then counts as down"),
    ] = 2.0
    pod_names: Annotated[
        bool,
        Meta(description="show which pod holds how many devices; off, because names of pods may tell secrets"),
    ] = False
    tcp: Annotated[Tcp | None, Meta(description="a TCP listener; without it there is none")] = None


def validate(config: Config) -> list[tuple[tuple[str | int, ...], str]]:
    """What the schema cannot say: a listener that others can reach is encrypted and asks for a token."""
    tcp = config.tcp
    if tcp is None:
        return []
    try:
        address = ipaddress.ip_address(tcp.address)
    except ValueError:
        return [(("tcp", "address"), f"{tcp.address!r} is no IP address; names are not looked up")]
    found: list[tuple[tuple[str | int, ...], str]] = []
    if not address.is_loopback:
        if tcp.tls is None:
            found.append((("tcp", "address"), f"{address} is not loopback: set tcp.tls too, or listen on 127.0.0.1"))
        if not tcp.token_file:
            found.append((("tcp", "address"), f"{address} is not loopback: set tcp.token_file too"))
    return found
