"""All of /dev below its folders, for rules that match by regular expression."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devherd.host import Entry, View

DEPTH = 8
# Terminals, shared memory and message queues of whoever runs; links to the reader's own descriptors.
LEFT_OUT = frozenset(("/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/fd"))


def walk(view: View, folder: str = "/dev", depth: int = DEPTH) -> Iterator[tuple[str, Entry]]:
    """Every path and what it leads to, folder by folder; a link to a folder is not entered."""
    for name in view.names(folder):
        path = f"{folder}/{name}"
        if path in LEFT_OUT:
            continue
        entry = view.entry(path)
        yield path, entry
        if entry.type == "dir" and entry.path == path and depth > 1:
            yield from walk(view, path, depth - 1)


def nodes(view: View, folder: str) -> Iterator[tuple[str, Entry]]:
    """The device nodes in a folder and its folders; links are other names of nodes and not followed."""
    for path, entry in walk(view, folder):
        if entry.is_node and entry.path == path:
            yield path, entry
