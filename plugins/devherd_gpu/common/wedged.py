"""GPUs that their driver gave up: the kernel's `WEDGED=` uevent (Documentation/gpu/drm-uapi.rst, "Device Wedging").

The event is all there is: no file in sysfs says it later. So it is remembered, until the driver is bound anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

Event = Mapping[str, str]
GONE = ("unbind", "remove", "bind", "add")


class Monitor(Protocol):
    """What is needed of pyudev's."""

    def fileno(self) -> int:
        """The netlink socket."""
        ...

    def poll(self, timeout: float) -> Any:
        """The next event as a mapping of its properties, or None."""
        ...


class WedgedEvents:
    """An event source; `wedged` maps the PCI address of a GPU to the recovery methods that its driver names."""

    def __init__(self, monitor: Monitor, name: str = "wedged") -> None:
        self._monitor: Monitor | None = monitor
        self._name = name
        self.wedged: dict[str, str] = {}

    def fileno(self) -> int:
        """The netlink socket."""
        return self._monitor.fileno() if self._monitor is not None else -1

    def drain(self) -> str:
        """Take what is there."""
        due = ""
        while self._monitor is not None:
            try:
                event = self._monitor.poll(timeout=0)
            except OSError:
                return self._name
            if event is None:
                break
            due = self._take(event) or due
        return due

    def close(self) -> None:
        """Let go of the socket: pyudev closes it with its last reference."""
        self._monitor = None

    def _take(self, event: Event) -> str:
        words = dict(event)
        address = address_of(words.get("DEVPATH", ""))
        if not address:
            return ""
        if words.get("WEDGED"):
            self.wedged[address] = words["WEDGED"]
            return self._name
        if words.get("SUBSYSTEM") == "pci" and words.get("ACTION") in GONE and self.wedged.pop(address, ""):
            return self._name
        return ""


def address_of(path: str) -> str:
    """The PCI function that a device's path in sysfs leads through last; empty when it leads through none."""
    found = ""
    for part in path.split("/"):
        if part.count(":") == 2 and "." in part:
            found = part
    return found


def listen(subsystems: Iterable[str] = ("drm", "pci"), monitor: Callable[[], Monitor] | None = None) -> WedgedEvents:
    """The source on udev's or the kernel's events. Raises OSError or ImportError where there are none."""
    if monitor is not None:
        return WedgedEvents(monitor())
    import pyudev

    source = "udev" if os.path.exists("/run/udev/control") else "kernel"
    made = pyudev.Monitor.from_netlink(pyudev.Context(), source=source)
    for subsystem in subsystems:
        made.filter_by(subsystem)
    made.start()
    return WedgedEvents(made)
