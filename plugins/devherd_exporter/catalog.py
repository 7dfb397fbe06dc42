"""Every metric: its name, what it says, and what becomes of it when a node has too many series.

The order is that of importance: where even merging does not help, families are left out from the end.
docs/metrics.md is made from this file.
"""

from __future__ import annotations

from typing import NamedTuple

LIMIT = 500
"""Most series a node ever has."""
REASONS = 5
"""Reasons shown one by one, per plugin (skipped) and per resource (unhealthy); the others are `other`."""
PODS = 100
"""Pods shown one by one, where pod names are on."""


class Metric(NamedTuple):
    """A family. `kind` is gauge, counter or histogram; `merge` says how resources become one: sum, min, max."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    merge: str = "sum"


PLUGIN = ("plugin",)
RESOURCE = ("plugin", "resource")

CATALOG: tuple[Metric, ...] = (
    # The exporter and the node.
    Metric("devherd_build_info", "gauge", "Version of the exporter; the value is 1.", ("version",)),
    Metric("devherd_series", "gauge", "Series in this answer, at most 500."),
    Metric(
        "devherd_series_cut",
        "gauge",
        "What was merged or left out to stay within 500 series: resources merged into one, reasons merged, "
        "1 for histogram buckets left out, families left out, pods merged into one.",
        ("what",),
    ),
    Metric("devherd_gather_seconds", "gauge", "Time it took to ask all programs."),
    Metric("devherd_supervisor_up", "gauge", "1 if supervisord answers."),
    Metric("devherd_watcher_up", "gauge", "1 if the watcher answers."),
    Metric("devherd_kubelet_up", "gauge", "1 if a plugin, or else the watcher, sees a kubelet that listens."),
    Metric(
        "devherd_fit_for_work",
        "gauge",
        "1 if the node has all that devherd.yaml expects, or else what its last run had, as `devherd status` says.",
    ),
    # Plugins.
    Metric("devherd_plugin_up", "gauge", "1 if the plugin's front answers.", PLUGIN),
    Metric("devherd_probe_up", "gauge", "1 if the plugin's probe answers; 0 while it hangs or is replaced.", PLUGIN),
    # Resources.
    Metric(
        "devherd_registered",
        "gauge",
        "1 if the kubelet has an open stream with the resource's list and shows no other list.",
        RESOURCE,
        "min",
    ),
    Metric(
        "devherd_devices",
        "gauge",
        "Devices in the list the kubelet has, by health and, for unhealthy ones, by kind of fault.",
        (*RESOURCE, "health", "reason"),
    ),
    Metric(
        "devherd_devices_missing",
        "gauge",
        "Devices that should be there and are not, of each resource with less than expected.",
        RESOURCE,
    ),
    Metric("devherd_devices_held", "gauge", "Devices that pods hold.", RESOURCE),
    Metric("devherd_allocations_total", "counter", "Containers the kubelet was given an answer for.", RESOURCE),
    Metric("devherd_allocation_refusals_total", "counter", "Allocate calls that were refused.", RESOURCE),
    Metric("devherd_registrations_total", "counter", "Registrations that led to a stream.", RESOURCE),
    Metric(
        "devherd_registration_seconds",
        "gauge",
        "The last registration: from the first sign of the kubelet until it had the list.",
        RESOURCE,
        "max",
    ),
    Metric("devherd_stream_age_seconds", "gauge", "Age of the kubelet's open stream.", RESOURCE, "min"),
    Metric("devherd_streams_lost_total", "counter", "Streams that ended without our doing.", RESOURCE),
    Metric(
        "devherd_registration_state",
        "gauge",
        "1 for the state the resource is in: waiting, registering, registered, unverified, refused, taken, draining.",
        (*RESOURCE, "state"),
    ),
    Metric("devherd_probe_scan_age_seconds", "gauge", "Time since the last scan that succeeded.", PLUGIN),
    Metric("devherd_probe_scan_seconds", "gauge", "Duration of the last scan.", PLUGIN),
    Metric("devherd_probe_hangs_total", "counter", "Requests the probe did not answer in time.", PLUGIN),
    Metric("devherd_probe_ends_total", "counter", "Probes that ended unasked.", PLUGIN),
    Metric("devherd_probe_abandoned", "gauge", "Probes that cannot be killed: they are stuck in the kernel.", PLUGIN),
    Metric("devherd_skipped_devices", "gauge", "Devices a scan saw and left out, by reason.", ("plugin", "reason")),
    Metric("devherd_configuration_problems", "gauge", "Errors in the plugin's configuration files.", PLUGIN),
    Metric("devherd_node_problems", "gauge", "Faults of the node rather than of a device.", PLUGIN),
    Metric("devherd_state_problems", "gauge", "State or event files that cannot be read or written.", PLUGIN),
    Metric("devherd_kubelet_starts_total", "counter", "Kubelet processes the plugin has met since its start.", PLUGIN),
    Metric(
        "devherd_allocate_seconds",
        "histogram",
        "Time to answer an Allocate, from the decoded request to the composed answer.",
        PLUGIN,
    ),
    Metric("devherd_prepares_total", "counter", "PreStartContainer calls.", PLUGIN),
    Metric("devherd_prepare_failures_total", "counter", "PreStartContainer calls that failed.", PLUGIN),
    Metric("devherd_scans_total", "counter", "Scans asked of the probe.", PLUGIN),
    Metric("devherd_scan_failures_total", "counter", "Scans that failed.", PLUGIN),
    Metric("devherd_check_failures_total", "counter", "Rounds of health checks that failed.", PLUGIN),
    Metric("devherd_plugin_absent", "gauge", "1 if the plugin's hardware is not in this node.", PLUGIN),
    Metric("devherd_plugin_uptime_seconds", "gauge", "Time since the plugin's front started.", PLUGIN),
    Metric("devherd_events_lost", "gauge", "Events that could not be written to the audit trail yet.", PLUGIN),
    Metric("devherd_allocated_devices_total", "counter", "Devices in those answers.", RESOURCE),
    Metric("devherd_released_devices_total", "counter", "Devices that their holders let go of.", RESOURCE),
    Metric("devherd_devices_left_out", "gauge", "Devices that do not fit the kubelet's message limit.", RESOURCE),
    # Supervision.
    Metric("devherd_program_up", "gauge", "1 if supervisord says RUNNING.", ("program",)),
    Metric("devherd_program_state", "gauge", "1 for supervisord's state of the program.", ("program", "state")),
    Metric("devherd_program_uptime_seconds", "gauge", "Time since the program was started.", ("program",)),
    Metric("devherd_watcher_restarts_total", "counter", "Programs the watcher restarted since its own start."),
    Metric("devherd_watcher_problems", "gauge", "What the watcher reports: silent fronts, missing registrations."),
    Metric("devherd_watcher_signal_rounds_total", "counter", "Times the watcher told fronts of a kubelet."),
    Metric("devherd_watcher_signal_seconds", "gauge", "How long it took the last time."),
    # Off by default.
    Metric(
        "devherd_pod_devices",
        "gauge",
        "Devices each pod holds; only with `pod_names: true`.",
        ("resource", "namespace", "pod"),
    ),
)

BY_NAME = {metric.name: metric for metric in CATALOG}
