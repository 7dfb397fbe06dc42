"""Whether a kubelet's socket is answered at all: a frozen process still accepts connections."""

from __future__ import annotations

import socket

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""HTTP/2 connection preface with empty SETTINGS (RFC 9113, 3.4). The server sends its own SETTINGS at once."""


def frozen(path: str, timeout: float = 1.0) -> bool:
    """True when somebody's socket takes the connection and then says nothing for `timeout` seconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(path)
            sock.sendall(_PREFACE)
            sock.recv(1)
        except TimeoutError:
            return True
        except OSError:
            return False
    return False
