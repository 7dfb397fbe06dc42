"""Start a probe: a fresh exec that inherits one end of a socketpair and nothing else.

Kept apart and light, so that a front can start its probe before it imports grpc.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import NamedTuple

from devherd.trust import ours


class Spawned(NamedTuple):
    """A probe process and the front's end of its socketpair (blocking, as made)."""

    process: subprocess.Popen[bytes]
    sock: socket.socket

    @property
    def pid(self) -> int:
        """The probe's process id."""
        return self.process.pid


def python_command() -> list[str]:
    """The interpreter as this process runs it: isolated if it is, and with the same compiled-code folder."""
    command = [sys.executable, "-I"] if sys.flags.isolated else [sys.executable]
    if sys.pycache_prefix:
        command += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return command


def early_probe(plugin: str, manifest: str) -> Spawned | None:
    """A probe before the settings are known; None where they have to allow it first, or where none can be started."""
    if not ours(manifest):
        return None
    try:
        return spawn_probe(plugin, manifest)
    except OSError:
        # The front starts one itself later on, and says why it cannot.
        return None


def spawn_probe(plugin: str, manifest: str) -> Spawned:
    """Exec a probe for `manifest` (`module:attribute`). Raises OSError when it cannot be started.

    The child stays in the front's process group, so that supervisord's group signals reach it, and dies with
    its parent. subprocess closes every other descriptor, the instance lock among them.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    arguments = ["--plugin", plugin, "--manifest", manifest, "--fd", str(theirs.fileno())]
    try:
        process = subprocess.Popen(
            [*python_command(), "-m", "devherd.probe", *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            close_fds=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return Spawned(process, ours)
