"""Forks simulated kubelets from a process that has everything imported: a restart takes milliseconds, not an exec.

Each kubelet is a process of its own, with a new pid and start time, as plugins identify it. Nothing of
gRPC may have been used before a fork, so this process only imports it. JSON lines on standard input
(`{"argv": [...], "stderr": path}`, `{"pid": n, "signal": n}`) and output (`{"pid": n}`, later `{"pid": n,
"exit": code}`, negative for a signal); at end of input it kills what it started and ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
from typing import Any, NoReturn

from devherd.sim import kubelet

PR_SET_PDEATHSIG = 1


def _child(argv: list[str], stderr: str, parent: int) -> NoReturn:
    code = 70
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(70)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600) if stderr else null, 2)
        os.closerange(3, 64)
        kubelet.main(argv)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 2
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


class Zygote:
    """Starts, signals and reaps; only ever signals children it has not reaped, so no pid can be someone else's."""

    def __init__(self) -> None:
        self._children: set[int] = set()
        self._pid = os.getpid()

    def handle(self, request: dict[str, Any]) -> None:
        """Start a kubelet, or send one a signal."""
        if "argv" in request:
            pid = os.fork()
            if pid == 0:
                _child(request["argv"], request.get("stderr", ""), self._pid)
            self._children.add(pid)
            _say({"pid": pid})
        elif request["pid"] in self._children:
            os.kill(request["pid"], request["signal"])

    def reap(self) -> None:
        """Report children that ended."""
        for pid in list(self._children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._children.discard(pid)
                _say({"pid": pid, "exit": os.waitstatus_to_exitcode(status)})

    def end(self) -> None:
        """Kill what is left."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> int:
    """Serve until standard input ends."""
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ctrl-C reaches the whole foreground group; who started us decides when the kubelet goes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    zygote = Zygote()
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 512)
            zygote.reap()
        if 0 not in ready:
            continue
        piece = os.read(0, 65536)
        if not piece:
            zygote.end()
            return 0
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            zygote.handle(json.loads(line))


if __name__ == "__main__":
    sys.exit(main())
