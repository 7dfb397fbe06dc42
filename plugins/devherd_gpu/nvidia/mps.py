"""NVIDIA's MPS control daemons as a program of their own: `python -I -m devherd_gpu.nvidia.mps --config FILE`.

One daemon for each resource that is shared with `mode: mps`, with its pipe and log folders below `mps_root`, limits
set, and its GPUs in exclusive mode. gpu-nvidia gives such shares only while the daemon answers (mpsready). When a
daemon ends, all are ended, and supervisord starts the program anew; when it is stopped, GPUs get their mode back.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from devherd.config.load import load_plugin_config, load_settings
from devherd.host import Host
from devherd.log import setup
from devherd.trust import changeable
from msgspec import Struct

from devherd_gpu.nvidia import mpsready
from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.manifest import MANIFEST
from devherd_gpu.nvidia.nvml import DriverProblem, NvmlError
from devherd_gpu.nvidia.resources import MPS, Unit
from devherd_gpu.nvidia.vendor import Vendor

logger = logging.getLogger("devherd_gpu.nvidia.mps")

CONTROL = "/usr/bin/nvidia-cuda-mps-control"
NOTHING = 69
"""Exit status when no rule shares by MPS: expected, as for a plugin without hardware."""
NOTHING_AFTER = 12.0
ANSWER = 5.0
START = 30.0
"""Seconds a daemon has to answer, once asked and after its start."""
PROHIBIT, DEFAULT, EXCLUSIVE = 2, 0, 3
"""NVML's compute modes; exclusive: one process may open the GPU, which is the MPS server."""
_NEW_NAMESPACE = 0x20000
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12
SHM = "/dev/shm"


class Daemon(Struct, frozen=True):
    """What one daemon serves: a resource, its GPUs in order, how many shares each has, the least memory in MiB."""

    resource: str
    gpus: tuple[str, ...]
    memory: tuple[int, ...]
    replicas: int

    def commands(self) -> list[str]:
        """Limits, as the control program reads them. GPUs are numbered as the daemon sees them."""
        shares = [size // self.replicas for size in self.memory]
        limits = [f"set_default_device_pinned_mem_limit {n} {size}M" for n, size in enumerate(shares) if size]
        return [*limits, f"set_default_active_thread_percentage {100 // self.replicas}"]


def daemons(units: Sequence[Unit]) -> tuple[Daemon, ...]:
    """One for each resource whose GPUs are shared by MPS."""
    by_name: dict[str, list[Unit]] = {}
    for unit in units:
        if unit.share is not None and unit.share.mode == MPS and not unit.target.gpu.lost:
            by_name.setdefault(unit.name, []).append(unit)
    return tuple(
        Daemon(
            resource=name,
            gpus=tuple(unit.target.uuid for unit in each),
            memory=tuple(unit.target.gpu.memory >> 20 for unit in each),
            replicas=max(unit.share.replicas for unit in each if unit.share),
        )
        for name, each in sorted(by_name.items())
    )


class Problem(Exception):
    """MPS cannot be served; the text says why and what to do."""


class Supervisor:
    """The daemons of one start."""

    def __init__(self, host: Host, config: Config, vendor: Vendor, shared_memory: bool) -> None:
        self._host = host
        self._root = host.path(config.mps_root)
        self._vendor = vendor
        self._shared_memory = shared_memory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._exclusive: list[str] = []

    def run(self, wanted: Sequence[Daemon], stopping: Callable[[], bool]) -> int:
        """Serve until told to stop or a daemon ends. Raises Problem."""
        try:
            self._prepare(wanted)
            for daemon in wanted:
                self._start(daemon)
            while not stopping():
                ended = [name for name, process in self._running.items() if process.poll() is not None]
                if ended:
                    logger.error("the MPS daemon of %s ended: all are started anew", ", ".join(ended))
                    return 1
                time.sleep(0.2)
            return 0
        finally:
            self._end()

    def _prepare(self, wanted: Sequence[Daemon]) -> None:
        for daemon in wanted:
            for name in ("pipe", "log"):
                os.makedirs(os.path.join(self._root, daemon.resource, name), mode=0o755, exist_ok=True)
            mpsready.withdraw(self._root, daemon.resource)
        if self._shared_memory:
            share_memory(os.path.join(self._root, "shm"))
        for uuid in {uuid for daemon in wanted for uuid in daemon.gpus}:
            self._mode(uuid, EXCLUSIVE)
            self._exclusive.append(uuid)

    def _start(self, daemon: Daemon) -> None:
        program = self._program()
        environment = self._environment(daemon)
        self._running[daemon.resource] = subprocess.Popen([program, "-f"], stdin=subprocess.DEVNULL, env=environment)
        end = time.monotonic() + START
        while not self._ask(daemon, "get_default_active_thread_percentage"):
            if self._running[daemon.resource].poll() is not None or time.monotonic() > end:
                log = os.path.join(self._root, daemon.resource, "log", "control.log")
                raise Problem(f"the MPS daemon of {daemon.resource} does not answer: see {log}")
            time.sleep(0.1)
        for command in daemon.commands():
            self._ask(daemon, command)
        mpsready.announce(self._root, daemon.resource, os.getpid())
        logger.info("MPS serves %s: %d GPU(s), %d shares each", daemon.resource, len(daemon.gpus), daemon.replicas)

    def _program(self) -> str:
        root = self._vendor.driver.root
        program = self._host.path(os.path.join(root, CONTROL.lstrip("/")))
        if not os.path.exists(program):
            raise Problem(f"there is no {CONTROL} below {root}: install the driver's compute tools")
        if os.geteuid() == 0 and (why := changeable(program)):
            raise Problem(f"{program} is not run: {why}")
        return program

    def _environment(self, daemon: Daemon) -> dict[str, str]:
        folder = os.path.join(self._root, daemon.resource)
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "CUDA_VISIBLE_DEVICES": ",".join(daemon.gpus),
            "CUDA_MPS_PIPE_DIRECTORY": os.path.join(folder, "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": os.path.join(folder, "log"),
        }

    def _ask(self, daemon: Daemon, command: str) -> str:
        """One line to the control program; what it printed, empty when it did not answer."""
        try:
            done = subprocess.run(
                [self._program()],
                input=command.encode() + b"\n",
                capture_output=True,
                env=self._environment(daemon),
                timeout=ANSWER,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        text = done.stdout.decode("utf-8", "replace").strip()
        return (text or "done") if done.returncode == 0 else ""

    def _mode(self, uuid: str, mode: int) -> None:
        try:
            nvml = self._vendor.driver.again()
            nvml.call("nvmlDeviceSetComputeMode", nvml.by_uuid(uuid), mode)
        except (NvmlError, DriverProblem) as error:
            logger.warning("the compute mode of %s cannot be set: %s", uuid, error)

    def _end(self) -> None:
        for resource in self._running:
            mpsready.withdraw(self._root, resource)
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            _wait_end(process)
        for uuid in self._exclusive:
            self._mode(uuid, DEFAULT)
        self._vendor.driver.close()


def _wait_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def share_memory(folder: str) -> None:
    """Have this process and its daemons see `folder` as /dev/shm: containers get the same one.

    The folder is a tmpfs that everybody sees, bound over /dev/shm in a mount namespace of our own. Raises Problem.
    """
    os.makedirs(folder, mode=0o1777, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(what: bytes, where: str, kind: bytes, flags: int) -> None:
        if libc.mount(what, os.fsencode(where), kind, ctypes.c_ulong(flags), None):
            raise Problem(f"{where} cannot be mounted: {os.strerror(ctypes.get_errno())}")

    if not os.path.ismount(folder):
        mount(b"tmpfs", folder, b"tmpfs", 0)
        os.chmod(folder, 0o1777)
    if libc.unshare(_NEW_NAMESPACE):
        raise Problem(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    mount(b"none", "/", b"none", _PRIVATE | _RECURSIVE)
    mount(os.fsencode(folder), SHM, b"none", _BIND)


def main(arguments: list[str]) -> int:
    """Run until SIGTERM. Returns the exit status."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if not set(options) <= {"--config", "--shared-memory"} or "--config" not in options:
        print("usage: devherd_gpu.nvidia.mps --config FILE [--shared-memory no]", file=sys.stderr)
        return 2
    settings = load_settings(options["--config"]).value
    if settings is None:
        print(f"{options['--config']} cannot be used: devherd config check says why", file=sys.stderr)
        return 1
    setup(settings.log, "gpu-nvidia-mps")
    stop = _Stop()
    config = load_plugin_config(settings, MANIFEST).value
    if config is None or not any(rule.mode == MPS for rule in config.sharing):
        logger.info("no rule of gpu-nvidia.yaml shares by MPS")
        stop.wait(NOTHING_AFTER)
        return 0 if stop.asked else NOTHING
    host = Host(settings.paths)
    vendor = Vendor(config, host)
    vendor.scan()
    try:
        supervisor = Supervisor(host, config, vendor, options.get("--shared-memory", "yes") != "no")
        return supervisor.run(_some(vendor), lambda: stop.asked)
    except (Problem, OSError) as problem:
        logger.error("%s", problem)
        stop.wait(NOTHING_AFTER)
        return 0 if stop.asked else 1


def _some(vendor: Vendor) -> tuple[Daemon, ...]:
    found = daemons(vendor.plan.units)
    if not found:
        said = (one.reason for one in vendor.found.skipped)
        raise Problem(f"no GPU to share by MPS: {next(iter(said), 'none fits the rules')}")
    return found


class _Stop:
    """Whether we were asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        # The launcher blocked them until a handler exists. Those that mean something to fronts mean nothing here.
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def wait(self, seconds: float) -> None:
        """Wait so long, or until asked."""
        for _ in self._ticks(seconds):
            time.sleep(0.1)

    def _ticks(self, seconds: float) -> Iterator[None]:
        end = time.monotonic() + seconds
        while not self.asked and time.monotonic() < end:
            yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
