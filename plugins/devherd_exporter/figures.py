"""What the programs said, as samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from devherd import __version__
from devherd.fitness import judge, programs_at_rest

from devherd_exporter.catalog import REASONS
from devherd_exporter.gather import Gathered
from devherd_exporter.series import Series

Json = Mapping[str, Any]
OTHER = "other"
SERVED = ("registered", "unverified")
_VARYING = re.compile(r"\S*[/\\]\S*|\b[0-9a-f]{8,}\b|\S*\d\S*|'[^']*'|\"[^\"]*\"")


def figures(found: Gathered) -> Series:
    """All samples of one round; pods only if the devices were asked for."""
    series = Series()
    series.add("devherd_build_info", (__version__,), 1)
    series.add("devherd_gather_seconds", (), found.seconds)
    series.add("devherd_supervisor_up", (), found.programs is not None)
    series.add("devherd_kubelet_up", (), _kubelet_up(found))
    _fitness(series, found)
    _watcher(series, found.watcher)
    for name, status in found.fronts.items():
        series.add("devherd_plugin_up", (name,), status is not None)
        if status is not None:
            _front(series, name, status)
    for program in found.programs or ():
        _program(series, program)
    _pods(series, found.devices.values())
    return series


def _fitness(series: Series, found: Gathered) -> None:
    verdict = judge(
        found.expected,
        [{**status, "plugin": name} for name, status in found.fronts.items() if status is not None],
        {name: "gives no answer" for name, status in found.fronts.items() if status is None},
        programs_at_rest(_rows(found.programs), {one.plugin for one in found.expected if one.plugin}),
    )
    series.add("devherd_fit_for_work", (), verdict.fit)
    for lack in verdict.missing:
        series.add("devherd_devices_missing", (lack.plugin, lack.resource), lack.expected - lack.have)


def _rows(programs: Iterable[Json] | None) -> list[tuple[str, str, int, bool]] | None:
    if programs is None:
        return None
    rows = [(row.get("name"), row.get("statename"), row.get("exitstatus"), row.get("start")) for row in programs]
    return [(str(name), str(state), code if isinstance(code, int) else 0, bool(at)) for name, state, code, at in rows]


def _kubelet_up(found: Gathered) -> bool:
    said = [_part(status, "kubelet").get("state") == "up" for status in found.fronts.values() if status]
    return any(said) if said else bool(_part(found.watcher or {}, "kubelet").get("pid"))


def _watcher(series: Series, status: Json | None) -> None:
    series.add("devherd_watcher_up", (), status is not None)
    series.add("devherd_watcher_restarts_total", (), _part(status or {}, "restarts").get("count"))
    if status is not None and "problems" in status:
        series.add("devherd_watcher_problems", (), len(_list(status, "problems")))
    signals = _part(status or {}, "signals")
    series.add("devherd_watcher_signal_rounds_total", (), signals.get("rounds"))
    microseconds = _part(signals, "last").get("microseconds")
    if isinstance(microseconds, int | float):
        series.add("devherd_watcher_signal_seconds", (), microseconds / 1e6)


def _program(series: Series, program: Json) -> None:
    name, state = str(program.get("name", "")), str(program.get("statename", "UNKNOWN"))
    series.add("devherd_program_up", (name,), state == "RUNNING")
    series.add("devherd_program_state", (name, state), 1)
    start, now = program.get("start"), program.get("now")
    if program.get("pid") and isinstance(start, int) and isinstance(now, int):
        series.add("devherd_program_uptime_seconds", (name,), max(0, now - start))


def _front(series: Series, name: str, status: Json) -> None:
    plugin = (name,)
    probe, counters = _part(status, "probe"), _part(status, "counters")
    started, now = status.get("started"), status.get("now")
    if isinstance(started, int | float) and isinstance(now, int | float):
        series.add("devherd_plugin_uptime_seconds", plugin, max(0.0, now - started))
    series.add("devherd_plugin_absent", plugin, bool(status.get("absent")))
    series.add("devherd_probe_up", plugin, probe.get("state") not in ("hung", "waiting"))
    series.add("devherd_probe_scan_age_seconds", plugin, probe.get("scan_age_seconds"))
    if probe.get("scan_age_seconds") is not None:
        series.add("devherd_probe_scan_seconds", plugin, probe.get("scan_seconds"))
    series.add("devherd_probe_abandoned", plugin, len(_list(probe, "abandoned")))
    for metric, counter in (
        ("devherd_probe_hangs_total", "probe_hangs"),
        ("devherd_probe_ends_total", "probe_ends"),
        ("devherd_kubelet_starts_total", "kubelets"),
        ("devherd_prepares_total", "prepares"),
        ("devherd_prepare_failures_total", "prepare_failures"),
        ("devherd_scans_total", "scans"),
        ("devherd_scan_failures_total", "scan_failures"),
        ("devherd_check_failures_total", "check_failures"),
    ):
        series.add(metric, plugin, counters.get(counter))
    series.add_histogram("devherd_allocate_seconds", plugin, counters.get("allocate"))
    series.add("devherd_configuration_problems", plugin, len(_list(_part(status, "config"), "problems")))
    series.add("devherd_node_problems", plugin, len(_list(status, "node_problems")))
    series.add("devherd_state_problems", plugin, len(_list(status, "state_problems")))
    series.add("devherd_events_lost", plugin, _part(status, "events").get("lost"))
    reasons = Counter(reason_class(str(_get(item, "reason"))) for item in _list(status, "skipped"))
    for reason, count in _most(reasons).items():
        series.add("devherd_skipped_devices", (name, reason), count)
    for resource in _list(status, "resources"):
        if isinstance(resource, Mapping):
            _resource(series, name, resource)


def _resource(series: Series, plugin: str, row: Json) -> None:
    labels = (plugin, str(row.get("name", "")))
    state = "draining" if row.get("draining") else str(row.get("state", ""))
    series.add("devherd_registered", labels, row.get("state") in SERVED)
    series.add("devherd_registration_state", (*labels, state), 1)
    healthy, devices = row.get("healthy"), row.get("devices")
    series.add("devherd_devices", (*labels, "healthy", ""), healthy)
    kinds = Counter({str(kind): count for kind, count in _part(row, "unhealthy").items() if isinstance(count, int)})
    if not kinds and isinstance(healthy, int) and isinstance(devices, int) and devices > healthy:
        kinds = Counter({"": devices - healthy})
    for kind, count in _most(kinds).items():
        series.add("devherd_devices", (*labels, "unhealthy", kind), count)
    series.add("devherd_devices_held", labels, row.get("held"))
    series.add("devherd_devices_left_out", labels, row.get("left_out"))
    series.add("devherd_registrations_total", labels, row.get("registrations"))
    if row.get("registered_at") and isinstance(row.get("registered_ms"), int | float):
        series.add("devherd_registration_seconds", labels, row["registered_ms"] / 1000)
    series.add("devherd_stream_age_seconds", labels, row.get("stream_seconds"))
    counters = _part(row, "counters")
    for metric, counter in (
        ("devherd_allocations_total", "allocations"),
        ("devherd_allocated_devices_total", "allocated"),
        ("devherd_allocation_refusals_total", "refusals"),
        ("devherd_released_devices_total", "released"),
        ("devherd_streams_lost_total", "streams_lost"),
    ):
        series.add(metric, labels, counters.get(counter))


def _pods(series: Series, answers: Iterable[Json | None]) -> None:
    for answer in answers:
        for device in _list(answer or {}, "devices"):
            # namespace/pod/container, as PodResources names holders; the checkpoint's podUID/container is no name.
            parts = str(_get(device, "held_by") or "").split("/")
            if len(parts) == 3:
                series.add("devherd_pod_devices", (str(_get(device, "resource")), parts[0], parts[1]), 1)


def reason_class(reason: str) -> str:
    """A reason without what varies (paths, addresses, numbers, quoted words), so that equal ones are one series."""
    text = " ".join(_VARYING.sub("…", reason).split())
    text = re.sub(r"(?:…[\s,:;]*){2,}", "… ", text).strip()
    return text[:80] or "no reason given"


def _most(counts: Counter[str]) -> dict[str, int]:
    """The largest few, and `other` for the rest; equal ones by name, so that they do not swap places."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ranked[:REASONS])
    rest = sum(count for _, count in ranked[REASONS:])
    return {**kept, OTHER: rest + kept.get(OTHER, 0)} if rest else kept


def _get(value: Any, name: str) -> Any:
    return value.get(name, "") if isinstance(value, Mapping) else ""


def _part(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(value: Json, name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []
