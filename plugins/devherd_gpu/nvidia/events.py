"""NVML's events, waited for in a thread, so that the probe can answer while nothing happens and hears at once.

A wait in NVML takes at most WAIT; ctypes lets other threads run meanwhile. A driver that hangs in it costs this thread
and nothing else: events stop, which `silent` tells, and the readings of `signs` go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from devherd_gpu.nvidia.gpus import Gpu
from devherd_gpu.nvidia.nvml import NOT_SUPPORTED, TIMEOUT, Nvml, NvmlError

logger = logging.getLogger("devherd_gpu.nvidia.events")

WAIT = 1.0
"""Seconds of one wait in NVML: how long an idle thread sleeps, and how long ending it may take."""
SILENT = 30.0
"""Seconds after which a wait that has not returned is called hung."""
MOST = 1000
"""Events kept until somebody takes them; older ones go."""
_RETRY = (1.0, 60.0)
"""Seconds before an event set that failed is made anew: the first pause, and the cap of its doubling."""
_NONE = 0xFFFFFFFF

DOUBLE_BIT, XID, MIG_CHANGE = 0x2, 0x8, 0x100
POISON, UNAVAILABLE, RECOVERY = 0x2000, 0x4000, 0x8000
WANTED = DOUBLE_BIT | XID | MIG_CHANGE | POISON | UNAVAILABLE | RECOVERY
PROBLEM = 0
"""Type of an event of our own: waiting failed, so look at everything."""


class Happened(NamedTuple):
    """An event. `thing` is the GPU's, empty when the driver could not say which; gi, ci -1: not of an instance."""

    thing: str
    type: int
    data: int = 0
    gi: int = -1
    ci: int = -1


Matters = Callable[[Happened], bool]


class EventWatch:
    """Events of all GPUs. `matters` says which are worth a hint; it is called in the thread."""

    def __init__(self, matters: Matters = lambda _: True) -> None:
        self._matters = matters
        self._found: deque[Happened] = deque(maxlen=MOST)
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._turn: _Turn | None = None
        self._for: object = None
        self._retry = _RETRY[0]
        self._not_before = 0.0

    def source(self) -> EventSource:
        """For the probe to poll."""
        return EventSource(self._read)

    def watch(self, nvml: Nvml, gpus: Sequence[Gpu], about: object) -> dict[str, str]:
        """Listen to these GPUs, unless that is what happens already. Why not, by thing, for those that cannot be.

        `about` is whatever makes a new registration necessary when it changed (the opening of NVML).
        """
        wanted = (about, tuple(gpu.uuid for gpu in gpus))
        now = time.monotonic()
        turn = self._turn
        if turn is not None and self._for == wanted and (not turn.broken or now < self._not_before):
            return turn.refused
        if turn is None or not turn.broken:
            self._retry = _RETRY[0]
        self.stop()
        self._not_before, self._retry = now + self._retry, min(2 * self._retry, _RETRY[1])
        self._turn = _Turn(nvml, gpus, self._happened)
        self._for = wanted
        if self._turn.names:
            self._thread = threading.Thread(target=self._turn.run, name="nvml-events", daemon=True)
            self._thread.start()
        return self._turn.refused

    def take(self) -> list[Happened]:
        """What happened since the last call, oldest first."""
        found: list[Happened] = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._found.popleft())
        return found

    def silent(self, now: float) -> bool:
        """Whether the driver hangs in the wait."""
        turn = self._turn
        return turn is not None and bool(turn.names) and not turn.broken and now - turn.beat > SILENT

    def stop(self) -> None:
        """Listen no more. Before NVML is shut down. A thread that hangs in the driver is left behind."""
        turn, self._turn, self._for = self._turn, None, None
        thread, self._thread = self._thread, None
        if turn is not None:
            turn.over.set()
        if thread is not None:
            thread.join(2 * WAIT)

    def close(self) -> None:
        """Let go of everything."""
        self.stop()
        os.close(self._read)
        os.close(self._write)

    def _happened(self, event: Happened) -> None:
        self._found.append(event)
        if event.type == PROBLEM or self._matters(event):
            with contextlib.suppress(OSError):  # full: a hint is under way
                os.write(self._write, b".")


class EventSource:
    """The reading end of the pipe, as the probe polls it."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)

    def fileno(self) -> int:
        """What becomes readable."""
        return self._fd

    def drain(self) -> str:
        """Whether anything happened."""
        try:
            return "nvml" if os.read(self._fd, 65536) else ""
        except BlockingIOError:
            return ""

    def close(self) -> None:
        """Close our copy."""
        os.close(self._fd)


class _Turn:
    """One event set from its creation to its end."""

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu], tell: Callable[[Happened], None]) -> None:
        self._nvml = nvml
        self._tell = tell
        self.over = threading.Event()
        self.broken = False
        self.beat = time.monotonic()
        self.names: dict[object, str] = {}
        self.refused: dict[str, str] = {}
        self._events: Any = None
        try:
            self._events = nvml.call("nvmlEventSetCreate")
        except NvmlError as error:
            self.refused = {gpu.thing: f"no events from the driver: {error}" for gpu in gpus}
            self.broken = error.code != NOT_SUPPORTED
            return
        for gpu in gpus:
            self._register(gpu)

    def _register(self, gpu: Gpu) -> None:
        """A GPU that has no events at all (old, virtual) is no problem; one that cannot be asked is."""
        try:
            handle = self._nvml.by_uuid(gpu.uuid)
            supported = int(self._nvml.call("nvmlDeviceGetSupportedEventTypes", handle)) & WANTED
            if supported:
                self._nvml.call("nvmlDeviceRegisterEvents", handle, supported, self._events)
                self.names[_key(handle)] = gpu.thing
            else:
                logger.warning("%s (%s) has no events: its health is asked, not told", gpu.uuid, gpu.pci)
        except NvmlError as error:
            if error.code == NOT_SUPPORTED:
                logger.warning("%s (%s) has no events: its health is asked, not told", gpu.uuid, gpu.pci)
            else:
                self.refused[gpu.thing] = f"no events from the GPU: {error}"

    def run(self) -> None:
        """Wait until told otherwise, or until NVML says that waiting is of no use."""
        while not self.over.is_set() and not self.broken:
            self.beat = time.monotonic()
            try:
                event = self._nvml.call("nvmlEventSetWait_v2", self._events, int(WAIT * 1000))
            except NvmlError as error:
                if error.code != TIMEOUT:
                    logger.warning("waiting for events failed: %s", error)
                    # The next look at the GPUs makes a new set; this says that one is due.
                    self.broken = True
                    self._tell(Happened("", PROBLEM, error.code))
                continue
            self._tell(self._read(event))
        with contextlib.suppress(NvmlError):
            self._nvml.call("nvmlEventSetFree", self._events)

    def _read(self, event: Any) -> Happened:
        instance = (_instance(event.gpuInstanceId), _instance(event.computeInstanceId))
        # By the handle: a GPU that is lost cannot be asked for its name any more.
        return Happened(self.names.get(_key(event.device), ""), int(event.eventType), int(event.eventData), *instance)


def _instance(number: int) -> int:
    return -1 if number == _NONE else int(number)


def _key(handle: Any) -> object:
    """What tells handles apart: the address that NVML gave, or the stand-in's own value."""
    if isinstance(handle, tuple):
        return handle
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value
