"""Who listens on kubelet.sock, for the record; nothing waits for the answer."""

from __future__ import annotations

from dataclasses import dataclass

from devherd.kubelet.identity import Identity, probe_socket

FIRST = 0.005
LAST = 0.7


@dataclass
class Owner:
    """Looks a few times after the socket appeared (it is bound before it is listened on), pausing ever longer."""

    path: str
    identity: Identity | None = None
    seen_at: float = 0.0
    next_look: float | None = None
    _pause: float = FIRST

    def expect(self, now: float) -> None:
        """The socket appeared: start looking. Times are monotonic seconds."""
        self._pause = FIRST
        self.next_look = now + self._pause

    def look(self, now: float, wall: float) -> bool:
        """Look if it is time. True: somebody else listens than before."""
        if self.next_look is None or now < self.next_look:
            return False
        before = self.identity
        try:
            self.identity = probe_socket(self.path)
        except OSError:
            self.identity = None
            self._pause *= 2
            self.next_look = now + self._pause if self._pause <= LAST else None
            return False
        self.next_look = None
        if self.identity == before:
            return False
        self.seen_at = wall
        return True
