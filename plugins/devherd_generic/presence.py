"""What was offered in the scan before and is gone: evidence, so that everything that stands on a lost thing follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from devherd.values import Clears, Evidence, Resource, Severity

if TYPE_CHECKING:
    from devherd.host import View

REMEMBERED_AT_MOST = 4096
KIND = "gone"


class Presence:
    """Remembers the things of the last scan. A thing that was gone once is told as good from then on."""

    def __init__(self) -> None:
        self._offered: dict[str, str] = {}
        self._lost: dict[str, str] = {}

    def update(self, view: View, resources: Iterable[Resource]) -> tuple[Evidence, ...]:
        """Compare this scan's devices with the last one's."""
        offered = {
            node.thing: node.host_path
            for resource in resources
            for device in resource.devices
            for node in device.parts.nodes
        }
        for thing, path in self._offered.items():
            if thing not in offered:
                self._lost[thing] = path
        self._offered = offered
        while len(self._lost) > REMEMBERED_AT_MOST:
            del self._lost[next(iter(self._lost))]
        return tuple(self._evidence(view, thing, path) for thing, path in self._lost.items())

    def _evidence(self, view: View, thing: str, path: str) -> Evidence:
        path = self._offered.get(thing, path)
        node = view.node(path)
        if node is None:
            reason = f"{path} is gone"
        elif view.thing(node.kind, node.major, node.minor) != thing:
            reason = f"{path} leads to another device now"
        else:
            reason = ""
        return Evidence(thing, KIND, bool(reason), reason, Severity.HARD, Clears.PROBE)
