"""What the kubelet's five calls mean for one resource. Answers come from the model, in memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import grpc

from devherd.compose import ComposeError, compose
from devherd.front.journal import Journal
from devherd.front.model import Model, Refused
from devherd.front.probelink import ProbeError
from devherd.kubelet.server import PreferredRequest, Refusal
from devherd.log import event
from devherd.prefer import choose
from devherd.values import Composed

logger = logging.getLogger(__name__)

UNKNOWN_ID = grpc.StatusCode.INVALID_ARGUMENT
UNUSABLE = grpc.StatusCode.FAILED_PRECONDITION

Prepare = Callable[[str, tuple[str, ...]], Awaitable[str]]


class Handler:
    """Serves one resource. Idempotent: the kubelet may ask again for ids that it already gave."""

    def __init__(
        self, resource: str, model: Model, journal: Journal, prepare: Prepare, saved: Callable[[], None]
    ) -> None:
        self._resource = resource
        self._model = model
        self._journal = journal
        self._prepare = prepare
        self._saved = saved

    def options(self) -> tuple[bool, bool]:
        """Whether the kubelet should call PreStartContainer, and GetPreferredAllocation."""
        board = self._model.boards[self._resource]
        return board.pre_start, board.preference is not None

    def allocate(self, containers: Sequence[Sequence[str]]) -> list[Composed]:
        """One answer per container. Raises Refusal, whose text ends up in the pod's status."""
        began = time.perf_counter()
        try:
            answers = [self._answer(ids) for ids in containers]
        except Refused as refused:
            self._journal.refused(self._resource, containers, str(refused))
            event(logger, "warning", "allocation refused", resource=self._resource, error=str(refused))
            raise Refusal(UNKNOWN_ID if refused.unknown else UNUSABLE, str(refused)) from None
        except ComposeError as problem:
            self._journal.refused(self._resource, containers, str(problem))
            event(logger, "error", "allocation impossible", resource=self._resource, error=str(problem))
            raise Refusal(UNUSABLE, f"{self._resource}: {problem}") from None
        self._saved()
        self._journal.allocated(self._resource, containers, time.perf_counter() - began)
        return answers

    def preferred(self, requests: Sequence[PreferredRequest]) -> list[list[str]]:
        """Advice for each container, never an error."""
        preference = self._model.boards[self._resource].preference
        if preference is None:
            return [[] for _ in requests]
        return [choose(preference, asked.available, asked.must_include, asked.size) for asked in requests]

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Have the probe prepare the devices. Raises Refusal, which the kubelet retries."""
        try:
            error = await self._prepare(self._resource, tuple(ids))
        except ProbeError as problem:
            error = str(problem)
        self._journal.prepared(self._resource, ids, error)
        if error:
            event(logger, "warning", "prepare failed", resource=self._resource, ids=list(ids), error=error)
            raise Refusal(grpc.StatusCode.UNAVAILABLE, f"{self._resource}: {error}")

    def _answer(self, ids: Sequence[str]) -> Composed:
        parts = self._model.parts(self._resource, ids)
        answer = compose(tuple(parts.values()))
        self._model.granted(self._resource, parts, time.monotonic(), time.time())
        return answer
