"""Asks the kubelet whether it shows our devices; one question serves all resources that ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from devherd.kubelet.podresources import PodResources, PodResourcesError
from devherd.kubelet.rivals import Newcomers, Rival, named
from devherd.kubelet.server import Stream
from devherd.patience import round_pause

_GATHER = 0.02  # seconds a question waits for others to join
# Seconds after a list was sent: the kubelet takes it in on its own time, and there is no acknowledgement. Until then
# other plugins may still be on their way, and need the processors.
_FIRST = 0.25
_RETRY = 0.03  # doubled with each different answer
_MISSES = 6  # questions, over about four seconds, before a different answer counts
_AGAIN = 30.0  # seconds between checks of what was confirmed, at the same moments for all resources of a process
_LOOK = 5.0  # seconds between looks whether a socket has come into the kubelet's folder
_AFTER_NEWCOMER = (1.0, 4.0, 10.0)  # seconds between checks then: it listens before it registers
_EMPTY_FOR = 10.0  # seconds the kubelet may show nothing of ours before the stream is made anew beside a live rival
_HEAL_MAX = 3600.0
_HEAL_FORGOTTEN = 4  # times as long as the last wait: a stream that held so long starts from the first wait again


class Verifier:
    """Shares GetAllocatableResources between resources: the kubelet limits all clients of a node together."""

    def __init__(self, pod_resources: PodResources) -> None:
        self._pod_resources = pod_resources
        self._next: asyncio.Task[dict[str, frozenset[str]]] | None = None
        self._healed: dict[str, tuple[float, float]] = {}

    def heal_after(self, resource: str, contested: bool) -> float:
        """Return for how many seconds a resource must be shown empty before its stream is made anew.

        Nothing more than the questions' own time where it never was and no other server is there (`contested`).
        """
        wait, at = self._healed.get(resource, (0.0, 0.0))
        if wait and monotonic() - at > _HEAL_FORGOTTEN * wait:
            del self._healed[resource]
            wait = 0.0
        return wait or (_EMPTY_FOR if contested else 0.0)

    def healed(self, resource: str) -> None:
        """Note that it was done: next time wait twice as long."""
        wait, _ = self._healed.get(resource, (0.0, 0.0))
        self._healed[resource] = (min(max(wait * 2, _EMPTY_FOR), _HEAL_MAX), monotonic())

    async def shown(self, resource: str) -> frozenset[str]:
        """Return the ids the kubelet counts as healthy now. Raises PodResourcesError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._ask())
            # Whoever asked may be gone by the time it fails; then nobody is to be told.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        answer = await asyncio.shield(self._next)
        return answer.get(resource, frozenset())

    async def _ask(self) -> dict[str, frozenset[str]]:
        await asyncio.sleep(_GATHER)
        # Whoever comes from here on wants a newer answer than this one.
        self._next = None
        return dict(await self._pod_resources.allocatable())


Judge = Callable[["bool | None", str, "tuple[Rival, ...]"], None]
Wait = Callable[[Callable[[], bool], float], Awaitable[bool]]


class Confirmation:
    """Compares what a stream sent with what the kubelet shows, for as long as the stream lives.

    A second server for our resource leaves our stream open and takes the devices over. That is said, not fought. When
    the kubelet shows nothing at all although our stream is open (the other server has gone and the kubelet disconnected
    the resource), the stream is cut, so that the resource is registered anew; ever more rarely if that does not help.
    """

    def __init__(
        self,
        verifier: Verifier,
        resource: str,
        find: Callable[[], tuple[Rival, ...]],
        newcomers: Newcomers,
        wait: Wait,
    ) -> None:
        self._verifier = verifier
        self._resource = resource
        self._find = find
        self._newcomers = newcomers
        self._soon: list[float] = []
        self._wait = wait
        self._empty_since: float | None = None

    async def run(self, stream: Stream, judge: Judge) -> None:
        """Judge until cancelled: True (shown), False (another list is shown) or None (the kubelet did not say)."""
        pause, misses = _FIRST, 0
        while True:
            sent = stream.sent
            if await self._disturbed(stream, pause):
                pause, misses = _FIRST, 0
                continue
            self._newcomers.remember()
            try:
                shown = await self._verifier.shown(self._resource)
            except PodResourcesError as error:
                judge(None, str(error), ())
                pause = min(max(pause, 0.5) * 2, _AGAIN)
                continue
            if stream.sent is not sent or sent is None:
                continue
            wanted = {member.id for member in sent.members if member.healthy}
            if shown == wanted:
                pause = self._soon.pop(0) if self._soon else round_pause(_AGAIN)
                misses, self._empty_since = 0, None
                judge(True, "", ())
                continue
            misses += 1
            pause = min(_RETRY * 2**misses, _AGAIN)
            if misses >= _MISSES:
                rivals = self._find()
                judge(False if shown or rivals else None, _who(len(wanted), len(shown), rivals), rivals)
                self._heal(stream, bool(wanted) and not shown, bool(rivals))

    async def _disturbed(self, stream: Stream, pause: float) -> bool:
        """Rest, and tell whether something ended that early: a new list was sent, or another socket has come."""
        sent, due = stream.sent, monotonic() + pause
        while (left := due - monotonic()) > 0:
            if await self._wait(lambda: stream.sent is not sent, min(left, round_pause(_LOOK))):
                return True
            if left > _LOOK and self._newcomers.any():
                self._soon = list(_AFTER_NEWCOMER)
                return True
        return False

    def _heal(self, stream: Stream, empty: bool, contested: bool) -> None:
        now = monotonic()
        if not empty:
            self._empty_since = None
            return
        if self._empty_since is None:
            self._empty_since = now
        if now - self._empty_since >= self._verifier.heal_after(self._resource, contested):
            self._verifier.healed(self._resource)
            stream.cut()


def _who(wanted: int, shown: int, rivals: tuple[Rival, ...]) -> str:
    text = f"the kubelet shows {shown} devices, we sent {wanted} healthy ones"
    return f"{text}: another server has this resource; {named(rivals)}" if shown else f"{text}; {named(rivals)}"
