"""NVML, the driver's management library, by NVIDIA's own binding `pynvml`: finding it, opening it, calling it.

pynvml loads the bare name `libnvidia-ml.so.1` and has no option for a path, so the library is loaded here first and
handed to it. A simulation's library, or the stand-in in the process, takes its place below any root but `/`.

Nothing here lives longer than its reason: the driver may be unloaded, updated, containerised or away, and a `Driver`
finds out at its next `open`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any

from devherd.host.sysfs import Sysfs
from devherd.trust import changeable

from devherd_gpu.nvidia.standinstate import LIBRARY_FILE, STATE_FILE

if TYPE_CHECKING:
    from devherd.host import Host

logger = logging.getLogger("devherd_gpu.nvidia.nvml")

NOT_SUPPORTED, NOT_FOUND, INVALID_ARGUMENT, TIMEOUT, IN_USE = 3, 6, 2, 10, 19
UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 1, 9, 12, 13
GPU_IS_LOST, RESET_REQUIRED, MISMATCH, UNKNOWN = 15, 16, 18, 999
_ABSENT = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)
_HOLE = (NOT_FOUND, INVALID_ARGUMENT)
SESSION_OVER = (UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH)
"""What says that this NVML session is over, whatever was asked."""

NAME = "libnvidia-ml.so.1"
ROOTS = ("/", "/run/nvidia/driver")
"""Where a driver may be: on the host, or in the container of NVIDIA's GPU operator."""
FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/wsl/lib",
)
VERSION_FILE = "/proc/driver/nvidia/version"
OLDEST = "418"
"""The first driver branch with every call that discovery needs."""
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


class NvmlError(Exception):
    """A call failed: NVML's error `code` and the `function`; the text is for a person."""

    def __init__(self, code: int, function: str, text: str) -> None:
        super().__init__(f"{text} ({function.removeprefix('nvml')}, NVML error {code})")
        self.code = code
        self.function = function


class DriverProblem(Exception):
    """There is no working driver; the text says why and what to do."""


class Nvml:
    """An open NVML. Every call may block as long as the driver does; the front's deadline is what ends that."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def call(self, function: str, *args: Any) -> Any:
        """Call pynvml's function of this name. Raises NvmlError."""
        try:
            return getattr(self._api, function)(*args)
        except self._api.NVMLError as error:
            raise NvmlError(int(error.value), function, str(error)) from None
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, function, "Function Not Found") from None

    def optional(self, function: str, *args: Any, missing: Container[int] = _ABSENT) -> Any:
        """The same; None where this GPU or driver does not have it (an error in `missing`)."""
        try:
            return self.call(function, *args)
        except NvmlError as error:
            if error.code in missing:
                return None
            raise

    @property
    def api(self) -> Any:
        """pynvml or what stands in for it, for its constants and structures."""
        return self._api

    # -- the few calls that everybody needs

    def driver_version(self) -> str:
        """The driver's version, `580.95.05`."""
        return str(self.call("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA that the driver serves: major and minor; zeros when unknown."""
        number = int(self.optional("nvmlSystemGetCudaDriverVersion_v2") or 0)
        return number // 1000, number % 1000 // 10

    def count(self) -> int:
        """How many GPUs NVML counts."""
        return int(self.call("nvmlDeviceGetCount"))

    def by_index(self, index: int) -> Any:
        """The handle of a GPU."""
        return self.call("nvmlDeviceGetHandleByIndex", index)

    def by_uuid(self, uuid: str) -> Any:
        """The handle of a GPU or MIG device."""
        return self.call("nvmlDeviceGetHandleByUUID", uuid)

    def uuid(self, handle: Any) -> str:
        """A GPU's or MIG device's id."""
        return str(self.call("nvmlDeviceGetUUID", handle))

    def pci(self, handle: Any) -> str:
        """A GPU's PCI address as sysfs writes it."""
        return address(self.call("nvmlDeviceGetPciInfo_v3", handle).busId)

    def mig_handles(self, handle: Any) -> Iterator[tuple[int, Any]]:
        """NVML's index and the handle of each MIG device of a GPU."""
        for index in range(int(self.optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)):
            device = self.optional("nvmlDeviceGetMigDeviceHandleByIndex", handle, index, missing=_HOLE)
            if device is not None:
                yield index, device


def address(bus_id: bytes | str) -> str:
    """sysfs's form of NVML's bus id: `00000000:1B:00.0` is `0000:1b:00.0`; a longer domain stays."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"


class Driver:
    """The driver of this host, opened when it is needed and again when it is another one than before.

    `root` is the configured driver root, empty to look for it. An open NVML keeps the kernel module in use; `close`
    lets go of it.
    """

    def __init__(self, host: Host, root: str = "") -> None:
        self._host = host
        self._wanted = root
        self._nvml: Nvml | None = None
        self._stamp: tuple[object, ...] = ()
        self._api: Any = None
        self._loaded = ""
        self._about: object = None
        self.generation = 0
        """Counts openings: handles and everything that was learnt with an earlier number is void."""
        self.before_close: Callable[[], None] = lambda: None
        """Called before NVML is shut down, for threads that wait in it."""

    @property
    def root(self) -> str:
        """The driver's root (logical): where its libraries and tools are."""
        if self._wanted:
            return self._wanted
        return next((root for root in ROOTS if self._library(root)), "/")

    @property
    def simulated(self) -> bool:
        """Whether a simulation stands in for the driver here."""
        return self._simulation() != ""

    def open(self, about: object = None) -> Nvml:
        """NVML, initialised. Raises DriverProblem.

        It is initialised anew when the library, the kernel module or `about` (what the caller compares: the GPUs bound
        to the driver, which NVML counts only at its start) is another one than at the last call.
        """
        path, module = self._path(), self.module_version()
        stamp = (path, _signature(path), module, about)
        if self._nvml is not None and stamp != self._stamp:
            self.close()
        if self._nvml is None:
            self._nvml = self._start(path)
            self._stamp, self._about = stamp, about
            self.generation += 1
        return self._nvml

    def again(self) -> Nvml:
        """NVML as the last `open` had it. Raises DriverProblem."""
        return self.open(self._about)

    def close(self) -> None:
        """Let go of the driver; `open` takes it again."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            self.before_close()
            try:
                nvml.call("nvmlShutdown")
            except NvmlError as error:
                logger.debug("shutting NVML down: %s", error)

    def failed(self, error: NvmlError) -> DriverProblem | None:
        """Whether an error means that the driver as a whole is not there any more; then NVML is closed."""
        if error.code not in SESSION_OVER:
            return None
        self.close()
        return DriverProblem(self._why(error))

    def module_version(self) -> str:
        """The version of the kernel module that is loaded; empty when none is."""
        found = _VERSION.search(Sysfs(self._host).text(VERSION_FILE) or "")
        return found[1] if found else ""

    def _start(self, path: str) -> Nvml:
        try:
            nvml = Nvml(self._load(path))
            nvml.call("nvmlInit")
        except NvmlError as error:
            raise DriverProblem(self._why(error)) from None
        except OSError as error:
            raise DriverProblem(f"{path or NAME} cannot be loaded: {error}") from None
        try:
            version = nvml.driver_version()
            logger.info("NVML is open: driver %s, library %s", version, self._host.logical(path) if path else NAME)
            return nvml
        except NvmlError as error:
            raise DriverProblem(self._why(error)) from None

    def _why(self, error: NvmlError) -> str:
        module = self.module_version()
        if error.code == LIBRARY_NOT_FOUND:
            places = " or ".join((self._wanted,) if self._wanted else ROOTS)
            return f"there is no {NAME} below {places}: install the NVIDIA driver, or say where it is in driver.root"
        if error.code == DRIVER_NOT_LOADED or (error.code == UNINITIALIZED and not module):
            return "the NVIDIA kernel module is not loaded: load it (modprobe nvidia), or look into dmesg for why not"
        if error.code == MISMATCH:
            loaded = f"kernel module {module}" if module else "the kernel module"
            return (
                f"{loaded} and its library are of different versions: an update of the driver is not finished; "
                "reboot, or unload and load the module"
            )
        if error.code == FUNCTION_NOT_FOUND:
            return f"the driver {module or ''} is too old: it has no {error.function}; {OLDEST} or newer is needed"
        return f"NVML does not start: {error}"

    # -- the library

    def _path(self) -> str:
        """The real path of the library, or of a simulation's state file; empty: by its name."""
        return self._simulation() or self._library(self.root)

    def _simulation(self) -> str:
        root = os.path.normpath(self._host.paths.root)
        state, compiled = os.path.join(root, STATE_FILE), os.path.join(root, LIBRARY_FILE)
        if root == "/" or not os.path.exists(state):
            return ""
        return compiled if os.path.exists(compiled) else state

    def _library(self, root: str) -> str:
        for folder in FOLDERS:
            path = self._host.path(os.path.join(root, folder, NAME))
            if os.path.exists(path):
                return os.path.realpath(path)
        return ""

    def _load(self, path: str) -> Any:
        if path.endswith(".json"):
            from devherd_gpu.nvidia.standin import StandIn

            return StandIn(path)
        if self._api is not None and path == self._loaded:
            return self._api
        if os.geteuid() == 0 and path and not self.simulated and (why := changeable(path)):
            raise DriverProblem(f"{why}; a library that others can change is not loaded")
        self._api, self._loaded = _binding(path, by_name=os.path.normpath(self._host.paths.root) == "/"), path
        return self._api


def _binding(path: str, by_name: bool) -> Any:
    """pynvml with this library. Raises OSError; NvmlError where there is none."""
    if not path and not by_name:
        raise NvmlError(LIBRARY_NOT_FOUND, "nvmlInit", "NVML Shared Library Not Found")
    import pynvml

    if path:
        import ctypes

        # Another library than before: what pynvml remembers of the old one must go with it.
        pynvml.nvmlLib = ctypes.CDLL(path)
        pynvml._nvmlGetFunctionPointer_cache.clear()
    return pynvml


def _signature(path: str) -> tuple[int, ...]:
    """What tells a file from one that replaced it; a state file may change as it likes."""
    if not path or path.endswith(".json"):
        return ()
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_mtime_ns)
