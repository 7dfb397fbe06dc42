"""Whether the MPS daemon of a resource serves: a file with the pid of the program that looks after it."""

from __future__ import annotations

import contextlib
import os

FILE = "ready"


def announce(root: str, resource: str, pid: int) -> None:
    """It serves. `root` is where `mps_root` really is."""
    path = os.path.join(root, resource, FILE)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(f"{pid}\n")
    os.replace(path + ".new", path)


def withdraw(root: str, resource: str) -> None:
    """It does not."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, resource, FILE))


def problem(root: str, resource: str, proc: str) -> str:
    """Why shares of the resource cannot be given; empty when the daemon serves."""
    try:
        with open(os.path.join(root, resource, FILE), encoding="ascii") as file:
            pid = int(file.read())
    except (OSError, ValueError):
        return f"no MPS daemon serves {resource} yet: see gpu-nvidia-mps.log (supervisorctl status gpu-nvidia-mps)"
    if not os.path.isdir(os.path.join(proc, str(pid))):
        return f"the MPS daemon of {resource} is gone (pid {pid}): see gpu-nvidia-mps.log"
    return ""
