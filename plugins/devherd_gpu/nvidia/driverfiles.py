"""The running driver's own files: libraries of its version, tools, firmware, sockets. What a container needs of it.

Only files whose name ends with the running kernel module's version are taken: a library of another version, left by an
upgrade, would not talk to it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from devherd_gpu.nvidia.nvml import FOLDERS

if TYPE_CHECKING:
    from devherd.host import View

TOOLS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_TOOL_FOLDERS = ("usr/bin", "bin", "usr/sbin")
_BELOW = ("", "vdpau", "gbm")
"""Folders below a library folder that hold more of the driver."""
SOCKETS = (
    "/run/nvidia-persistenced/socket",
    "/run/nvidia-fabricmanager/socket",
)
_FIRMWARE = ("lib/firmware/nvidia", "usr/lib/firmware/nvidia")
CUDA = re.compile(r"libcuda\.so\.[0-9.]+")


_OTHER_STEMS = frozenset({"libGLX_indirect"})
"""Links to one of the driver's libraries under another name."""


class Library(Struct, frozen=True):
    """A library: its path without the driver's root, and what else in its folder leads to it (`libcuda.so.1`)."""

    path: str
    links: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its file name."""
        return posixpath.basename(self.path)


class DriverFiles(Struct, frozen=True):
    """All of it, by paths without the driver's root. `problem`: what is missing that nothing works without."""

    libraries: tuple[Library, ...] = ()
    tools: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    problem: str = ""


class Cache:
    """The files as long as the driver's version and the folders that hold them are the same: a look costs much."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._found = DriverFiles()

    def find(self, view: View, root: str, version: str) -> DriverFiles:
        """As `find`."""
        key = (root, version, *_changed(view, root), *(view.entry(path).exists for path in SOCKETS))
        if key != self._key:
            self._found, self._key = find(view, root, version), key
        return self._found


def _changed(view: View, root: str) -> Iterator[int]:
    """When something last came to or went from each folder."""
    places = (view.host.path(joined(root, f"/{folder}")) for folder in (*FOLDERS, *_TOOL_FOLDERS))
    return (_modified(place) for place in places)


def _modified(place: str) -> int:
    try:
        return os.stat(place).st_mtime_ns
    except OSError:
        return 0


def find(view: View, root: str, version: str) -> DriverFiles:
    """Look below the driver's root (logical). `version` is the running module's, `580.95.05`."""
    libraries = tuple(_libraries(view, root, version))
    problem = ""
    if not any(CUDA.fullmatch(library.name) for library in libraries):
        problem = (
            f"there is no libcuda.so.{version} below {root}: the driver's libraries are missing or of another version"
        )
    return DriverFiles(
        libraries=libraries,
        tools=tuple(_tools(view, root)),
        firmware=tuple(_firmware(view, root, version)),
        sockets=tuple(path for path in SOCKETS if view.entry(path).exists),
        problem=problem,
    )


def joined(root: str, path: str) -> str:
    """Where a file of the driver really is (logical)."""
    return path if root == "/" else root.rstrip("/") + path


def _libraries(view: View, root: str, version: str) -> Iterator[Library]:
    seen: set[str] = set()
    for folder in FOLDERS:
        for below in _BELOW:
            place = posixpath.join("/", folder, below).rstrip("/")
            names = view.names(joined(root, place))
            leads = _links(view, root, place, names, version)
            for name in names:
                real = view.entry(joined(root, f"{place}/{name}")).path
                # /lib64 is a link to /usr/lib64 on most systems: the same file under another name.
                if ".so." in name and name.endswith(f".so.{version}") and real not in seen:
                    seen.add(real)
                    yield Library(f"{place}/{name}", leads.get(real, ()))


def _links(view: View, root: str, place: str, names: tuple[str, ...], version: str) -> dict[str, tuple[str, ...]]:
    """Real file -> the other names in the folder that lead to it. Only names of the driver's libraries are followed."""
    stems = {_stem(name) for name in names if name.endswith(f".so.{version}")} | _OTHER_STEMS
    found: dict[str, list[str]] = {}
    for name in names:
        if _stem(name) not in stems:
            continue
        path = joined(root, f"{place}/{name}")
        real = view.entry(path).path
        if posixpath.basename(real) != name:
            found.setdefault(real, []).append(name)
    return {real: tuple(each) for real, each in found.items()}


def _stem(name: str) -> str:
    return name.partition(".so")[0]


def _tools(view: View, root: str) -> Iterator[str]:
    for name in TOOLS:
        places = (f"/{folder}/{name}" for folder in _TOOL_FOLDERS)
        place = next((place for place in places if view.entry(joined(root, place)).type == "file"), None)
        if place:
            yield place


def _firmware(view: View, root: str, version: str) -> Iterator[str]:
    """GSP firmware of this version, which some libraries load."""
    for folder in _FIRMWARE:
        names = [name for name in view.names(joined(root, f"/{folder}/{version}")) if name.endswith(".bin")]
        if names:
            yield from (f"/{folder}/{version}/{name}" for name in names)
            return
