"""Access to the host under a settable root: device nodes, sysfs, PCI, NUMA and events.

Code above this layer speaks of *logical* paths (`/dev/x`, `/sys/class/y`), the ones that a container runtime
on the node would use. `Host` says where they really are, so that a captured or simulated node is read
like the real one. Nothing here needs root, changes the host, or imports grpc or asyncio.
"""

from devherd.host.access import Host
from devherd.host.chardev import DeviceNode, RdevTable
from devherd.host.view import Entry, View

__all__ = ["DeviceNode", "Entry", "Host", "RdevTable", "View"]
