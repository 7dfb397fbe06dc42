"""A kernel and an initial RAM disk that boot quickly under emulation.

Debian's own two cost an emulated processor most of a minute: it would unpack the kernel itself, and run udev on every
module twice. So the kernel is handed over unpacked (it has a PVH entry), and the RAM disk does nothing but load what
the root file system needs. Kernel, modules and everything after them are Debian's.
"""

from __future__ import annotations

import lzma
import re
import stat
import subprocess
from pathlib import Path

NEEDED = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
_ZSTD = b"\x28\xb5\x2f\xfd"
_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox insmod /modules/$module; done
n=0
until [ -b /dev/vda ] || [ $n = 100 ]; do /bin/busybox sleep 0.1; n=$((n + 1)); done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount -o move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
"""


def unpacked(vmlinuz: Path, target: Path) -> None:
    """Write the ELF file that is packed in a bzImage."""
    data = vmlinuz.read_bytes()
    for match in re.finditer(re.escape(_ZSTD), data):
        # What follows the packed part makes zstd complain, after it wrote everything.
        done = subprocess.run(["zstd", "-dqc"], input=data[match.start() :], capture_output=True, check=False)
        if done.stdout.startswith(b"\x7fELF"):
            target.write_bytes(done.stdout)
            return
    raise ValueError(f"no kernel packed by zstd in {vmlinuz}")


def open_modules(root: Path) -> Path:
    """Unpack all modules below `root` once, here, in place of at every boot there; returns their folder."""
    (folder,) = (root / "usr/lib/modules").iterdir()
    for packed in list(folder.rglob("*.ko.xz")):
        packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
        packed.unlink()
    subprocess.run(["chroot", str(root), "depmod", folder.name], check=True, capture_output=True)
    return folder


def ramdisk(modules: Path, busybox: Path, target: Path) -> None:
    """Write an initial RAM disk that loads `NEEDED` with what they depend on, and starts the disk's init."""
    files = [modules / path for path in _with_dependencies(modules / "modules.dep")]
    parts = [_entry(name, stat.S_IFDIR | 0o755) for name in ("bin", "modules")]
    parts.append(_entry("dev", stat.S_IFDIR | 0o755) + _entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)))
    parts.append(_entry("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()))
    parts += [_entry(f"modules/{path.name}", stat.S_IFREG | 0o644, path.read_bytes()) for path in files]
    script = _INIT.format(modules=" ".join(path.name for path in files))
    parts.append(_entry("init", stat.S_IFREG | 0o755, script.encode()))
    target.write_bytes(b"".join(parts) + _entry("TRAILER!!!", 0))


def _with_dependencies(index: Path) -> list[str]:
    needs = {path: rest.split() for path, _, rest in (line.partition(":") for line in index.read_text().splitlines())}
    by_name = {Path(path).stem.replace("-", "_"): path for path in needs}
    order: list[str] = []
    for name in NEEDED:
        path = by_name.get(name)  # Built in, where there is none.
        for one in [*reversed(needs[path]), path] if path else []:
            if one not in order:
                order.append(one)
    return order


def _entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    """One file in cpio's "newc" form (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel)."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return _aligned(head) + _aligned(data)


def _aligned(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
