"""Rules for device nodes this machine really has, so that the walk also runs on something real.

Nothing is opened: only the names in /dev are looked at. The simulated kubelet starts no container, so no
process ever gets one of these nodes.
"""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import dataclass

DOMAIN = "machine.devherd.io"


@dataclass(frozen=True)
class Candidate:
    """A resource that a machine may have: its name, the pattern below /dev, and how many may share a node."""

    name: str
    pattern: str
    count: int = 1


CANDIDATES = (
    Candidate("null", "null", 4),
    Candidate("zero", "zero", 4),
    Candidate("urandom", "urandom", 4),
    Candidate("fuse", "fuse", 4),
    Candidate("tun", "net/tun", 4),
    Candidate("loop", "loop[0-9]*"),
    Candidate("kvm", "kvm", 4),
    Candidate("render", "dri/renderD*"),
    Candidate("infiniband", "infiniband/uverbs*"),
    Candidate("nvidia", "nvidia[0-9]*"),
    Candidate("kfd", "kfd"),
    Candidate("vfio", "vfio/[0-9]*"),
    Candidate("serial", "ttyUSB*"),
    Candidate("video", "video[0-9]*"),
)


def present(dev: str = "/dev", candidates: tuple[Candidate, ...] = CANDIDATES) -> list[Candidate]:
    """The candidates of which there is at least one device node."""
    return [item for item in candidates if any(map(_is_node, glob.glob(os.path.join(dev, item.pattern))))]


def rules(found: list[Candidate]) -> str:
    """A configuration of the generic plugin that offers them."""
    lines = [f"domain: {DOMAIN}", "devices:"]
    for item in found:
        lines += [
            f'  - name: "{item.name}"',
            "    groups:",
            f"      - count: {item.count}",
            "        paths:",
            f'          - path: "/dev/{item.pattern}"',
        ]
    return "\n".join(lines) + "\n"


def resource(item: Candidate) -> str:
    """The resource's full name."""
    return f"{DOMAIN}/{item.name}"


def _is_node(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
