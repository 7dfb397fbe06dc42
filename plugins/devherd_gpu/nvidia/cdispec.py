"""CDI specifications for NVIDIA GPUs, under the kinds and file names of NVIDIA's device plugin.

With NVIDIA's toolkit on the node its hooks make links and refresh the linker's cache in each container; without it the
libraries are mounted under all of their names into the place that CUDA images search (`drivermount`), without hooks.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from devherd.host.cdi import CdiDevice, CdiEdits, CdiHook, CdiMount, CdiNode, spec, spec_file
from devherd.host.pci import FOLDER as PCI
from devherd.host.sysfs import Sysfs
from devherd.values import HostFile, Mount, Node

from devherd_gpu.nvidia import drivermount
from devherd_gpu.nvidia.driverfiles import CUDA, DriverFiles, joined
from devherd_gpu.nvidia.gpus import Found, Gpu, MigDevice
from devherd_gpu.nvidia.nodes import Nodes
from devherd_gpu.nvidia.responses import CDI_VENDOR

if TYPE_CHECKING:
    from devherd.host import Host

    from devherd_gpu.nvidia.config import Config

_HIDE = "NVIDIA_VISIBLE_DEVICES=void"
"""NVIDIA's runtime, where it is the default one, adds nothing more."""
_ALL = "all"
_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
HOOKS = ("create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification")


class Specifications:
    """What one scan found, as files."""

    def __init__(self, host: Host, config: Config, nodes: Nodes, files: DriverFiles, root: str) -> None:
        self._host = host
        self._config = config
        self._nodes = nodes
        self._files = files
        self._root = root
        self._sysfs = Sysfs(host)

    def files(self, found: Found) -> Iterator[HostFile]:
        """One file for each kind that has devices."""
        gpus = list(self._gpus(found))
        if gpus:
            yield self._file("gpu", gpus, self._common())
        channels = [(str(channel), self._nodes.imex(channel)) for channel in self._config.imex.channels]
        imex = [CdiDevice(name, CdiEdits(nodes=(_node(node),))) for name, node in channels if node is not None]
        if imex:
            yield self._file("imex-channel", imex)
        for extra in ("gds", "mofed", "gdrcopy"):
            if getattr(self._config, extra) and (edits := self._extra(extra)):
                yield self._file(extra, [CdiDevice(_ALL, edits)])

    def _file(self, of_class: str, devices: Sequence[CdiDevice], common: CdiEdits | None = None) -> HostFile:
        kind = f"{CDI_VENDOR}/{of_class}"
        hide = CdiEdits(env=(_HIDE,))
        return spec_file(self._host.paths, kind, spec(kind, devices, common or hide))

    def _gpus(self, found: Found) -> Iterator[CdiDevice]:
        """Each GPU and MIG device under every name an answer may have for it, and all of them together."""
        everything: dict[str, CdiNode] = {}
        for gpu in found.gpus:
            if gpu.lost or not gpu.pci:
                continue
            own = self._of_gpu(gpu)
            whole = {node.path: node for node in own}
            for mig in gpu.mig_devices:
                nodes = (*own, *self._of_mig(gpu, mig))
                whole |= {node.path: node for node in nodes}
                yield from _named(mig.uuid, f"{gpu.index}:{mig.index}", nodes)
            if not gpu.mig or self._config.mig == "none":  # then a divided GPU is offered as one, with all its parts
                yield from _named(gpu.uuid, str(gpu.index), tuple(whole.values()))
            everything |= whole
        if everything:
            yield CdiDevice(_ALL, CdiEdits(nodes=tuple(everything.values())))

    def _of_gpu(self, gpu: Gpu) -> tuple[CdiNode, ...]:
        node = self._nodes.of_gpu(gpu)
        drm = (self._host.node(f"/dev/dri/{name}") for name in self._sysfs.names(f"{PCI}/{gpu.pci}/drm"))
        screens = tuple(CdiNode(one.path, "", one.kind, one.major, one.minor, "rwm") for one in drm if one is not None)
        return (*((_node(node),) if node is not None else ()), *screens)

    def _of_mig(self, gpu: Gpu, mig: MigDevice) -> tuple[CdiNode, ...]:
        return tuple(_node(node) for node in self._nodes.of_mig(gpu, mig))

    def _common(self) -> CdiEdits:
        """What every container with a GPU gets."""
        control = tuple(_node(node) for node in self._nodes.control())
        if not self._has_hook:
            mounts = tuple(_mount(mount) for mount in drivermount.mounts(self._files, self._root))
            return CdiEdits(nodes=control, mounts=mounts, env=(_HIDE, *drivermount.environment()))
        paths = [*(library.path for library in self._files.libraries), *self._files.tools, *self._files.firmware]
        mounts = tuple(CdiMount(joined(self._root, path), path, _OPTIONS) for path in paths)
        mounts += tuple(CdiMount(path, path, (*_OPTIONS, "noexec")) for path in self._files.sockets)
        return CdiEdits(nodes=control, mounts=mounts, env=(_HIDE, *self._cuda_folder()), hooks=tuple(self._hooks()))

    @property
    def _has_hook(self) -> bool:
        return self._host.view().entry(self._config.cdi.hook).type == "file"

    def _cuda_folder(self) -> Iterator[str]:
        for library in self._files.libraries:
            if CUDA.fullmatch(library.name):
                yield f"NVIDIA_CTK_LIBCUDA_DIR={posixpath.dirname(library.path)}"
                return

    def _hooks(self) -> Iterator[CdiHook]:
        off = set(self._config.cdi.disabled_hooks)
        arguments = {
            "create-symlinks": list(self._link_arguments()),
            "enable-cuda-compat": [f"--host-driver-version={self._version}"],
            "update-ldcache": [f"--folder={folder}" for folder in self._folders],
            "disable-device-node-modification": [],
        }
        path = self._config.cdi.hook
        for name in HOOKS:
            needless = name in ("create-symlinks", "update-ldcache") and not arguments[name]
            if name in off or "all" in off or needless:
                continue
            # nvidia-ctk has the hooks below `hook`; nvidia-cdi-hook is nothing but hooks.
            program = posixpath.basename(path)
            words = (program, *(("hook",) if program == "nvidia-ctk" else ()), name, *arguments[name])
            yield CdiHook("createContainer", path, words, ("NVIDIA_CTK_DEBUG=false",))

    @property
    def _version(self) -> str:
        cuda = (library.name for library in self._files.libraries if CUDA.fullmatch(library.name))
        return next(cuda, "").partition(".so.")[2]

    @property
    def _folders(self) -> list[str]:
        return sorted({posixpath.dirname(library.path) for library in self._files.libraries})

    def _link_arguments(self) -> Iterable[str]:
        for library in self._files.libraries:
            folder = posixpath.dirname(library.path)
            yield from (f"--link={library.name}::{folder}/{link}" for link in library.links)

    def _extra(self, name: str) -> CdiEdits | None:
        """The nodes that a technology is about, and what else it reads."""
        found = [self._host.node(path) for path in self._nodes.extra(name)]
        nodes = tuple(CdiNode(one.path, "", one.kind, one.major, one.minor, "rwm") for one in found if one is not None)
        if not nodes:
            return None
        places = ("/run/udev", "/etc/cufile.json") if name == "gds" else ()
        there = [path for path in places if self._host.view().entry(path).exists]
        mounts = tuple(CdiMount(path, path, (*_OPTIONS, "noexec")) for path in there)
        return CdiEdits(nodes=nodes, mounts=mounts, env=(_HIDE,))


def _named(uuid: str, index: str, nodes: Sequence[CdiNode]) -> Iterator[CdiDevice]:
    edits = CdiEdits(nodes=tuple(nodes))
    yield CdiDevice(uuid, edits)
    yield CdiDevice(index, edits)


def _node(node: Node) -> CdiNode:
    return CdiNode(node.container_path, node.host_path, node.kind, node.major, node.minor, "rwm")


def _mount(mount: Mount) -> CdiMount:
    return CdiMount(mount.host_path, mount.container_path, _OPTIONS)
