"""The file for node_exporter's textfile collector: written whole or not at all, removed at the end."""

from __future__ import annotations

import contextlib
import os

FOLDERS = ("/var/lib/prometheus/node-exporter", "/var/lib/node_exporter/textfile_collector")
"""Where distributions' node_exporters look (Debian's and Ubuntu's; the common one elsewhere)."""
NAME = "devherd.prom"


def place(setting: str, root: str) -> str:
    """The file to write for `textfile` in exporter.yaml, below `paths.root`; empty: none."""
    if setting == "none":
        return ""
    if setting != "auto":
        return setting
    for folder in FOLDERS:
        real = os.path.join(root, folder.lstrip("/"))
        if os.path.isdir(real):
            return os.path.join(real, NAME)
    return ""


def write(path: str, content: bytes) -> None:
    """Replace the file. node_exporter, which may be another user, can read it. Raises OSError.

    No fsync: after a power cut it is written anew anyway. The temporary name does not end in .prom, so it is not read.
    """
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove(path: str) -> None:
    """Remove the file, or node_exporter would show its last values for ever."""
    with contextlib.suppress(OSError):
        os.unlink(path)
