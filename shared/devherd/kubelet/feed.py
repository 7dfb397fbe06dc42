"""The current snapshot of one resource, and the streams that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from devherd.kubelet.encode import encode_snapshot
from devherd.values import Snapshot


class SnapshotFeed:
    """Holds the newest snapshot, encoded once for all streams. A slow stream skips to the newest; none misses a change.

    Until something is published a stream waits: an empty first list would take the devices away from the kubelet.
    """

    def __init__(self) -> None:
        self.current: Snapshot | None = None
        self._encoded = b""
        self._followers: set[asyncio.Event] = set()

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the list. What equals on the wire is not sent again (each message costs the kubelet an fsync)."""
        if self.current is None or snapshot.members != self.current.members:
            self._encoded = encode_snapshot(snapshot)
        self.current = snapshot
        for follower in self._followers:
            follower.set()

    async def follow(self, write: Callable[[bytes], Awaitable[object]], on_sent: Callable[[Snapshot], None]) -> None:
        """Write the full list at once and again after each change, until cancelled.

        `on_sent` gets each snapshot once it is on its way, even where its bytes were sent already.
        """
        changed = asyncio.Event()
        self._followers.add(changed)
        try:
            sent: bytes | None = None
            while True:
                changed.clear()
                snapshot, encoded = self.current, self._encoded
                if snapshot is not None:
                    if encoded != sent:
                        await write(encoded)
                        sent = encoded
                    on_sent(snapshot)
                # A change during the write has set the event already.
                await changed.wait()
        finally:
            self._followers.discard(changed)
