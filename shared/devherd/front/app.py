"""The front's loop: who talks to whom, and when. What is known lives in the model, not here."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from devherd import __version__
from devherd.control import ControlServer
from devherd.front import report
from devherd.front.claiming import Claiming
from devherd.front.detached import wish_from
from devherd.front.expecting import Expecting
from devherd.front.handler import Handler
from devherd.front.journal import Journal
from devherd.front.model import Board, Model
from devherd.front.probelink import ProbeError, ProbeLink
from devherd.front.reload import Configuration, ConfigurationFile
from devherd.front.repairs import Repairs
from devherd.front.saved import Memory, Saved
from devherd.front.station import Stations
from devherd.front.tenants import Tenants
from devherd.front.writer import WriteBehind
from devherd.kubelet.identity import Identity
from devherd.log import event
from devherd.patience import round_pause, woken
from devherd.vendor import Manifest

logger = logging.getLogger(__name__)

EXIT_ABSENT = 69
"""No hardware for this plugin: the one code in supervisord's `exitcodes`, so that it is not started again."""

ABSENT_AFTER = 12.0
"""Seconds a plugin without hardware stays: longer than `startsecs`, or supervisor counts a failed start."""


class Front:
    """One plugin's front. `run` returns the exit code."""

    def __init__(
        self,
        manifest: Manifest,
        file: ConfigurationFile,
        configuration: Configuration,
        probe: ProbeLink,
        saved: Saved,
        model: Model,
        memory: Memory,
        journal: Journal,
    ) -> None:
        self.manifest = manifest
        self.file = file
        self.configuration = configuration
        self.probe = probe
        self.saved = saved
        self.journal = journal
        self.model = model
        self.started = time.time()
        self.writer = WriteBehind()
        self.digest = ""
        self.scanned_at: float | None = None
        self.scan_seconds = 0.0
        self.stations = Stations(
            configuration.settings,
            manifest.name,
            journal,
            memory.layout,
            lambda kept: saved.keep_layout(self.writer, kept),
            self._kubelet_changed,
        )
        self.tenants = Tenants(configuration.settings, model, journal, self._tenancy_changed)
        self.repairs = Repairs(model, journal, probe, self._publish)
        self.expecting = Expecting(
            model, configuration, memory.expected, lambda record: saved.keep_expected(self.writer, record)
        )
        self.claims = Claiming(configuration.settings.paths.run, manifest.name)
        self._hint = asyncio.Event()
        self._recheck = asyncio.Event()
        self._check_soon = asyncio.Event()
        self._reload_due = asyncio.Event()
        self._stopping = asyncio.Event()
        self._scanning: asyncio.Task[bool] | None = None
        self._exit = 0
        self._why = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Serve until a signal says stop."""
        self._signals()
        self.journal.note("started", pid=os.getpid(), version=__version__, boot=self.model.boot_id)
        control = ControlServer(self.control_path, self._control)
        await control.start()
        try:
            await self._detach_again()
            await self._first_scan()
            self.tenants.read_checkpoint()
            self.stations.start()
            await self._publish()
            for name, job in (
                ("scan", self._scan_loop),
                ("check", self._check_loop),
                ("health", self._health_loop),
                ("tenants", self.tenants.loop),
                ("repairs", self.repairs.loop),
                ("reload", self._reload_loop),
                ("kubelet", self._kubelet_loop),
            ):
                self._tasks.append(asyncio.create_task(self._forever(name, job), name=name))
            if self.configuration.problems:
                self.journal.configuration_refused(self.configuration.path, self.configuration.problems)
            event(logger, "info", "serving", resources=len(self.model.boards), pid=os.getpid())
            await self._stopping.wait()
        finally:
            await self._stop(control)
        return self._exit

    @property
    def control_path(self) -> str:
        """Where this front answers."""
        return f"{self.configuration.settings.paths.run}/{self.manifest.name}.control.sock"

    # -- signals and control

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop, number)
        loop.add_signal_handler(signal.SIGUSR1, self.stations.hint)
        loop.add_signal_handler(signal.SIGHUP, self._reload_due.set)
        # The launcher blocked these, so that none could strike before its handler existed.
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK,
            {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP},
        )

    def _told_to_stop(self, number: signal.Signals) -> None:
        self._why = number.name
        self._stopping.set()

    async def _control(self, request: dict[str, Any]) -> dict[str, Any]:
        operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ping": lambda _: {"plugin": self.manifest.name, "pid": os.getpid()},
            "status": lambda _: report.status(self),
            "devices": lambda asked: report.devices(self, str(asked.get("resource", ""))),
            "explain": lambda asked: report.explain(self, str(asked.get("what", ""))),
            "register": lambda _: self._now(self.stations.poke),
            "rescan": lambda _: self._now(self._hint.set),
            "reload": lambda _: self._now(self._reload_due.set),
        }
        if request.get("op") in ("detach", "attach"):
            return await self._let_go(request)
        operation = operations.get(str(request.get("op")))
        if operation is None:
            known = sorted((*operations, "attach", "detach"))
            return {"error": f"unknown op {request.get('op')!r}; known: {', '.join(known)}"}
        if request["op"] in ("register", "rescan", "reload"):
            self.journal.note("asked", op=request["op"], by=str(request.get("by", "")))
        return operation(request)

    async def _let_go(self, request: dict[str, Any]) -> dict[str, Any]:
        """`detach` ends the probe and parks what nobody holds; `attach` ends that."""
        try:
            wish = wish_from(request, self.model.boot_id) if request["op"] == "detach" else None
        except ValueError as problem:
            return {"error": str(problem)}
        self.journal.note(str(request["op"]), names=list(request.get("names") or []), by=str(request.get("by", "")))
        before = self.model.detached
        if wish is None and request.get("after_reset") is True:
            self.model.was_reset(time.monotonic())
        self.model.detached = wish
        self.saved.keep_detached(self.writer, wish)
        await self._publish()
        if wish is None:
            self.probe.attach()
            self._hint.set()
            return {"ok": True, "was_detached": before is not None}
        await self.probe.detach()
        return {"ok": True, "in_use": self.model.holders()}

    async def _detach_again(self) -> None:
        """What an earlier life of this front was told in this boot."""
        self.model.detached = self.saved.detached()
        if self.model.detached is not None:
            event(logger, "warning", "detached by an operator", reason=self.model.detached.reason)
            await self.probe.detach()

    def _now(self, action: Callable[[], object]) -> dict[str, Any]:
        action()
        return {"ok": True}

    def hinted(self, source: str) -> None:
        """The probe saw an event: a rescan is due."""
        event(logger, "debug", "rescan is due", source=source)
        self._hint.set()

    # -- scanning and health

    async def _first_scan(self) -> None:
        """Wait for the first scan, but not for ever: a probe that hangs must not keep devices from pods."""
        self._scanning = asyncio.create_task(self._scan(), name="first-scan")
        await asyncio.wait({self._scanning}, timeout=self.configuration.settings.probe.first_scan)
        if not self._scanning.done():
            event(logger, "warning", "no scan yet; serving what the last inventory held")

    async def _scan(self) -> bool:
        """Ask the probe for a scan and take it in; False when there was none."""
        if self.model.detached is not None:
            return True
        try:
            self.journal.counters.scans += 1
            scanned = await self.probe.scan(self.digest)
        except ProbeError as problem:
            self.journal.counters.scan_failures += 1
            event(logger, "warning", "scan failed", error=str(problem))
            return False
        self.scanned_at, self.scan_seconds = time.monotonic(), scanned.seconds
        if scanned.inventory is None:
            return True
        self.digest = scanned.digest
        self.model.apply(scanned.inventory, time.monotonic(), time.time())
        await self.claims.renew(self.model)
        self.saved.keep_inventory(self.writer, scanned.inventory)
        self._keep_configuration()
        for skipped in scanned.inventory.skipped:
            event(logger, "debug", "skipped", what=skipped.what, rule=skipped.rule, reason=skipped.reason)
        return True

    async def _scan_loop(self) -> None:
        absent_since: float | None = None
        # Taken once: were it to raise, the next round of this loop must scan anew.
        first, self._scanning = self._scanning, None
        good = await (first or self._scan())
        while True:
            await self._publish()
            absent_since = self._absent(absent_since)
            interval = self.configuration.settings.probe.scan_interval
            soon = not good or absent_since is not None
            await woken(self._hint, min(interval, 1.0) if soon else round_pause(interval))
            self._hint.clear()
            good = await self._scan()

    def _absent(self, since: float | None) -> float | None:
        """Dormancy: no hardware and nothing to keep for pods, for longer than `startsecs`, means exit 69."""
        serving = any(board.snapshot.members for board in self.model.boards.values())
        # A configuration that is not read says nothing about the hardware: stay, so that status can show what is wrong.
        if not self.model.inventory.absent or serving or self.configuration.problems:
            return None
        now = time.monotonic()
        if since is None:
            return now
        if now - since >= ABSENT_AFTER:
            event(logger, "info", "nothing to serve", reason=self.model.inventory.absent)
            self._exit, self._why = EXIT_ABSENT, self.model.inventory.absent
            self._stopping.set()
        return since

    async def _check_loop(self) -> None:
        while True:
            await woken(self._check_soon, round_pause(self.configuration.settings.probe.check_interval))
            self._check_soon.clear()
            if "checks" not in self.probe.capabilities or self.model.detached is not None:
                continue
            self.journal.counters.checks += 1
            try:
                checked = await self.probe.check()
            except ProbeError as problem:
                self.journal.counters.check_failures += 1
                event(logger, "warning", "check failed", error=str(problem))
                continue
            self.model.observe(checked.evidence, time.monotonic(), time.time())
            await self._publish()

    async def _health_loop(self) -> None:
        """Wake when time alone changes a verdict or ends a grace."""
        while True:
            now = time.monotonic()
            due = self.model.next_change(now, time.time())
            await woken(self._recheck, 3600.0 if due is None else max(0.01, due - now))
            self._recheck.clear()
            now = time.monotonic()
            if due is None or now < due:
                continue
            if self.model.health.wants_evidence(now):
                self._check_soon.set()
            await self._publish()

    async def _kubelet_loop(self) -> None:
        """A kubelet that ends while it has no stream of ours is missed by everything else; and what can wait."""
        while True:
            await asyncio.sleep(round_pause(self.configuration.settings.kubelet.poll))
            self.journal.kubelet.look()
            self.expecting.look(self.stations.served(), time.monotonic())

    # -- publishing

    def _update(self) -> None:
        """Make snapshots and have each resource served."""
        changed = self.model.rebuild(time.monotonic(), time.time())
        for board in changed:
            self._serve(board)
        if changed:
            self.saved.keep_health(self.writer, self.model)

    async def _publish(self) -> None:
        """Bring every list up to date, and end the resources that have drained."""
        self._update()
        for name in self.model.finished():
            if await self.stations.close_drained(name):
                self.model.drop(name)
                self.journal.dropped(name)
        self._recheck.set()

    def _serve(self, board: Board) -> None:
        self.journal.listed(board.snapshot, board.members)
        station = self.stations.get(board.name)
        if station is None:
            handler = Handler(board.name, self.model, self.journal, self._prepare, self._granted)
            self.stations.open(board.name, handler, board.snapshot)
        else:
            station.publish(board.snapshot)

    async def _prepare(self, resource: str, ids: tuple[str, ...]) -> str:
        if "prepares" not in self.probe.capabilities:
            return ""
        return await self.probe.prepare(resource, ids)

    def _granted(self) -> None:
        self.saved.keep_ledger(self.writer, self.model)
        self.tenants.soon()

    def _kubelet_changed(self, identity: Identity) -> None:
        self.model.kubelet_changed(f"{identity.pid}:{identity.start_time}", time.monotonic())
        if self.model.verdicts:
            # Before Register: a new kubelet would refuse a pod for a soft fault of the device that it holds.
            self._update()
        self.expecting.kubelet_seen(identity)
        self.tenants.soon()

    async def _tenancy_changed(self) -> None:
        self.saved.keep_ledger(self.writer, self.model)
        await self._publish()

    # -- reload

    async def _reload_loop(self) -> None:
        """One reload at a time, however many signals ask for one."""
        while True:
            await self._reload_due.wait()
            self._reload_due.clear()
            await self._reload()

    async def _reload(self) -> None:
        """SIGHUP: change what changed; wrong files change nothing and are shown in status."""
        old = self.configuration
        new = self.configuration = self.file.read(old)
        if new.problems:
            self.journal.configuration_refused(new.path, new.problems)
            return
        self.journal.configuration_loaded(new.path)
        self.expecting.configured(new)
        self.model.settings = new.settings
        self.model.health.configure(new.settings.health)
        if new.config != old.config or new.settings != old.settings:
            await self.probe.replace(new.settings, new.encoded)
            self.digest = ""
        self._hint.set()

    def _keep_configuration(self) -> None:
        if not self.configuration.problems:
            file, value = self.file.keep(self.configuration)
            self.writer.put("configuration", file, lambda: value)

    # -- life and death

    async def _forever(self, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """An error in one loop is reported and does not end the others, or the process."""
        while True:
            try:
                await job()
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("unexpected error in %s; going on", name)
            await asyncio.sleep(1.0)

    async def _stop(self, control: ControlServer) -> None:
        """SIGTERM: whatever takes time, then end the streams and remove the sockets.

        From that moment the kubelet is without our devices until a new front registers (it keeps the capacity for
        five minutes), so until then we answer, and after it we are gone at once.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.probe.stop()
        await self.writer.flush(2.0)
        await self.stations.close()
        await control.stop()
        if self._exit == EXIT_ABSENT:
            # Not for a restart: the claims of a plugin that comes back linger for it.
            self.claims.release()
        self.journal.note("stopped", pid=os.getpid(), exit=self._exit, reason=self._why)
        await self.writer.flush(2.0)
        self.writer.close()
        self.journal.audit.flush(0.5)
