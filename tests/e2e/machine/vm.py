"""One machine: qemu, its disks, its monitor, and the agent in it."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from devherd.process import die_with_parent

from e2e.machine.image import Image

T = TypeVar("T")
# What a processor must have for Debian and Go, and nothing that is slow to emulate (5-level paging, AVX).
_EMULATED = "Nehalem,+rdrand,+fsgsbase,+pdpe1gb,+rdtscp"
_ARGUMENTS = (
    "console=ttyS0 panic=1 loglevel=4 mitigations=off nokaslr audit=0 apparmor=0 selinux=0 nowatchdog "
    "cryptomgr.notests random.trust_cpu=1 systemd.show_status=0 systemd.journald.storage=volatile net.ifnames=0"
)
_TRY = 20.0
"""Seconds in which a kernel says its first word, if it runs at all."""


class MachineError(Exception):
    """The machine did not do what it was told; the text has its console's last lines."""


@dataclass(frozen=True)
class Done:
    """What a command in the machine said."""

    rc: int
    out: str
    err: str


def accelerator(image: Image, folder: Path) -> str:
    """`kvm` where it runs this kernel, else `tcg`. /dev/kvm proves little: some run only their own."""
    try:
        open("/dev/kvm", "rb+", buffering=0).close()
    except OSError:
        return "tcg"
    console = folder / "try.console"
    command = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "256", "-display", "none", "-nic", "none"]
    command += ["-no-reboot", "-kernel", str(image.kernel), "-initrd", str(image.initrd), "-serial", f"file:{console}"]
    command += ["-append", "console=ttyS0 earlyprintk=serial panic=-1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + _TRY
            while time.monotonic() < end and process.poll() is None:
                if console.exists() and b"Linux version" in console.read_bytes():
                    return "kvm"
                time.sleep(0.1)
            return "tcg"
        finally:
            process.kill()


class Machine:
    """A machine whose disks live in `folder`; they outlive its boots. `patience` multiplies every time limit."""

    def __init__(self, image: Image, folder: Path, accel: str) -> None:
        self._image = image
        self._folder = folder
        self._accel = accel
        self.patience = 1.0 if accel == "kvm" else 6.0
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor: Channel | None = None
        self._agent: Channel | None = None
        self._numbers = itertools.count(1)
        self.console = folder / "console.log"
        self.boots = 0
        folder.mkdir(parents=True, exist_ok=True)

    def fresh_disks(self) -> None:
        """As delivered: the image, and an empty disk for /var/lib/kubelet."""
        _image_tool(
            "create", "-q", "-f", "qcow2", "-b", str(self._image.disk), "-F", "raw", str(self._folder / "root.qcow2")
        )
        empty = self._folder / "kubelet.raw"
        empty.unlink(missing_ok=True)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", str(empty), "4G"], check=True, capture_output=True)

    # Power

    def boot(self, timeout: float = 60.0) -> float:
        """Power on, and return the seconds until the agent answered."""
        assert self._process is None, "it is on already"
        began = time.monotonic()
        self.boots += 1
        for name in ("agent.sock", "monitor.sock"):
            (self._folder / name).unlink(missing_ok=True)
        with open(self._folder / "qemu.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_leave_with_us
            )
        self._monitor = Channel(self._folder / "monitor.sock", 30)
        self._monitor.read(30)
        self._ask("qmp_capabilities")
        self._agent = Channel(self._folder / "agent.sock", 30)
        self.run("true", timeout=timeout * self.patience)
        return time.monotonic() - began

    def cut(self) -> None:
        """Power cut: what the kernel in the machine had not written is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
        self._off()

    def shut_down(self, timeout: float = 60.0) -> None:
        """As by its power button."""
        assert self._process is not None
        self.run("systemctl", "poweroff", "--no-block")
        try:
            self._process.wait(timeout * self.patience)
        except subprocess.TimeoutExpired:
            raise MachineError(f"it did not go off\n{self.last_words()}") from None
        self._off()

    def _off(self) -> None:
        for channel in (self._monitor, self._agent):
            if channel is not None:
                channel.close()
        if self._process is not None:
            self._process.wait()
        self._process = self._monitor = self._agent = None

    def last_words(self, lines: int = 30) -> str:
        """The end of the console."""
        return (
            "\n".join(self.console.read_text(errors="replace").splitlines()[-lines:]) if self.console.exists() else ""
        )

    # What it does

    def run(self, *argv: str, given: str = "", timeout: float = 60.0) -> Done:
        """Run a command in the machine. Raises MachineError when no answer comes."""
        assert self._agent is not None, "it is off"
        number = self.begin(*argv, given=given, timeout=timeout)
        answer = self._answer(number, timeout)
        if answer is None:
            raise MachineError(f"no answer to {' '.join(argv)}\n{self.last_words()}")
        return Done(answer["rc"], answer["out"], answer["err"])

    def begin(self, *argv: str, given: str = "", timeout: float = 60.0) -> int:
        """Start a command in the machine; `finish` has its output. One at a time beside `run`'s."""
        assert self._agent is not None, "it is off"
        number = next(self._numbers)
        self._agent.write({"id": number, "argv": argv, "input": given, "timeout": timeout * self.patience})
        return number

    def finish(self, number: int, timeout: float = 60.0) -> str:
        """The output of a command that was begun and must succeed. Raises MachineError."""
        answer = self._answer(number, timeout)
        if answer is None or answer["rc"] != 0:
            raise MachineError(f"command {number}: {answer and answer['err']}\n{self.last_words()}")
        return str(answer["out"])

    def _answer(self, number: int, timeout: float) -> dict[str, Any] | None:
        assert self._agent is not None
        end = time.monotonic() + timeout * self.patience + 10
        while (answer := self._agent.read(end - time.monotonic())) is not None and answer["id"] != number:
            pass
        return answer

    def text(self, *argv: str, given: str = "", timeout: float = 60.0) -> str:
        """The output of a command that must succeed."""
        done = self.run(*argv, given=given, timeout=timeout)
        if done.rc != 0:
            raise MachineError(f"{' '.join(argv)}: status {done.rc}: {done.err or done.out}")
        return done.out

    def write(self, path: str, text: str) -> None:
        """Put a file into the machine, whole and on the disk."""
        self.text(
            "sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path}.new && mv {path}.new {path} && sync", given=text
        )

    def start(self, *argv: str) -> None:
        """Start a command in the machine that goes on."""
        self.text("systemd-run", "--quiet", "--no-block", *argv)

    def report(self) -> dict[str, Any]:
        """What guest/report.py says."""
        text = self.text("/usr/lib/devherd/bin/python", "-I", "/usr/lib/machine/report.py")
        return dict(json.loads(text))

    def wait(self, look: Callable[[], T], timeout: float, what: str, every: float = 0.5) -> T:
        """Wait until `look` returns something true. Raises MachineError."""
        end = time.monotonic() + timeout * self.patience
        while not (found := look()):
            if time.monotonic() > end:
                raise MachineError(f"after {timeout * self.patience:g} s still not: {what}\n{self.last_words()}")
            time.sleep(every)
        return found

    def plug(self, driver: str, name: str, **properties: str) -> None:
        """Hot-plug a card or a port."""
        self._ask("device_add", {"driver": driver, "id": name, **properties})

    def unplug(self, name: str) -> None:
        """Pull it out."""
        self._ask("device_del", {"id": name})

    def _ask(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        assert self._monitor is not None
        self._monitor.write({"execute": command, "arguments": dict(arguments or {})})
        while (answer := self._monitor.read(30)) is not None:
            if "error" in answer:
                raise MachineError(f"{command}: {answer['error'].get('desc')}")
            if "return" in answer:
                return answer["return"]
        raise MachineError(f"the monitor does not answer {command}")

    def _command(self) -> list[str]:
        kvm = self._accel == "kvm"
        drive = "if=none,cache=writeback,discard=unmap"
        parts: Sequence[str] = [
            *("qemu-system-x86_64", "-machine", "pc", "-accel", "kvm" if kvm else "tcg,thread=multi,tb-size=512"),
            *("-cpu", "host" if kvm else _EMULATED, "-smp", "2", "-m", "1536", "-nodefaults", "-no-reboot"),
            *("-display", "none", "-nic", "none", "-action", "watchdog=none"),
            *("-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd), "-append", _ARGUMENTS),
            *("-chardev", f"file,id=console,path={self.console},append=on", "-serial", "chardev:console"),
            *("-serial", "null", "-serial", "null"),
            *(
                "-drive",
                f"id=root,format=qcow2,file={self._folder / 'root.qcow2'},{drive}",
                "-device",
                "virtio-blk-pci,drive=root",
            ),
            *(
                "-drive",
                f"id=kubelet,format=raw,file={self._folder / 'kubelet.raw'},{drive}",
                "-device",
                "virtio-blk-pci,drive=kubelet",
            ),
            *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci,id=bus"),
            *("-chardev", f"socket,id=agent,path={self._folder / 'agent.sock'},server=on,wait=off"),
            *("-device", "virtserialport,bus=bus.0,chardev=agent,name=org.devherd.machine"),
            *("-chardev", "null,id=card0", "-chardev", "null,id=card1"),
            *("-device", "virtserialport,bus=bus.0,chardev=card0,name=org.devherd.card0"),
            *("-qmp", f"unix:{self._folder / 'monitor.sock'},server=on,wait=off"),
        ]
        return list(parts)


class Channel:
    """JSON objects, one a line, over a unix socket that qemu listens on."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = b""
        end = time.monotonic() + timeout
        while self._socket.connect_ex(str(path)) != 0:
            if time.monotonic() > end:
                raise MachineError(f"nobody listens on {path} after {timeout:g} s; see qemu.log beside it")
            time.sleep(0.05)

    def write(self, value: Any) -> None:
        """Send one."""
        self._socket.sendall(json.dumps(value).encode() + b"\n")

    def read(self, timeout: float) -> dict[str, Any] | None:
        """The next one; None when there was none in time, or the other side is gone."""
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                data = self._socket.recv(65536)
            except OSError:
                return None
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.close()


def _leave_with_us() -> None:
    """Not even a killed test run leaves a machine on."""
    die_with_parent(signal.SIGKILL)


def _image_tool(*arguments: str) -> None:
    subprocess.run(["qemu-img", *arguments], check=True, capture_output=True)
