"""Small reads from sysfs (or procfs) by logical path. Missing, unreadable and odd content is None, never an error:
an attribute may vanish, or answer EIO, at any moment of a device's life."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from devherd.host.shortage import raise_if_short

if TYPE_CHECKING:
    from devherd.host.access import Host

LARGEST = 65536  # a sysfs attribute is at most one page


class Sysfs:
    """Reads below a host's /sys."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def text(self, path: str) -> str | None:
        """An attribute's text without surrounding white space and NULs."""
        try:
            with open(self._host.path(path), "rb") as file:
                return file.read(LARGEST).decode("utf-8", "replace").strip(" \t\r\n\0")
        except (OSError, ValueError) as error:
            raise_if_short(error)
            return None

    def integer(self, path: str) -> int | None:
        """A decimal number."""
        return _number(self.text(path), 10)

    def hexadecimal(self, path: str) -> int | None:
        """A number in hex, with or without `0x`."""
        return _number(self.text(path), 16)

    def link(self, path: str) -> str | None:
        """The last component of a link's target (`driver`, `subsystem`, `iommu_group`, `physfn`)."""
        try:
            return os.path.basename(os.readlink(self._host.path(path)).rstrip("/")) or None
        except (OSError, ValueError) as error:
            raise_if_short(error)
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """What a folder holds, sorted; empty when missing."""
        try:
            return tuple(sorted(os.listdir(self._host.path(folder))))
        except (OSError, ValueError) as error:
            raise_if_short(error)
            return ()


def _number(text: str | None, base: int) -> int | None:
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None
