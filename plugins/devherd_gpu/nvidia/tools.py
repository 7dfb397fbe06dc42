"""The driver's own programs, run as the driver they came with wants it: its root, a clean environment, a time limit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from devherd.trust import changeable

if TYPE_CHECKING:
    from devherd.host import Host


class Ended(NamedTuple):
    """What a program said, in one line, and its exit status; None: it did not run, or not to its end."""

    status: int | None
    said: str


def refused(host: Host, root: str, tool: str) -> str:
    """Why a tool (`/usr/bin/nvidia-smi`) below the driver's root is not run; empty: it may be."""
    path = host.path(os.path.join(root, tool.lstrip("/")))
    if not os.path.exists(path):
        return f"there is no {tool} below {root}"
    return changeable(path) if os.geteuid() == 0 else ""


def command(host: Host, root: str, tool: str, *args: str) -> list[str]:
    """The arguments to run it with. A containerised driver's tool needs the libraries beside it."""
    if root == "/":
        return [host.path(tool), *args]
    return ["/usr/sbin/chroot", host.path(root), tool, *args]


def run(words: list[str], seconds: float) -> Ended:
    """Run it to its end."""
    import subprocess  # only a probe that runs something pays for it

    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Ended(None, f"did not end within {seconds:g} s")
    except OSError as error:
        return Ended(None, f"{words[0]}: {error.strerror}")
    return Ended(done.returncode, " ".join(f"{done.stdout} {done.stderr}".split()))
