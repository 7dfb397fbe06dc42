"""The driver in a container without NVIDIA's container toolkit: plain read-only mounts, no hook, no other runtime.

CUDA images look for the driver below /usr/local/nvidia (their PATH and LD_LIBRARY_PATH name it), which GPU nodes of a
large cloud have filled by mounts for years. Each library is mounted under every name that leads to it on the host, so
that no link has to be made inside.
"""

from __future__ import annotations

from collections.abc import Iterator

from devherd.values import Mount

from devherd_gpu.nvidia.driverfiles import DriverFiles, joined

PLACE = "/usr/local/nvidia"


def mounts(files: DriverFiles, root: str) -> Iterator[Mount]:
    """Libraries below lib64, tools below bin, firmware and sockets where they always are."""
    for library in files.libraries:
        for name in (library.name, *library.links):
            yield Mount(f"{PLACE}/lib64/{name}", joined(root, library.path), read_only=True)
    for path in files.tools:
        yield Mount(f"{PLACE}/bin/{path.rpartition('/')[2]}", joined(root, path), read_only=True)
    for path in files.firmware:
        yield Mount(path, joined(root, path), read_only=True)
    for path in files.sockets:
        yield Mount(path, path, read_only=True)


def environment() -> tuple[str, ...]:
    """For images that are no CUDA images: the linker's path. The pod's own variables come after and win."""
    return (f"LD_LIBRARY_PATH={PLACE}/lib64",)
