"""Health of the GPUs: what events and readings say about each, as evidence for the library's policy.

An event stays evidence until something proves the GPU good: for what does not last, the next round of readings (the
active probe); for what a reset ends, a reset that the driver's recovery action shows, or one that the library made.
What is known is repeated with each scan and check, so a new front or a slow one hears it all.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from devherd.values import Clears, Evidence, Severity

from devherd_gpu.nvidia.events import MIG_CHANGE, PROBLEM, XID, EventSource, EventWatch, Happened
from devherd_gpu.nvidia.gpus import Gpu
from devherd_gpu.nvidia.healthconfig import Health
from devherd_gpu.nvidia.nvml import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESET_REQUIRED,
    SESSION_OVER,
    Nvml,
    NvmlError,
)
from devherd_gpu.nvidia.signs import OF_INSTANCE, READINGS, Reading, Sign
from devherd_gpu.nvidia.xids import known

logger = logging.getLogger("devherd_gpu.nvidia.health")

RECOVERY_XID = 154

Asked = Mapping[str, Callable[[], str]]


class Monitor:
    """Watches all GPUs of one probe's life.

    `asked` are further questions about the node, by kind of evidence: each returns what is wrong, or an empty text.
    """

    def __init__(self, options: Health, asked: Asked | None = None) -> None:
        self._options = options
        self._policy = options.policy()
        self._asked = asked or {}
        self._events = EventWatch(self._matters)
        self._gpus: tuple[Gpu, ...] = ()
        self._offered: frozenset[str] = frozenset()
        self._signs: dict[str, dict[str, Sign]] = {}
        self._xids: dict[str, set[int]] = {}
        self._counts: Counter[tuple[str, int]] = Counter()
        self._proven: dict[str, Clears] = {}

    # -- for the vendor

    def sources(self) -> Sequence[EventSource]:
        """What the probe polls: readable as soon as an event matters."""
        return [self._events.source()]

    def looked(self, nvml: Nvml, gpus: Sequence[Gpu], offered: Collection[str], about: object) -> None:
        """A scan found these GPUs, and offers these things. Listens to them, and takes in what happened.

        `about` changes whenever NVML was opened anew.
        """
        gpus = [gpu for gpu in gpus if gpu.pci]
        self._gpus, self._offered = tuple(gpus), frozenset(offered)
        self._forget_instances()
        for gpu in gpus:
            lost = Sign("gpu-lost", bool(gpu.lost), gpu.lost)
            if gpu.lost or "gpu-lost" in self._signs.get(gpu.thing, {}):
                self._note(gpu.thing, lost)
        reachable = [gpu for gpu in gpus if not gpu.lost]
        refused = self._events.watch(nvml, reachable, about) if self._options.events else {}
        for gpu in reachable:
            reason = refused.get(gpu.thing, "")
            self._note(gpu.thing, Sign("unmonitored", bool(reason), reason, Severity.SOFT))
        self._take(nvml)

    def faults(self) -> tuple[Evidence, ...]:
        """What counts at once, for a scan."""
        return tuple(item for item in self._bad() if item.severity is Severity.HARD)

    def check(self, nvml: Nvml) -> tuple[Evidence, ...]:
        """Read every GPU, and say all that is known, good and bad. Raises NvmlError when the whole driver is gone."""
        self._take(nvml)
        silent = self._events.silent(time.monotonic())
        for gpu in self._gpus:
            if silent:
                text = "the driver hangs while it is asked for events"
                self._note(gpu.thing, Sign("unmonitored", True, text, Severity.SOFT))
            if not gpu.lost:
                self._examine(nvml, gpu)
            for kind, question in self._asked.items():
                reason = question()
                self._note(gpu.thing, Sign(kind, bool(reason), reason, Severity.SOFT))
        ended = list(self._prove())
        return (*ended, *self._good(), *self._bad())

    def known(self) -> tuple[Evidence, ...]:
        """What was known, when nobody can be asked."""
        return tuple(self._bad())

    def was_reset(self, gpu: Gpu) -> None:
        """The GPU was reset: what that ends is over, for its instances too, as soon as readings agree."""
        for thing in (gpu.thing, *(device.thing for device in gpu.mig_devices)):
            self._proven[thing] = Clears.RESET

    def release(self) -> None:
        """Listen to no event any more: NVML is about to be shut down."""
        self._events.stop()

    def gpu(self, thing: str) -> Gpu | None:
        """The GPU that is this thing, or that has this MIG device."""
        for gpu in self._gpus:
            if thing == gpu.thing or any(thing == device.thing for device in gpu.mig_devices):
                return gpu
        return None

    def _forget_instances(self) -> None:
        """What was read of MIG devices that are no more. What events said of them stays: they may be made anew."""
        there = {device.thing for gpu in self._gpus for device in gpu.mig_devices}
        for thing in [thing for thing in self._signs if thing.startswith("mig:") and thing not in there]:
            del self._signs[thing]

    # -- events

    def _matters(self, event: Happened) -> bool:
        return event.type != XID or event.data == RECOVERY_XID or self._policy.counts(event.data)

    def _take(self, nvml: Nvml) -> None:
        look: dict[str, Gpu] = {}
        for event in self._events.take():
            gpu = self.gpu(event.thing)
            if event.type == XID:
                self._xid(event, gpu)
            if event.type == MIG_CHANGE or not self._matters(event):
                continue  # that a scan follows is all it is for
            if gpu is None and event.type != PROBLEM:
                logger.warning("the driver reports an event (type %#x) of a GPU that it does not name", event.type)
            look.update({one.thing: one for one in ((gpu,) if gpu else self._gpus)})
        for gpu in look.values():
            if not gpu.lost:
                self._examine(nvml, gpu)

    def _xid(self, event: Happened, gpu: Gpu | None) -> None:
        xid = known(event.data)
        counts = self._policy.counts(event.data)
        logger.log(
            logging.WARNING if counts else logging.INFO,
            "%s reported %s (Xid %d%s)%s",
            gpu.uuid if gpu else "a GPU",
            xid.text,
            xid.number,
            f", GPU instance {event.gi}" if event.gi >= 0 and gpu and gpu.mig else "",
            "" if counts else ": does not count",
        )
        if gpu is None or not counts:
            return
        for thing in self._targets(gpu, event):
            self._xids.setdefault(thing, set()).add(event.data)
            self._counts[thing, event.data] += 1
            self._proven.pop(thing, None)

    def _targets(self, gpu: Gpu, event: Happened) -> list[str]:
        """The things that an event is about: the instance it names as far as that is offered, else the whole GPU."""
        of_gi = [device for device in gpu.mig_devices if device.gi == event.gi]
        exact = [device for device in of_gi if device.ci == event.ci] or of_gi
        return [device.thing for device in exact if device.thing in self._offered] or [gpu.thing]

    # -- readings

    def _examine(self, nvml: Nvml, gpu: Gpu) -> None:
        handle = self._handle(nvml, gpu.thing, gpu.uuid)
        if handle is None:
            return
        self._read(nvml, gpu.thing, handle, READINGS)
        for device in gpu.mig_devices:
            instance = self._handle(nvml, device.thing, device.uuid)
            if instance is not None:
                self._read(nvml, device.thing, instance, OF_INSTANCE)

    def _handle(self, nvml: Nvml, thing: str, uuid: str) -> Any:
        """The handle; None when even that cannot be had, which is noted."""
        try:
            return nvml.by_uuid(uuid)
        except NvmlError as error:
            if not thing.startswith("mig:") or error.code not in (NOT_FOUND, INVALID_ARGUMENT):
                self._failed(thing, error)
            return None  # an instance that was just taken apart is no fault; the next scan does without it

    def _read(self, nvml: Nvml, thing: str, handle: Any, readings: Sequence[Reading]) -> None:
        if not all(self._one(nvml, thing, handle, reading, reading is readings[0]) for reading in readings):
            return
        for kind in ("gpu-lost", "reset-required"):
            if kind in self._signs[thing]:
                self._note(thing, self._signs[thing][kind]._replace(bad=False))

    def _one(self, nvml: Nvml, thing: str, handle: Any, reading: Reading, basic: bool) -> bool:
        """Take one reading. False when it shows that the GPU cannot be worked with; other failures leave what was."""
        try:
            for sign in reading(nvml, handle):
                self._note(thing, sign)
        except NvmlError as error:
            if basic or error.code in (GPU_IS_LOST, RESET_REQUIRED, *SESSION_OVER):
                self._failed(thing, error)
                return False
            logger.debug("%s: %s", thing, error)
        return True

    def _failed(self, thing: str, error: NvmlError) -> None:
        if error.code in SESSION_OVER:
            raise error
        if error.code == GPU_IS_LOST:
            self._note(thing, Sign("gpu-lost", True, "the GPU has fallen off the bus"))
        elif error.code == RESET_REQUIRED:
            text = "the driver refuses to work with the GPU until it is reset"
            self._note(thing, Sign("reset-required", True, text, Severity.HARD, Clears.RESET))
        else:
            self._note(thing, Sign("no-answer", True, f"the GPU does not answer: {error}"))

    def _note(self, thing: str, sign: Sign) -> None:
        before = self._signs.setdefault(thing, {}).get(sign.kind)
        if sign.kind == "recovery-action" and before is not None and before.bad and not sign.bad:
            # The driver asked for it and does not any more: it was done, by whoever.
            self._proven[thing] = Clears.RESET
        self._signs[thing][sign.kind] = sign

    # -- what follows

    def _prove(self) -> Iterator[Evidence]:
        """Faults that ended, with what proves it: a reset that was seen, or readings without a hard fault."""
        for thing in {*self._xids, *self._proven}:
            gpu = self.gpu(thing)
            if gpu is None or gpu.lost or self._hard(gpu.thing) or self._hard(thing):
                continue
            by = self._proven.pop(thing, Clears.PROBE)
            if by is Clears.RESET:
                yield Evidence(thing, "", bad=False, clears=Clears.RESET)
            for number in self._forget(thing, by):
                yield Evidence(thing, f"xid-{number}", bad=False, clears=by)

    def _forget(self, thing: str, by: Clears) -> list[int]:
        ends = (Clears.TIME, Clears.PROBE) if by is Clears.PROBE else (Clears.TIME, Clears.PROBE, Clears.RESET)
        ended = sorted(number for number in self._xids.get(thing, ()) if known(number).ends_by in ends)
        self._xids.get(thing, set()).difference_update(ended)
        if not self._xids.get(thing):
            self._xids.pop(thing, None)
        return ended

    def _hard(self, thing: str) -> bool:
        """Whether a reading, as it counts here, stands against the thing."""
        return any(item.severity is Severity.HARD for item in self._of_signs(thing) if item.bad)

    def _of_signs(self, thing: str) -> Iterator[Evidence]:
        for sign in self._signs.get(thing, {}).values():
            says = self._options.evidence.get(sign.kind, sign.severity.value)
            if says == "off":
                continue
            if sign.bad:
                yield Evidence(thing, sign.kind, True, sign.reason, Severity(says), sign.clears)
            else:
                yield Evidence(thing, sign.kind, False, clears=sign.clears)

    def _good(self) -> Iterator[Evidence]:
        for thing in self._signs:
            yield from (item for item in self._of_signs(thing) if not item.bad)

    def _bad(self) -> Iterator[Evidence]:
        for thing in sorted(self._signs):
            yield from (item for item in self._of_signs(thing) if item.bad)
        for thing, numbers in sorted(self._xids.items()):
            for number in sorted(numbers):
                xid, count = known(number), self._counts[thing, number]
                # The count makes each event a new report, also when nobody listened between two of them.
                times = f", {count} times" if count > 1 else ""
                reason = f"the GPU reported {xid.text} (Xid {number}{times})"
                yield Evidence(thing, f"xid-{number}", True, reason, Severity.HARD, xid.ends_by)
