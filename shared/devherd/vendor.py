"""The contract a kind of hardware fulfils. Runs in the probe, the only process that touches hardware.

`Vendor.scan` is all that is needed. Everything else is an optional capability, found by isinstance.
A method may block in a driver: the front gives each call a deadline and replaces a probe that misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from devherd.host import Host
    from devherd.host.events import EventSource
    from devherd.host.tree import Tree
    from devherd.values import Device, Evidence, Inventory


class Vendor(Protocol):
    """Knows one kind of hardware."""

    def scan(self) -> Inventory:
        """Read the host, change nothing; one bad device becomes a Skipped or Evidence, never an exception."""
        ...


@runtime_checkable
class Watches(Protocol):
    """Has sources of hints that a rescan is due."""

    def sources(self) -> Sequence[EventSource]:
        """Open event sources; the probe polls and closes them."""
        ...


@runtime_checkable
class Checks(Protocol):
    """Gathers health evidence beyond what the scan saw."""

    def check(self, devices: Sequence[Device]) -> Iterable[Evidence]:
        """Look at the devices of the last scan."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """Has work before a container starts (PreStartContainer; the kubelet waits 30 s and retries on error)."""

    def prepare(self, resource: str, ids: Sequence[str]) -> str:
        """Verify, clean or program the devices. Returns an empty string, or why it failed."""
        ...


@runtime_checkable
class Repairs(Protocol):
    """Can try to bring a quarantined thing back."""

    def repair(self, thing: str, attempt: int) -> str:
        """Take the reset ladder's step `attempt` (from 0). Returns an empty string, or why it failed."""
        ...


@dataclass(frozen=True)
class Simulated:
    """A plugin's part of the simulator: its hardware as a tree (devherd.host.tree), made from options.

    `options` is a msgspec Struct with a default for each field. A fault is a value of an option. `tree` raises
    ValueError for options that no hardware can have.
    """

    options: type[Any]
    tree: Callable[[Any], Tree]


@dataclass(frozen=True)
class Manifest:
    """What watcher, CLI, front and simulator know of a plugin without importing its vendor.

    `config` is the msgspec Struct of `plugins.d/<name>.yaml`; `vendor` is `module:factory`, called in the
    probe as `factory(config, host)`; `wakes_on` are udev subsystems (or `config`) that may end dormancy;
    `validate` checks what the schema cannot say and returns (key path, message) pairs. `captures` are glob patterns of
    logical paths in /sys and /proc that a capture of a node takes in addition to the usual ones (capture/choice.py).
    `importers` maps what `devherd config import` calls another plugin to `module:function`, called with a
    config.rival.Rival; it returns a config.rival.Imported. `simulator` is `module:attribute` of a Simulated.
    """

    name: str
    title: str
    config: type[Any]
    vendor: str
    wakes_on: tuple[str, ...] = ()
    validate: Callable[[Any], list[tuple[tuple[str | int, ...], str]]] | None = None
    importers: dict[str, str] = field(default_factory=dict)
    captures: tuple[str, ...] = ()
    simulator: str = ""


def load_object(reference: str) -> Any:
    """Import `module:attribute`. Raises ImportError or AttributeError with the usual texts."""
    import importlib

    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


VendorFactory = Callable[[Any, "Host"], Vendor]
