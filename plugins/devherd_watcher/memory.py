"""What the watcher knows beyond its own life and supervisord's: `<paths.state>/watcher.json`, for this boot.

Plain JSON and no state library: reading and writing happen in a chore's child, and the watcher stays small.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

VERSION = 1
FILE = "watcher.json"

Process = tuple[int, int]
"""pid and start time: one life of a process."""


class Memory(NamedTuple):
    """The file's content.

    `stopped` are programs somebody stopped on purpose, under the supervisord `supervisor`. `dormant` are programs whose
    hardware is absent, with the state of their configuration files when they started. `failures` is each program's
    back-off, `starts` when (monotonic) watchers have started, `kubelet` the one last seen.
    """

    supervisor: Process = (0, 0)
    kubelet: Process = (0, 0)
    stopped: tuple[str, ...] = ()
    dormant: dict[str, Any] = {}
    failures: dict[str, Any] = {}
    starts: tuple[float, ...] = ()


def load(path: str, boot: str) -> tuple[Memory, str]:
    """What the file says, and what is wrong with it. Another boot's is forgotten: programs start as configured."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return Memory(), ""
    except (OSError, ValueError, RecursionError) as error:
        return Memory(), f"{path} cannot be read, manual stops are forgotten: {error}"
    if not isinstance(content, dict) or content.get("version") != VERSION or content.get("boot") != boot:
        return Memory(), ""
    return decode(content), ""


def decode(content: dict[str, Any]) -> Memory:
    """A memory from anything; what is not as it should be counts as not there."""

    def process(key: str) -> Process:
        value = content.get(key)
        good = isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)
        return (value[0], value[1]) if good else (0, 0)  # type: ignore[index]

    def several(key: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
        value = content.get(key)
        return tuple(item for item in value if type(item) in kinds) if isinstance(value, list) else ()

    def mapping(key: str) -> dict[str, Any]:
        value = content.get(key)
        return value if isinstance(value, dict) else {}

    return Memory(
        process("supervisor"),
        process("kubelet"),
        several("stopped", (str,)),
        mapping("dormant"),
        mapping("failures"),
        several("starts", (float, int)),
    )


def save(path: str, boot: str, memory: Memory) -> None:
    """Write the file, all or nothing. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump({"version": VERSION, "boot": boot, **memory._asdict()}, file)
    os.replace(temporary, path)
