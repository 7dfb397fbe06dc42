"""What it means when our stream ends again and again on one kubelet.

A kubelet cuts a stream for two reasons: something went wrong, or another server registered the same resource (newer
kubelets end the older stream, older ones disconnect by name when any of the two ends). The first two times nobody
can tell, and devices are worth an immediate return. From then on the kubelet is asked: while it shows devices for the
resource although we have no stream, another server has it, and two that take a resource from each other would leave
pods with neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from devherd.kubelet.identity import Identity
from devherd.kubelet.podresources import PodResourcesError
from devherd.kubelet.rivals import Rival, named
from devherd.kubelet.verify import Verifier

SETTLE = 0.075
"""Seconds between a stream's end and the next Register on the same kubelet, which disconnects by name."""
_WINDOW = 60.0  # seconds in which ends count together
_FREE = 2  # ends in the window that may have any reason
_PAUSE_MAX = 5.0
_LOOK_FIRST = 1.0
_LOOK_MAX = 30.0


class Loss(Struct, frozen=True):
    """Another server has our resource: the text for people, and who it may be."""

    text: str
    rivals: tuple[Rival, ...]

    def may_be_over(self) -> bool:
        """Tell whether one of the processes named has ended."""
        return any(rival.pid and not os.path.exists(f"/proc/{rival.pid}") for rival in self.rivals)


class Contest:
    """Counts the ends of one resource's streams. `find` names the other live servers."""

    def __init__(self, resource: str, verifier: Verifier | None, find: Callable[[], tuple[Rival, ...]]) -> None:
        self._resource = resource
        self._verifier = verifier
        self._find = find
        self._identity: Identity | None = None
        self._ends: list[float] = []
        self._looks = 0

    @property
    def lost(self) -> bool:
        """Whether the resource was left to another server at the last look."""
        return self._looks > 0

    def ended(self, identity: Identity) -> None:
        """A stream on this kubelet ended, and it was not us who ended it."""
        now = monotonic()
        if identity != self._identity:
            self._identity, self._ends, self._looks = identity, [], 0
        self._ends = [at for at in self._ends if now - at < _WINDOW] + [now]

    def pause(self, identity: Identity) -> float:
        """Seconds until the next Register on this kubelet: longer, when it keeps on cutting."""
        doublings = max(0, self._count(identity) - _FREE)
        return min(SETTLE * 2.0**doublings, _PAUSE_MAX)

    async def loss(self, identity: Identity) -> Loss | None:
        """Return why not to register now: another server has the resource. None: nothing speaks against it."""
        if identity != self._identity:
            # A new kubelet starts from nothing, and its first pods do not wait for questions.
            self._identity, self._ends, self._looks = identity, [], 0
            return None
        count = self._count(identity)
        if self._verifier is None or (count <= _FREE and not self.lost):
            self._looks = 0
            return None
        try:
            shown = await self._verifier.shown(self._resource)
        except PodResourcesError:
            # A kubelet that does not say keeps nobody from registering; the pause grows all the same.
            self._looks = 0
            return None
        if not shown:
            self._looks = 0
            return None
        self._looks += 1
        rivals = self._find()
        cuts = f"our stream ended {count} times" if count else "our stream was ended"
        return Loss(
            f"{cuts}, and the kubelet shows {len(shown)} devices without it: "
            f"another server has this resource; {named(rivals)}",
            rivals,
        )

    def asked(self) -> None:
        """Somebody wants a look now; the looks after that come as after the first."""
        self._looks = min(self._looks, 1)

    def look_again(self) -> float:
        """Seconds until the next look whether the other server has gone, if none of its processes ends before."""
        return min(_LOOK_FIRST * 2.0 ** min(self._looks - 1, 10), _LOOK_MAX)

    def _count(self, identity: Identity) -> int:
        if identity != self._identity:
            return 0
        now = monotonic()
        return sum(now - at < _WINDOW for at in self._ends)
