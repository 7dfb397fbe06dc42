"""Private namespaces for all that the suite starts: the machine's kubelet folders, ports, devices, processes stay out.

`enter` runs a Python module again in namespaces of its own: mounts (private /var/lib/kubelet, /dev, /run, /etc/cdi
and /etc/kubernetes), processes (all of them end with the first one), and network (loopback only, with one more address
for the node, because a kubelet refuses a loopback one). Needs root, which a kubelet needs anyway.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

INSIDE = "DEVHERD_E2E_SANDBOX"
NODE_ADDRESS = "10.99.0.1"
KUBELET = "/var/lib/kubelet"
FOLDER = "DEVHERD_E2E_FOLDER"
_RUNTIME = "/run/e2e"
_REMOVE = "DEVHERD_E2E_REMOVE"
_KEPT_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "kmsg", "fuse", "kvm", "loop-control")
_LOOPS = 16
_NUMA = "/sys/devices/system/node"


class Unusable(Exception):
    """This machine cannot hold the sandbox; the text says what is missing."""


def missing() -> list[str]:
    """What this machine lacks, each with what to do; empty: all is there."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root: containerd and the kubelet need it (run it with sudo)")
    packages = {
        "containerd": "containerd",
        "runc": "runc",
        "ip": "iproute2",
        "unshare": "util-linux",
        "mount": "mount",
        "openssl": "openssl",
    }
    lacks += [f"{name}: install the package {package}" for name, package in packages.items() if not shutil.which(name)]
    if busybox() is None:
        lacks.append("a static busybox: install the package busybox-static")
    return lacks


def busybox() -> Path | None:
    """A busybox that needs no libraries."""
    for place in ("/bin/busybox", "/usr/bin/busybox", "/usr/lib/busybox/busybox"):
        if os.path.exists(place) and b"ld-linux" not in Path(place).read_bytes()[:4096]:
            return Path(place)
    return None


def inside() -> bool:
    """Whether this process is in the sandbox."""
    return bool(os.environ.get(INSIDE))


def enter(module: str, arguments: list[str], folder: Path, *, remove: bool = False) -> None:
    """Run `python -m module arguments` in the sandbox in place of this process; return at once when already inside.

    `folder` holds the private copies, and goes at the end with `remove` (unless DEVHERD_E2E_KEEP is set).
    Raises Unusable.
    """
    if inside():
        return
    if remove and not os.environ.get("DEVHERD_E2E_KEEP"):
        os.environ[_REMOVE] = "1"
    lacks = missing()
    if lacks:
        raise Unusable("; ".join(lacks))
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--uts", "--ipc", "--"),
        *(sys.executable, "-m", "e2e.sandbox", str(folder), module, *arguments),
    ]
    tests = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    os.execvpe(command[0], command, environment)


def furnish(folder: Path) -> None:
    """Inside: mount what is private, bring up the network."""
    _run("mount", "--make-rprivate", "/")
    for place in (KUBELET, "/etc/cdi", "/run", "/etc/kubernetes"):
        os.makedirs(place, exist_ok=True)
    # Kubelets, containerd and runc keep sockets and state below /run, whatever they are told.
    for place, options in (("/run", "mode=755"), ("/etc/kubernetes", "mode=755"), ("/etc/cdi", "mode=755")):
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", place)
    os.mkdir(_RUNTIME, 0o700)
    kubelet = folder / "kubelet"
    kubelet.mkdir(exist_ok=True)
    _run("mount", "--bind", str(kubelet), KUBELET)
    _devices(folder)
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", "lo")
    _run("hostname", "devherd-e2e")


def _devices(folder: Path) -> None:
    """A /dev of our own, so that device nodes can come and go."""
    made = folder / "dev"
    made.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", "mode=755,dev", "tmpfs", str(made))
    for name in (*_KEPT_DEVICES, *(f"loop{n}" for n in range(_LOOPS))):
        source = Path("/dev", name)
        if source.exists():
            status = source.stat()
            os.mknod(made / name, status.st_mode, status.st_rdev)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (made / name).symlink_to(target)
    for name, kind in (("shm", "tmpfs"), ("mqueue", "mqueue")):
        (made / name).mkdir()
        _run("mount", "-t", kind, kind, str(made / name))
    (made / "pts").mkdir()
    _run("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", str(made / "pts"))
    _run("mount", "--move", str(made), "/dev")


def two_numa_nodes(folder: Path) -> None:
    """Have the kubelet see two NUMA nodes, of which a small machine has one: the processors are dealt out to both."""
    processors = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*"))
    for number in (0, 1):
        node = folder / f"node{number}"
        (node / "hugepages").mkdir(parents=True)
        (node / "meminfo").write_text(f"Node {number} MemTotal:       4000000 kB\n")
        (node / "distance").write_text("10 20\n" if number == 0 else "20 10\n")
        for processor in processors[number::2]:
            (node / processor.name).symlink_to(processor)
    for name in ("online", "possible", "has_cpu", "has_memory"):
        (folder / name).write_text("0-1\n")
    _run("mount", "--bind", str(folder), _NUMA)


def own_numa_nodes() -> None:
    """End that."""
    _run("umount", _NUMA)


def make_node(path: str, major: int, minor: int) -> None:
    """A character device node in the sandbox's /dev. Nobody opens it; a container only has to see the right one."""
    if not inside():
        raise Unusable("device nodes are made in the sandbox only")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unusable(f"{' '.join(command)}: {done.stderr.strip()}")


def main() -> int:
    """`python -m e2e.sandbox FOLDER MODULE ARGUMENTS`: the first process of the sandbox."""
    folder, module, *arguments = sys.argv[1:]
    try:
        furnish(Path(folder))
    except Unusable as problem:
        print(f"no sandbox: {problem}", file=sys.stderr)
        return 1
    os.environ[INSIDE] = "1"
    os.environ[FOLDER] = folder
    # Where a private instance of devherd keeps its files: two sandboxes must not meet there.
    os.environ["XDG_RUNTIME_DIR"] = _RUNTIME
    try:
        # A process of its own: the first one of a namespace gets no default signal actions and all orphans.
        return subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    finally:
        if os.environ.get(_REMOVE):
            _remove(folder)


def _remove(folder: str) -> None:
    """Nobody else is in these namespaces, so what is still mounted there is nobody's."""
    with open("/proc/self/mounts") as mounts:
        places = [line.split()[1] for line in mounts]
    for place in reversed([place for place in places if place.startswith((folder, KUBELET))]):
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
