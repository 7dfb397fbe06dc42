"""Container images made here: a static busybox and nothing else, so that no registry is ever asked."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
_APPLETS = ("sh", "sleep", "ls", "cat", "env", "echo", "true", "false", "find", "mount", "stat", "kill", "mkdir", "dd")
_FOLDERS = ("bin", "etc", "tmp", "dev", "proc", "sys", "run", "var", "out")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(busybox: Path, target: Path) -> None:
    """Write both images as one archive in Docker's format, which every containerd imports."""
    layer = _layer(busybox.read_bytes())
    digest = hashlib.sha256(layer).hexdigest()
    manifest = []
    with tarfile.open(target, "w") as tar:
        _add(tar, "layer.tar", layer)
        for name, entrypoint in ((PAUSE, ["/bin/sleep", "1000000"]), (BUSYBOX, ["/bin/sh"])):
            config = _config(entrypoint, digest)
            file = hashlib.sha256(config).hexdigest() + ".json"
            _add(tar, file, config)
            manifest.append({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]})
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _config(entrypoint: list[str], layer: str) -> bytes:
    document = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }
    return json.dumps(document).encode()


def _layer(busybox: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        _add(tar, "bin/busybox", busybox, 0o755)
        for name in _APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
