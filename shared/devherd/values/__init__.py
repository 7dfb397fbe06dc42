"""The values every layer speaks in: frozen, serialisable, free of behaviour that touches the host.

A *thing* is the identity of one physical device: the sysfs path of a device node's device
(`sys:/devices/...`), a PCI address (`pci:0000:81:00.0`), or, where sysfs knows nothing, the node's own
number (`c:10:229`). Health, claims and stale answers are all about things; ids are what the kubelet sees.
"""

from devherd.values.answer import Composed, Mount, Node, Parts
from devherd.values.device import Claim, Device
from devherd.values.inventory import NOTHING_NOW, HostFile, Inventory, Preference, Resource, Skipped
from devherd.values.snapshot import Member, Snapshot
from devherd.values.verdict import HEALTHY, Clears, Evidence, Severity, Verdict

__all__ = [
    "HEALTHY",
    "NOTHING_NOW",
    "Claim",
    "Clears",
    "Composed",
    "Device",
    "Evidence",
    "HostFile",
    "Inventory",
    "Member",
    "Mount",
    "Node",
    "Parts",
    "Preference",
    "Resource",
    "Severity",
    "Skipped",
    "Snapshot",
    "Verdict",
]
