"""A front's own part of what the node should have: noted when a kubelet comes, written down in quiet moments."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from devherd.expected import Record, confirmed, count_of, falling, fits, kubelet_came, settled
from devherd.front.model import Board, Model
from devherd.front.reload import Configuration
from devherd.kubelet.identity import Identity
from devherd.process import read_stat
from devherd.settings import Expected

SETTLED = 600.0
"""Seconds that a resource is served with fewer devices, without a break, until fewer are expected at the next boot."""


class Expecting:
    """Learns from what this front serves. `keep` has a new record saved, and does not wait for it."""

    def __init__(
        self, model: Model, configuration: Configuration, record: Record | None, keep: Callable[[Record], None]
    ) -> None:
        self._model = model
        self._keep = keep
        self._configuration = configuration
        self._falling: dict[str, tuple[int, float]] = {}
        self._came: tuple[dict[str, int], bool] | None = None
        mine = read_stat("self")
        self._started = mine.start if mine is not None else sys.maxsize
        self.record = record or Record()
        self.configured(configuration)

    def configured(self, configuration: Configuration) -> None:
        """Another configuration may offer other devices: what the old one led to is forgotten."""
        self._configuration = configuration
        if configuration.problems:
            return
        fingerprint = f"{zlib.crc32(msgspec.msgpack.encode(configuration.config)):08x}"
        if fingerprint != self.record.configuration:
            self._learned(replace(self.record, configuration=fingerprint, resources={}))

    def kubelet_seen(self, identity: Identity) -> None:
        """Remember what there is at this moment, and no more: this is when every millisecond counts."""
        if self._came is None and self.record.kubelet_in != self._model.boot_id:
            self._came = (self._counts(), identity.pid > 0 and self._started < identity.start_time)

    def look(self, served: frozenset[str], now: float) -> None:
        """Learn from how things are; called every few seconds. `served`: resources whose list the kubelet has."""
        if self._configuration.problems or self._model.detached is not None:
            self._falling.clear()
            return
        wanted = {name: count_of(entry) for name, entry in self._configuration.settings.expect.items()}
        record, boot, counts = self.record, self._model.boot_id, self._counts()
        if self._came is not None:
            record = kubelet_came(record, boot, self._came[0], self._came[1], wanted)
        record = confirmed(record, boot, {name: counts[name] for name in served & counts.keys()}, wanted)
        self._learned(self._settle(record, falling(record, boot, counts) if served else {}, now))

    def _settle(self, record: Record, fewer: Mapping[str, int], now: float) -> Record:
        """Give up what has been away for long. Without a kubelet nothing is: somebody may be working on the node."""
        before, self._falling = self._falling, {}
        for name, count in fewer.items():
            was, since = before.get(name, (count, now))
            since = since if was == count else now
            if now - since >= SETTLED:
                record = settled(record, name, count)
            else:
                self._falling[name] = (count, since)
        return record

    def matching(self, board: Board) -> int | None:
        """Healthy devices that the configuration's expectation is about; None where every healthy one is."""
        entry = self._configuration.settings.expect.get(board.name)
        if not isinstance(entry, Expected) or not entry.where:
            return None
        return sum(
            member.healthy and member.id in board.found and fits(board.found[member.id].attributes, entry.where)
            for member in board.snapshot.members
        )

    def _counts(self) -> dict[str, int]:
        counts = {}
        for name, board in self._model.boards.items():
            matching = self.matching(board)
            counts[name] = sum(m.healthy for m in board.snapshot.members) if matching is None else matching
        return counts

    def _learned(self, record: Record) -> None:
        if record != self.record:
            self.record = record
            self._keep(record)
