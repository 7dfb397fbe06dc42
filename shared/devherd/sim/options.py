"""What can be set on the simulated kubelet, before it starts or while it runs. Faults are options too."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

NonNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Timing, limits and faults. The defaults are what a real kubelet was seen to do."""

    dir_lead_ms: Annotated[
        NonNegative,
        Meta(description="process start, folder and PodResources come this long before kubelet.sock (real: a second)"),
    ] = 0.0
    listen_delay_ms: Annotated[NonNegative, Meta(description="between bind and listen: connect is refused")] = 0.0
    # Kubelet 1.36, 27 reboots: 40 to 75 ms, median 62. Others were seen to take 13 and 191 ms.
    admit_gap_ms: Annotated[NonNegative, Meta(description="kubelet.sock listens until the first pod is admitted")] = (
        60.0
    )
    sources_delay_ms: Annotated[NonNegative, Meta(description="first admission until all sources count as ready")] = 0.0
    register_delay_ms: Annotated[NonNegative, Meta(description="Register waits this long before it does anything")] = (
        0.0
    )
    dial_timeout: Annotated[float, Meta(gt=0, description="seconds a plugin has to accept the dial-back")] = 10.0
    prestart_timeout: Annotated[float, Meta(gt=0, description="seconds for PreStartContainer")] = 30.0
    grace: Annotated[NonNegative, Meta(description="seconds a stopped endpoint keeps its capacity")] = 300.0
    stall: Annotated[float, Meta(gt=0, description="seconds without sync loop progress until healthz fails")] = 300.0
    status_period: Annotated[float, Meta(gt=0, description="seconds between node status updates")] = 10.0
    retry_ms: Annotated[NonNegative, Meta(description="pause before a failed container creation is tried again")] = (
        500.0
    )
    stop_ms: Annotated[NonNegative, Meta(description="how long containers take to end when a pod is removed")] = 0.0
    list_qps: Annotated[float, Meta(gt=0, description="PodResources calls a second, all clients together")] = 100.0
    list_burst: Annotated[int, Meta(gt=0, description="PodResources calls at once")] = 10
    topology_policy: Annotated[
        str, Meta(pattern="^(none|best-effort|restricted|single-numa-node)$", description="topology manager policy")
    ] = "none"
    numa_nodes: Annotated[tuple[int, ...], Meta(description="NUMA nodes of the machine; other numbers are dropped")] = (
        0,
        1,
    )
    fixed_disconnect: Annotated[
        bool, Meta(description="an old stream's end leaves a newer registration alone (kubelets after 1.36)")
    ] = False
    end_older: Annotated[bool, Meta(description="a new registration ends the older stream of the resource at once")] = (
        False
    )
    refuse_subfolders: Annotated[bool, Meta(description="refuse endpoints with a slash, as upstream discusses")] = False
    disk_full: Annotated[bool, Meta(description="the checkpoint cannot be written")] = False
    crash_on_vanish: Annotated[
        bool, Meta(description="panic, as the real one may, when an id in use has left the list")
    ] = True
    cdi_dirs: Annotated[
        tuple[str, ...], Meta(description="CDI folders of the runtime; none: CDI names are ignored, as by old ones")
    ] = ()
    skip_streams: Annotated[Count, Meta(description="that many next registrations get OK but no ListAndWatch")] = 0
    seed: Annotated[int, Meta(description="of every random order; 0: another one each start")] = 0


def changed(options: Options, changes: dict[str, Any]) -> Options:
    """Options with changes applied. Raises ValueError naming the option that is unknown or out of range."""
    raw = {**msgspec.to_builtins(options), **changes}
    try:
        return msgspec.convert(raw, Options, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
