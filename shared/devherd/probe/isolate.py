"""What makes a probe safe to hang: it keeps nothing of its front and does not outlive it."""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType

from devherd.process import close_all_but, die_with_parent

QUIET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals meant for the front that reach its group: when to end is the front's decision."""


def isolate(fd: int) -> socket.socket:
    """Cut all ties but the socketpair `fd`. Raises SystemExit when the front is gone already.

    Descriptors 1 and 2 both become the error stream, so that a stray print of a vendor library lands in the log.
    """
    die_with_parent(signal.SIGKILL)
    close_all_but((0, 1, 2, fd))
    _standard_streams()
    for number in QUIET:
        # A handler, not SIG_IGN: programs that a vendor starts must not inherit the deafness.
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    if _ended(sock):
        raise SystemExit("the front ended before its probe had started")
    return sock


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _standard_streams() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(null, 1)
        os.dup2(null, 2)
    if null > 2:
        os.close(null)


def _ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
