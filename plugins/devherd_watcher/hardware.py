"""Hardware that appears.

Only subsystem and action are read, and nobody is believed more than that: a forged event starts a program that looks
for itself.
"""

from __future__ import annotations

from devherd import uevents

UDEV = uevents.UDEV
APPEARING = frozenset({"add", "bind", "change", "move", "online"})
LOST = "*"
"""Stands for every subsystem: the kernel dropped events."""


class Uevents(uevents.Uevents):
    """The netlink socket. Raises OSError where there is none (no right, no such protocol)."""

    def drain(self) -> set[str]:
        """Subsystems in which something appeared; LOST among them when events were dropped."""
        events, lost = self.take()
        found = {event.get("SUBSYSTEM", "") for event in events if event.get("ACTION") in APPEARING} - {""}
        return found | {LOST} if lost else found


def parse(data: bytes) -> tuple[str, str]:
    """Action and subsystem of a message; empty where it names none."""
    event = uevents.properties(data)
    return event.get("ACTION", ""), event.get("SUBSYSTEM", "")
