"""The kinds of events in the audit trail, with what each means and the fields it has."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """What happened, as one sentence without an end, and the names of the fields, in the order people want them."""

    meaning: str
    fields: tuple[str, ...]


KINDS: dict[str, Kind] = {
    "started": Kind("a program began", ("pid", "version", "boot")),
    "stopped": Kind("a program ended, by itself or because it was told to", ("name", "pid", "exit", "reason", "by")),
    "kubelet-up": Kind("another kubelet listens than before", ("pid", "start_time", "version", "exe", "exe_modified")),
    "kubelet-down": Kind("the kubelet's process ended", ("pid", "since", "seconds_up")),
    "registered": Kind("the kubelet opened its stream and has our list", ("resource", "ms", "kubelet_pid", "socket")),
    "stream-lost": Kind("the kubelet's stream ended", ("resource", "seconds", "kubelet_pid")),
    "registration-refused": Kind("the kubelet refused for good", ("resource", "reason")),
    "taken": Kind("another server has our resource", ("resource", "reason")),
    "taken-back": Kind("the other server is gone", ("resource", "state")),
    "layout-changed": Kind("sockets are now elsewhere", ("layout", "reason")),
    "list": Kind(
        "devices came, went, or were listed first after a start",
        ("resource", "number", "devices", "healthy", "added", "removed", "left_out"),
    ),
    "verdict": Kind(
        "a device became unhealthy or healthy, or why changed", ("resource", "id", "healthy", "reason", "fault")
    ),
    "verdicts-cut": Kind("so many more verdicts changed at once than were noted", ("resource", "more")),
    "withdrawn": Kind("a resource is no longer offered", ("resource",)),
    "allocated": Kind("the kubelet was given the answer for one container", ("resource", "ids", "devices", "ms")),
    "refused": Kind("an allocation was refused", ("resource", "ids", "devices", "reason")),
    "released": Kind("no pod holds these devices any more", ("resource", "ids", "devices")),
    "prepare-failed": Kind("devices could not be made ready for a container", ("resource", "ids", "reason")),
    "repaired": Kind(
        "a device that nobody holds was reset because it needs that, or why not",
        ("thing", "attempt", "seconds", "reason"),
    ),
    "detach": Kind("an operator had a plugin let go of its driver; these devices, or all", ("names", "by")),
    "attach": Kind("the plugin took its driver back", ("names", "by")),
    "heartbeat-stopped": Kind("a probe or a front is silent, and since when", ("what", "since", "reason")),
    "heartbeat-back": Kind("it answers again", ("what", "since", "seconds")),
    "probe-replaced": Kind("a probe hung or ended, and a new one is started", ("cause", "pid", "doing", "reason")),
    "config-loaded": Kind("configuration was read again", ("path",)),
    "config-refused": Kind("configuration is wrong; what was in force stays", ("path", "problems")),
    "asked": Kind("somebody asked a front for this on its control socket", ("op", "by")),
    "registrations-confirmed": Kind("the watcher heard from every front that it is registered", ("pid", "reports")),
    "registrations-unconfirmed": Kind(
        "fronts are not registered with this kubelet, whatever was tried", ("pid", "reports")
    ),
    "restart": Kind("a program was restarted or started, by whom and why", ("name", "pid", "by", "reason")),
    "restart-prevented": Kind("a program stays stopped", ("name", "by", "reason")),
    "program-ended": Kind("a program ended unasked; its next start waits", ("name", "seconds", "hold_seconds")),
    "program-failed": Kind("supervisord gave a program up; it is tried again", ("name", "state", "retry_seconds")),
    "dormant": Kind("a program sleeps, because its hardware is absent", ("name",)),
    "events-lost": Kind("so many events could not be written before this one", ("count",)),
}
"""Kind -> meaning. What a program notes beyond these is shown as it is."""
