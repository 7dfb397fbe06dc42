"""Where a resource stands with the kubelet, as a value."""

from __future__ import annotations

from msgspec import Struct

from devherd.kubelet.identity import Identity
from devherd.kubelet.rivals import Rival

WAITING = "waiting"
REGISTERING = "registering"
REGISTERED = "registered"
UNVERIFIED = "unverified"
REFUSED = "refused"
TAKEN = "taken"
STOPPED = "stopped"


class RegistrationStatus(Struct, frozen=True):
    """Where a resource stands with the kubelet.

    `state`: waiting (no kubelet, or a pause), registering, registered (stream open and the kubelet shows our list),
    unverified (stream open, the kubelet did not say), refused (cannot heal by itself), taken (the kubelet shows another
    list than ours, or ended our stream again and again for another server's; `rivals` are those that may have it),
    stopped. `registered_at` and `stream_since` are Unix seconds, 0 for never; `stream_opened` is
    the latter in monotonic seconds, which no moved clock changes; `duration_ms` is
    the time from the sign of a new kubelet to our list on its way; `count` counts registrations that led to a stream.
    """

    state: str = WAITING
    identity: Identity | None = None
    endpoint: str = ""
    registered_at: float = 0.0
    duration_ms: float = 0.0
    count: int = 0
    stream_since: float = 0.0
    stream_opened: float = 0.0
    error: str = ""
    rivals: tuple[Rival, ...] = ()
