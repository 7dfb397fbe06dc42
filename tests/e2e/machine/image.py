"""The machine's disk, made here from Debian's packages, programs built from their sources, and this source tree.

Two layers, each kept below the cache folder under the hash of what goes into it: Debian with kernel, containerd and
kubelet (minutes, needs a mirror once), and a whole disk with devherd (seconds). Needs root, mmdebstrap and mke2fs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e import binaries, images, pods, sandbox
from e2e.machine import kernel, tree

SUITE = "trixie"
MIRROR = os.environ.get("DEVHERD_E2E_MIRROR", "http://deb.debian.org/debian")
PACKAGES = (
    *("systemd", "systemd-sysv", "udev", "dbus", "kmod", "linux-image-cloud-amd64", "initramfs-tools"),
    *("python3", "runc", "iproute2", "mount", "libstdc++6", "procps"),
)
_WITHOUT = ("/usr/share/doc", "/usr/share/locale", "/usr/share/man", "/usr/share/info")
# They take an emulated processor's time and have no part in this.
_NOT_WANTED = (
    *(
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "e2scrub_reap.service",
    ),
    *("getty@tty1.service", "serial-getty@ttyS0.service", "systemd-networkd.service", "systemd-timesyncd.service"),
    *("systemd-pcrphase.service", "systemd-hwdb-update.service", "systemd-update-done.service", "ldconfig.service"),
)
# What a container can open of its devices, it notes. A watchdog's node must not be opened by somebody who lets it bite.
_OPENS = (
    "for node in /dev/hwrng /dev/fuse /dev/ttyS* /dev/virtio-ports/*; do "
    "[ -c $node ] && (: <$node) && echo $node >>/tmp/opened; done; "
)
_PLACES = {
    "containerd.toml": "etc/containerd/config.toml",
    "kubelet.yaml": "etc/kubernetes/kubelet.yaml",
    "generic.yaml": "etc/devherd/plugins.d/generic.yaml",
}
# An emulated processor on a busy machine takes minutes for what a real one does in a second.
_PATIENCE = {
    "etc/systemd/system.conf.d/emulated.conf": "[Manager]\nDefaultTimeoutStartSec=900\nDefaultDeviceTimeoutSec=900\n",
    "etc/systemd/system/devherd.service.d/emulated.conf": "[Service]\nTimeoutStartSec=900\n",
}
RESOURCES = {"hwrng": 2, "fuse": 4, "serial": 2, "port": 1}
"""Every resource that the machine has from its start, and how many of it."""
PODS = {
    f"on-{name}": pods.manifest(f"on-{name}", [pods.container("c", {f"example.com/{name}": 1}, _OPENS + pods.SLEEP)])
    for name in RESOURCES
}
"""A static pod on each of them; they are on the disk as it is delivered."""
GUEST = Path(__file__).parent / "guest"
SOURCE = Path(__file__).parents[3]
DISK = "6G"


class Unavailable(Exception):
    """The machine cannot be made here: what is missing, and what has it."""


@dataclass(frozen=True)
class Image:
    """What qemu boots: a kernel, its initial RAM disk, and a raw disk that must not be written to."""

    kernel: Path
    initrd: Path
    disk: Path


def missing() -> list[str]:
    """What this machine lacks, each with the Debian package that has it."""
    wanted = {
        "mmdebstrap": "mmdebstrap",
        "qemu-system-x86_64": "qemu-system-x86",
        "qemu-img": "qemu-utils",
        "mke2fs": "e2fsprogs",
        "zstd": "zstd",
    }
    lacks = [f"{program} (Debian: {package})" for program, package in wanted.items() if not shutil.which(program)]
    if sandbox.busybox() is None:
        lacks.append("a static busybox (Debian: busybox-static)")
    if os.geteuid() != 0:
        lacks.append("root, to make a disk with root's files")
    return lacks


def made() -> Image:
    """The image for this source tree; made where the cache has none. Raises Unavailable."""
    kubelet = os.environ.get("DEVHERD_E2E_KUBELET")
    programs = {
        "kubelet": Path(kubelet)
        if kubelet
        else binaries.built(binaries.kubernetes(binaries.NEWEST, "kubelet"))["kubelet"],
        **binaries.built(binaries.containerd()),
    }
    folder = binaries.cache() / "machine"
    folder.mkdir(parents=True, exist_ok=True)
    base = _kept(folder, "debian", _digest([SUITE, *PACKAGES, *_WITHOUT]), _debian)
    wheels = _kept(folder, "wheels", _digest([*tree.REQUIREMENTS, tree.PYTHON]), tree.download)

    def whole(target: Path) -> None:
        _disk(target, base, wheels, programs)

    ours = (Path(__file__), Path(tree.__file__), Path(kernel.__file__))
    parts: list[str | Path] = [base.name, wheels.name, json.dumps(PODS), *ours, *sorted(GUEST.iterdir())]
    parts += [f"{path} {path.stat().st_mtime_ns}" for path in programs.values()]
    disk = _kept(folder, "disk", _digest([*parts, *tree.sources(SOURCE)]), whole)
    return Image(disk / "vmlinux", disk / "initrd.img", disk / "disk.raw")


def _digest(parts: Iterable[str | Path]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else b""
        digest.update(f"{part}:{len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _kept(cache: Path, kind: str, digest: str, make: tree.Maker) -> Path:
    """The folder of what `make` makes; one that was made before is returned at once, older ones of its kind go."""
    wanted = cache / f"{kind}-{digest}"
    if wanted.is_dir():
        return wanted
    print(f"making {kind} for the machine ...", file=sys.stderr, flush=True)
    new = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=cache))
    try:
        make(new)
        for old in cache.glob(f"{kind}-*"):
            shutil.rmtree(old)
        new.chmod(0o755)
        os.replace(new, wanted)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace") if isinstance(error.stderr, bytes) else error.stderr or ""
        raise Unavailable(f"{kind}: {' '.join(map(str, error.cmd[:3]))} ... failed:\n{said[-2000:]}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return wanted


def _debian(target: Path) -> None:
    without = [f"--dpkgopt=path-exclude={path}/*" for path in _WITHOUT]
    _run("mmdebstrap", "--mode=root", "--variant=minbase", "--quiet", f"--include={','.join(PACKAGES)}", *without,
         SUITE, str(target / "root.tar"), MIRROR)  # fmt: skip


def _disk(target: Path, base: Path, wheels: Path, programs: dict[str, Path]) -> None:
    root = target / "root"
    root.mkdir()
    _run("tar", "-xpf", str(base / "root.tar"), "-C", str(root), "--numeric-owner")
    for name, path in programs.items():
        shutil.copy2(path, root / "usr/bin" / name)
    tree.install(SOURCE, wheels, root)
    _guest(root)
    (packed,) = (root / "boot").glob("vmlinuz-*")
    kernel.unpacked(packed, target / "vmlinux")
    busybox = sandbox.busybox()
    assert busybox is not None
    kernel.ramdisk(kernel.open_modules(root), busybox, target / "initrd.img")
    _run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", str(root), str(target / "disk.raw"), DISK)
    shutil.rmtree(root)


def _guest(root: Path) -> None:
    """Configuration of the machine itself: what a node's administrator would have written."""
    machine = root / "usr/lib/machine"
    machine.mkdir()
    for name in ("agent.py", "report.py", "churn.py", "hotplug.py"):
        shutil.copy2(GUEST / name, machine / name)
    busybox = sandbox.busybox()
    assert busybox is not None
    images.archive(busybox, machine / "images.tar")
    for path in GUEST.glob("*.service"):
        shutil.copy2(path, root / "etc/systemd/system" / path.name)
    for name, place in _PLACES.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(GUEST / name, root / place)
    manifests = root / "etc/kubernetes/manifests"
    manifests.mkdir()
    for name, document in PODS.items():
        (manifests / f"{name}.json").write_text(json.dumps(document))
    # The kubelet's folder is a disk of its own, empty at first: the unit's RequiresMountsFor has something to do.
    (root / "etc/fstab").write_text("LABEL=root / ext4 defaults 0 0\n/dev/vdb /var/lib/kubelet ext4 defaults 0 0\n")
    (root / "etc/hostname").write_text("n1\n")
    for place, text in _PATIENCE.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    (root / "etc/machine-id").write_text("")
    (root / "etc/modules-load.d/node.conf").write_text("overlay\nfuse\n")
    units = ["containerd.service", "kubelet.service", "machine-agent.service", "devherd.service"]
    if (root / "usr/lib/systemd/system/devherd-boot.service").exists():
        units.append("devherd-boot.service")
    _run("chroot", str(root), "systemctl", "enable", *units)
    _run("chroot", str(root), "systemctl", "mask", *_NOT_WANTED)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
