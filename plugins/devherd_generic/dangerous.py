"""Host paths that hand the node over to a container: refused unless a rule says `dangerous: true`.

Asked twice. When the configuration is read: could this path or glob name such a thing? And for each thing found,
links followed, by path and by device number (Documentation/admin-guide/devices.txt): a name may lie.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from devherd_generic.globs import Component, Glob, Ranges, overlap, parse

OVERRIDE = "say dangerous: true if you mean it"

# What may not be mounted at all, nor anything below it, nor a folder it lies in.
_PRIVATE = {
    "/proc": "the host's processes and kernel settings",
    "/etc/devherd": "devherd's own configuration",
    "/etc/kubernetes": "the cluster's credentials",
    "/etc/rancher": "the cluster's credentials",
    "/etc/shadow": "the host's passwords",
    "/etc/gshadow": "the host's passwords",
    "/etc/ssh": "the host's keys",
    "/etc/sudoers": "the host's privileges",
    "/etc/sudoers.d": "the host's privileges",
    "/etc/ssl/private": "the host's keys",
    "/etc/pki/tls/private": "the host's keys",
    "/root/.ssh": "the host's keys",
    "/root/.kube": "the cluster's credentials",
    "/var/lib/kubelet": "the kubelet's sockets and every pod's secrets",
    "/var/lib/rancher": "the kubelet's and container runtime's files",
    "/var/lib/k0s": "the kubelet's and container runtime's files",
    "/var/lib/etcd": "the cluster's data",
    "/var/lib/containerd": "the container runtime's files",
    "/var/lib/docker": "the container runtime's files",
    "/var/lib/containers": "the container runtime's files",
    "/var/lib/devherd": "devherd's own state",
    "/run/devherd": "devherd's own sockets",
    "/run/containerd": "the container runtime's socket",
    "/run/docker.sock": "the container runtime's socket",
    "/run/docker": "the container runtime's socket",
    "/run/cri-dockerd.sock": "the container runtime's socket",
    "/run/crio": "the container runtime's socket",
    "/run/k3s": "the container runtime's socket",
    "/run/k0s": "the container runtime's socket",
    "/run/podman": "the container runtime's socket",
    "/run/dbus": "the host's message bus",
    "/run/systemd/private": "the host's service manager",
    "/run/user": "the users' sockets and secrets",
    "/run/secrets": "the host's secrets",
    "/run/credentials": "the services' secrets",
}
# What may be mounted read-only, but not so that a container can change it.
_KEPT = {
    "/sys": "the kernel's settings",
    "/etc": "the host's configuration",
    "/usr": "the host's programs",
    "/bin": "the host's programs",
    "/sbin": "the host's programs",
    "/lib": "the host's programs",
    "/lib32": "the host's programs",
    "/lib64": "the host's programs",
    "/boot": "the host's kernel",
    "/root": "the host's administrator",
    "/var/spool/cron": "the host's jobs",
    "/var/log": "the host's logs",
    "/run/udev": "what the host knows of its devices",
    "/run/systemd": "the host's service manager",
}
# Nobody's own folder as a whole, nor these in it; anything else in it may be mounted.
_HOME = "people's keys and passwords"
_HOME_SECRETS = tuple(
    f"/home/*/{name}"
    for name in (".ssh", ".gnupg", ".kube", ".docker", ".aws", ".azure", ".config", ".local", ".pki", ".netrc")
)
_DISK = "a raw disk"
_LETTERS = ("[a-z]", "[a-z][a-z]", "[a-z][0-9]*", "[a-z][a-z][0-9]*")
# Names of nodes, for the time when only a pattern is known; see `_rare` for the second table.
_NODES = {
    "mem": "the host's memory",
    **{f"{disk}{rest}": _DISK for disk in ("sd", "vd") for rest in _LETTERS},
    **dict.fromkeys(("nvme[0-9]*", "mmcblk[0-9]*", "dm-[0-9]*", "md[0-9]*", "sg[0-9]*"), _DISK),
    **dict.fromkeys(("disk/*/*", "mapper/*"), _DISK),
    "cpu/[0-9]*/msr": "the processor's control registers",
}
_RARE_NODES = {
    "kmsg": "the kernel's log",
    "console": "the host's console",
    "block/*": _DISK,
    **dict.fromkeys(("kmem", "port", "snapshot", "oldmem", "crash", "dax[0-9]*"), "the host's memory"),
    **dict.fromkeys(("char/1:[124]", "char/1:12"), "the host's memory"),
    **dict.fromkeys(("drbd[0-9]*", "bcache[0-9]*", "root"), _DISK),
    **dict.fromkeys(("btrfs-control", "zfs"), "the control of the host's file systems"),
    "userfaultfd": "the control of page faults, also the kernel's own",
    **{f"{disk}{rest}": _DISK for disk in ("hd", "xvd") for rest in _LETTERS},
    **dict.fromkeys(("zram[0-9]*", "rbd[0-9]*", "ng[0-9]n[0-9]*", "mtd*", "nvme-fabrics"), _DISK),
    **dict.fromkeys(("dasd[a-z]*", "pmem[0-9]*", "bsg/*", "raw/*"), _DISK),
}
# What an expression must not match; the scan refuses the rest by its number.
_SAMPLES = (
    *("mem", "kmem", "port", "snapshot", "sda", "sda1", "sdaa", "vda", "vda1", "nvme0", "nvme0n1", "nvme0n1p1"),
    *("dm-0", "md0", "mmcblk0", "mmcblk0p1", "sg0", "mapper/control", "mapper/root", "disk/by-id/x", "cpu/0/msr"),
    *("kmsg", "console", "oldmem", "crash", "dax0.0", "block/8:0", "drbd0", "bcache0", "btrfs-control", "userfaultfd"),
)
_parsed = lru_cache(maxsize=1024)(parse)

_NUMBERS = {
    **dict.fromkeys((("c", 1, 1), ("c", 1, 2), ("c", 1, 4), ("c", 1, 12), ("c", 10, 231)), "is the host's memory"),
    ("c", 1, 11): "is the kernel's log",
    ("c", 5, 1): "is the host's console",
    ("c", 10, 234): "controls the host's file systems",
    ("c", 10, 236): "controls every mapped disk",
}
_DISK_CHARS = {21: "a raw disk", 90: "a raw disk", 162: "a raw disk", 202: "the processor's control registers"}
# Block devices that are no disk of the host: RAM disk, floppy, loop, CD-ROM, network block device.
_HARMLESS_BLOCKS = {1, 2, 7, 11, 43}
# Those whose numbers the kernel deals out as they come.
_NAMES = {
    re.compile(r"/dev/(nvme.*|ng[0-9]+n[0-9]+|bsg/.*)"): "is a raw disk",
    re.compile(r"/dev/(dax[0-9.]+|crash|oldmem)"): "is the host's memory",
    re.compile(r"/dev/zfs"): "controls the host's file systems",
    re.compile(r"/dev/userfaultfd"): "controls page faults, also the kernel's own",
}


def node_pattern(glob: Glob) -> str:
    """Why a device path or glob is refused before anything is looked at; empty when it is not."""
    mine = glob.components
    tables = (_NODES,) if _rare(glob) else (_NODES, _RARE_NODES)
    for name, why in (item for table in tables for item in table.items()):
        other = _parsed(f"/dev/{name}")
        if len(mine) <= len(other.components) and _same_start(glob, other, len(mine)):
            same = glob.is_literal and len(mine) == len(other.components)
            return f"{glob.text} is {why}" if same else f"{glob.text} could hand out {other.text}, {why}"
    return ""


def _rare(glob: Glob) -> bool:
    """Whether a component is one character and wildcards, like `x*`: no reason yet to think of `xvda`.

    If there is one on the node after all, the scan refuses it by its number.
    """
    return any(len(c.tokens) > 1 and c.tokens[0] and not c.tokens[1] and _single(c.tokens[0]) for c in glob.components)


def _single(token: Ranges) -> bool:
    return len(token) == 1 and token[0][0] == token[0][1]


def node_expression(search: re.Pattern[str], anchored: bool) -> str:
    """Why a regular expression on paths below /dev is refused; empty when it is not."""
    for sample in _SAMPLES:
        if search.fullmatch(sample) if anchored else search.search(sample):
            return f"could hand out /dev/{sample}"
    return ""


def node(path: str, kind: str, major: int, minor: int) -> str:
    """Why a device node that was found is refused; empty when it is not. `path` has no links left."""
    if why := _NUMBERS.get((kind, major, minor)):
        return f"{path} {why}"
    if kind == "c" and major in _DISK_CHARS:
        return f"{path} is {_DISK_CHARS[major]}"
    if kind == "b" and major not in _HARMLESS_BLOCKS:
        return f"{path} is a raw disk"
    return next((f"{path} {why}" for name, why in _NAMES.items() if name.fullmatch(path)), "")


def mount_pattern(glob: Glob, read_only: bool) -> str:
    """Why a mount of this path or glob is refused before anything is looked at; empty when it is not."""
    if glob.is_literal:
        return mount(glob.path, read_only)
    glob = _without_var_run(glob)

    def touches(path: str) -> bool:
        other = _parsed(path)
        return _same_start(glob, other, min(len(glob.components), len(other.components)))

    def is_dev() -> bool:
        return len(glob.components) == 1 and touches("/dev")

    return _home(glob) or _mount(touches, is_dev, lambda path: f"could reach {path},", glob.text, read_only, ())


def mount(path: str, read_only: bool, more: Iterable[str] = ()) -> str:
    """Why a mount of this path is refused; empty when it is not.

    `more` are private folders of this node, beside the usual ones. For something found, `path` has no links left.
    """
    short = path[4:] if path == "/var/run" or path.startswith("/var/run/") else path  # a link on every system of today

    def touches(other: str) -> bool:
        return short == other or short.startswith(other + "/") or other.startswith(short + "/")

    def relation(other: str) -> str:
        if path == other:
            return "is"
        return f"is {other}," if short == other else f"is in {other}," if short.startswith(other) else f"holds {other},"

    if short == "/":
        return "/ is the whole host"
    return _home(_literal(path)) or _mount(touches, lambda: short == "/dev", relation, path, read_only, more)


def _mount(
    touches: Callable[[str], bool],
    is_dev: Callable[[], bool],
    relation: Callable[[str], str],
    text: str,
    read_only: bool,
    more: Iterable[str],
) -> str:
    for path, why in (*_PRIVATE.items(), *((path, "the kubelet's or devherd's files") for path in more)):
        if touches(path):
            return f"{text} {relation(path)} {why}"
    for path, why in () if read_only else _KEPT.items():
        if touches(path):
            return f"{text} {relation(path)} {why} (with readOnly: true it may be mounted)"
    if is_dev():
        return f"{text} {'is' if text == '/dev' else 'could be /dev,'} every device of the host"
    return ""


def _home(glob: Glob) -> str:
    """Why a mount of /home, of someone's folder there, or of the keys in it is refused; empty when it is not."""
    length = len(glob.components)
    if length <= 2:
        return f"{glob.text} holds {_HOME}" if _same_start(glob, _parsed("/home/*"), length) else ""
    secrets = (path for path in _HOME_SECRETS if _same_start(glob, _parsed(path), 3))
    return next(
        (f"{glob.text} {'is in' if glob.is_literal else 'could reach'} {path}, {_HOME}" for path in secrets), ""
    )


def _literal(path: str) -> Glob:
    """A path that was found, whatever characters it has."""
    tokens = ((part, tuple(((ord(char), ord(char)),) for char in part)) for part in path[1:].split("/"))
    return Glob(path, tuple(Component(singles, part) for part, singles in tokens))


def _without_var_run(glob: Glob) -> Glob:
    names = [component.literal for component in glob.components[:2]]
    return Glob(glob.text, glob.components[1:]) if names == ["var", "run"] else glob


def _same_start(left: Glob, right: Glob, length: int) -> bool:
    pairs = zip(left.components[:length], right.components[:length], strict=True)
    return all(overlap(mine.tokens, other.tokens) for mine, other in pairs)
