"""NVIDIA's Xid numbers as data: what each means to the vendor, in our words, and what ends the fault.

The source is the vendor's Xid catalogue (docs.nvidia.com/deploy/xid-errors, its resolution buckets). Which numbers do
not count by default is what the vendor's device plugin skips; every other number counts, unknown ones included.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from devherd.values import Clears


class Meaning(str, Enum):
    """What the vendor advises: restart the application, nothing that lasts, reset the GPU, restart the node."""

    APPLICATION = "application"
    TRANSIENT = "transient"
    RESET = "reset"
    HARDWARE = "hardware"


CLEARS: Mapping[Meaning, Clears] = MappingProxyType(
    {
        Meaning.APPLICATION: Clears.PROBE,
        Meaning.TRANSIENT: Clears.PROBE,
        Meaning.RESET: Clears.RESET,
        Meaning.HARDWARE: Clears.REBOOT,
    }
)
"""What ends a fault of each meaning. Hardware that is still broken after a reboot says so again."""


class Xid(NamedTuple):
    """One number. `text` completes the sentence "the GPU reported ..."."""

    number: int
    meaning: Meaning
    text: str

    @property
    def ends_by(self) -> Clears:
        """What ends the fault."""
        return CLEARS[self.meaning]


SKIPPED = frozenset({13, 31, 43, 45, 68, 109})
"""Numbers that the vendor's plugin skips: the application's own doing, or the echo of another error."""

_A, _T, _R, _H = Meaning.APPLICATION, Meaning.TRANSIENT, Meaning.RESET, Meaning.HARDWARE

_ROWS: tuple[tuple[int, Meaning, str], ...] = (
    (8, _A, "a channel that stopped making progress"),
    (11, _A, "a corrupt stream of commands"),
    (13, _A, "an exception in the graphics or compute engine"),
    (24, _T, "a firmware breakpoint in the scheduler"),
    (25, _A, "an illegal access in a stream of commands"),
    (31, _A, "a memory access that no mapping allows"),
    (32, _A, "an invalid stream of commands"),
    (37, _A, "an error in the driver's firmware"),
    (38, _A, "a mismatch between driver and firmware"),
    (39, _A, "an exception in copy engine 0"),
    (40, _A, "an exception in copy engine 1"),
    (41, _A, "an exception in copy engine 2"),
    (42, _A, "an exception in the video processor"),
    (43, _A, "a channel that had to be reset"),
    (44, _A, "a fault while an engine switched contexts"),
    (45, _A, "channels removed after another error or a killed process"),
    (46, _R, "that it stopped processing"),
    (48, _R, "a double-bit memory error"),
    (54, _H, "that its auxiliary power is not connected"),
    (56, _T, "an error of the display engine"),
    (57, _T, "an error while its memory link was trained"),
    (58, _T, "an unstable memory link"),
    (59, _T, "an internal firmware error"),
    (60, _T, "an error in the video processor's firmware"),
    (61, _R, "a breakpoint in the power management firmware"),
    (62, _R, "that the power management firmware halted"),
    (63, _T, "that a memory row or page was replaced or will be at the next reset"),
    (64, _R, "that a bad memory row or page could not be replaced"),
    (65, _T, "an exception in the video processor"),
    (66, _A, "an illegal access by the driver"),
    (67, _A, "an illegal access by the driver"),
    (68, _A, "an exception in video decoder 0"),
    (69, _A, "a command that its engine does not know"),
    (70, _A, "an exception in copy engine 3"),
    (71, _A, "an exception in copy engine 4"),
    (72, _A, "an exception in copy engine 5"),
    (73, _A, "an exception in a video encoder"),
    (74, _R, "an NVLink error"),
    (75, _A, "an exception in copy engine 6"),
    (76, _A, "an exception in copy engine 7"),
    (77, _A, "an exception in copy engine 8"),
    (78, _T, "that a virtual GPU could not start"),
    (79, _H, "that it has fallen off the bus"),
    (80, _A, "a stream of commands whose checksum is wrong"),
    (81, _T, "an error of the VGA part"),
    (82, _A, "an exception in JPEG engine 0"),
    (83, _A, "an exception in video decoder 1"),
    (84, _A, "an exception in video decoder 2"),
    (85, _A, "an exception in copy engine 9"),
    (86, _A, "an exception in the optical flow engine"),
    (88, _A, "an exception in video decoder 3"),
    (89, _A, "an exception in video decoder 4"),
    (90, _T, "an error in its second-level cache"),
    (92, _T, "many corrected memory errors"),
    (93, _T, "that its information memory was rewritten too often"),
    (94, _A, "a memory error that was contained to one application"),
    (95, _R, "a memory error that was not contained"),
    (108, _T, "an NVLink access to an address that the other side does not know"),
    (109, _A, "that an engine did not switch contexts in time"),
    (110, _R, "a security fault"),
    (119, _R, "that its firmware does not answer"),
    (120, _R, "an error of its firmware"),
    (121, _T, "a corrected error on the link to the CPU"),
    (122, _H, "that a part of its flash memory cannot be written"),
    (123, _R, "a lost answer of the power management firmware"),
    (124, _T, "an error in the link between dies"),
    (125, _T, "an error in its information memory"),
    (136, _R, "that an NVLink could not be trained"),
    (137, _T, "an NVLink access without permission"),
    (139, _A, "an exception in the second optical flow engine"),
    (140, _R, "a memory error that could not be recovered from"),
    (141, _T, "an error on the fast path"),
    (142, _A, "an exception in a video encoder"),
    (143, _R, "that it could not be initialised"),
    (144, _T, "an NVLink error; the recovery action that comes with it says what is needed"),
    (145, _T, "an NVLink error; the recovery action that comes with it says what is needed"),
    (146, _T, "an NVLink error; the recovery action that comes with it says what is needed"),
    (147, _T, "an NVLink error that needs nothing done"),
    (148, _T, "an NVLink error that needs nothing done"),
    (149, _R, "an NVLink that went down or is about to"),
    (150, _R, "an error of the NVLink management firmware"),
    (151, _H, "that an encryption key could not be renewed"),
    (152, _T, "an error of the deep learning accelerator's memory unit"),
    (153, _T, "a timeout of the deep learning accelerator"),
    (154, _T, "that the action needed to recover it changed"),
    (155, _R, "an NVLink error that its software found"),
    (156, _R, "a resource to be retired at the next reset"),
    (157, _T, "that a resource could not be retired"),
    (158, _R, "a fatal timeout"),
    (159, _R, "an error on the coherent link"),
    (160, _T, "that a memory channel was retired"),
    (161, _T, "that a memory channel could not be retired"),
    (162, _T, "that power smoothing works again"),
    (163, _T, "that power smoothing stopped"),
    (164, _T, "that the power smoothing circuit is near its end of life"),
    (165, _T, "that the power smoothing circuit is at its end of life"),
    (166, _T, "an encryption error on an NVLink"),
    (167, _T, "a fatal timeout on PCIe"),
    (168, _T, "that less of its memory is usable"),
    (169, _R, "that its security processor halted"),
    (170, _T, "an error on a protected NVLink"),
    (171, _R, "an uncorrectable error in its memory"),
    (172, _R, "an uncorrectable error in its caches"),
)


def _table() -> dict[int, Xid]:
    rows = {number: Xid(number, meaning, text) for number, meaning, text in _ROWS}
    engines = [
        ("a video decoder", range(96, 99)),
        ("a JPEG engine", range(99, 106)),
        ("a copy engine", range(126, 136)),
    ]
    for what, numbers in engines:
        rows |= {number: Xid(number, _A, f"an exception in {what}") for number in numbers}
    rows |= {number: Xid(number, _T, "a test message") for number in (106, 107)}
    return rows


XIDS: Mapping[int, Xid] = MappingProxyType(_table())
"""Every number that we know something about."""


def known(number: int) -> Xid:
    """What a number means; one that the catalogue did not have when this was written is transient."""
    return XIDS.get(number) or Xid(number, Meaning.TRANSIENT, "an error that this version does not know")


class Policy(NamedTuple):
    """Which numbers count. `nothing`: none but those in `counted`. `counted` wins over everything."""

    skipped: frozenset[int] = SKIPPED
    counted: frozenset[int] = frozenset()
    nothing: bool = False

    def counts(self, number: int) -> bool:
        """Whether an event of this number is a fault."""
        return number in self.counted or not (self.nothing or number in self.skipped)
