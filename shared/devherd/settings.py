"""Settings every process shares: `devherd.yaml`. Each path on the node is one of them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

SECONDS = {"unit": "seconds"}
Seconds = Annotated[float, Meta(ge=0, extra=SECONDS)]
AbsolutePath = Annotated[str, Meta(pattern="^/", extra={"form": "an absolute path"})]
AbsolutePathOrEmpty = Annotated[str, Meta(pattern="^(/|$)", extra={"form": "an absolute path, or empty"})]


class Paths(Struct, frozen=True, forbid_unknown_fields=True):
    """Where things are on this node. A simulation or a test points every one of them into a folder."""

    root: Annotated[
        AbsolutePath, Meta(description="folder that stands for / in host paths that have no setting of their own")
    ] = "/"
    sys: Annotated[AbsolutePath, Meta(description="where sysfs is mounted")] = "/sys"
    dev: Annotated[AbsolutePath, Meta(description="folder of the device nodes")] = "/dev"
    proc: Annotated[AbsolutePath, Meta(description="where procfs is mounted")] = "/proc"
    rdev_table: Annotated[
        AbsolutePathOrEmpty,
        Meta(description="file naming the device numbers of a root that cannot hold device nodes; empty: none"),
    ] = ""
    etc: Annotated[AbsolutePath, Meta(description="configuration")] = "/etc/devherd"
    run: Annotated[AbsolutePath, Meta(description="control sockets, locks, claims")] = "/run/devherd"
    state: Annotated[AbsolutePath, Meta(description="ledger, health, maintenance, last inventory")] = "/var/lib/devherd"
    log: Annotated[AbsolutePath, Meta(description="log files")] = "/var/log/devherd"
    cache: Annotated[AbsolutePath, Meta(description="compiled code and other things that can be made again")] = (
        "/var/cache/devherd"
    )
    device_plugins: Annotated[AbsolutePath, Meta(description="the kubelet's device plugin folder")] = (
        "/var/lib/kubelet/device-plugins"
    )
    pod_resources: Annotated[AbsolutePath, Meta(description="the kubelet's PodResources socket")] = (
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    cdi: Annotated[AbsolutePath, Meta(description="CDI specification folder")] = "/var/run/cdi"
    features: Annotated[
        AbsolutePath,
        Meta(description="where Node Feature Discovery reads local features; without the folder none are written"),
    ] = "/etc/kubernetes/node-feature-discovery/features.d"
    machine_id: Annotated[AbsolutePath, Meta(description="file with the machine's id")] = "/etc/machine-id"


class Log(Struct, frozen=True, forbid_unknown_fields=True):
    """What processes write about themselves."""

    level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$", description="least severity written")] = "info"
    format: Annotated[str, Meta(pattern="^(text|json)$", description="for people, or one JSON object a line")] = "text"


class Kubelet(Struct, frozen=True, forbid_unknown_fields=True):
    """How plugins deal with the kubelet."""

    layout: Annotated[
        str,
        Meta(
            pattern="^(auto|subfolder|top)$",
            description="where the sockets are: a subfolder that a kubelet start does not wipe, "
            "the top level, or the first with the second as fallback",
        ),
    ] = "auto"
    poll: Annotated[
        Seconds, Meta(description="pause between checks of the kubelet's socket, in case an event was missed")
    ] = 5.0
    refused_retry: Annotated[Seconds, Meta(description="pause after a refusal that cannot heal by itself")] = 60.0
    verify: Annotated[bool, Meta(description="ask the kubelet's PodResources API whether it took the list")] = True


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """When a device counts as unhealthy, and when as healthy again."""

    debounce: Annotated[
        Seconds, Meta(description="a soft fault (link, heat, counters) must last this long to count")
    ] = 10.0
    recover: Annotated[Seconds, Meta(description="a device must be fine this long before it is healthy again")] = 10.0
    hold_off_max: Annotated[
        Seconds, Meta(description="longest wait before healthy again; the wait doubles with each relapse")
    ] = 3600.0
    flap_window: Annotated[Seconds, Meta(description="a fault this soon after recovery is a relapse")] = 3600.0
    boot_grace: Annotated[
        Seconds,
        Meta(
            description="this long after a boot or a new kubelet, a soft fault "
            "does not make a device unhealthy that a pod holds"
        ),
    ] = 120.0
    mass_fraction: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="if more than this part of a resource has a soft fault at once, "
            "it is reported as a problem of the node and no device is withdrawn",
        ),
    ] = 0.5
    resets_per_day: Annotated[
        int,
        Meta(
            ge=0,
            description="how often a day a device that needs a reset and that nobody holds is reset, "
            "where its plugin is configured to reset at all",
        ),
    ] = 3


class Probe(Struct, frozen=True, forbid_unknown_fields=True):
    """Each plugin's probe, the process that touches the hardware."""

    scan_interval: Annotated[
        float, Meta(ge=0.2, extra=SECONDS, description="pause between full scans, in case an event was missed")
    ] = 30.0
    check_interval: Annotated[float, Meta(ge=0.2, extra=SECONDS, description="pause between health checks")] = 10.0
    deadline: Annotated[float, Meta(gt=0, extra=SECONDS, description="a request not answered by then is a hang")] = 10.0
    prepare_deadline: Annotated[
        float,
        Meta(
            gt=0,
            le=29,
            extra=SECONDS,
            description="the same for preparing a device (PreStartContainer); the kubelet waits 30 s",
        ),
    ] = 25.0
    first_scan: Annotated[
        float,
        Meta(
            ge=0,
            extra=SECONDS,
            description="how long a start waits for the first scan before it serves the last inventory",
        ),
    ] = 3.0
    restart_max: Annotated[
        float,
        Meta(gt=0, extra=SECONDS, description="longest pause before a probe that keeps failing is replaced again"),
    ] = 60.0


class Snapshots(Struct, frozen=True, forbid_unknown_fields=True):
    """The device lists that the kubelet is sent."""

    grace: Annotated[
        Seconds, Meta(description="a vanished device is listed as unhealthy this long, and longer while a pod holds it")
    ] = 300.0


class Watcher(Struct, frozen=True, forbid_unknown_fields=True):
    """The watcher: when it does more than signal."""

    escalate: Annotated[
        bool,
        Meta(
            description="restart fronts that stay silent or unregistered, revive failed programs, slow crash loops; "
            "without it the watcher signals and reports only"
        ),
    ] = True
    confirm: Annotated[
        float,
        Meta(
            gt=0,
            extra=SECONDS,
            description="a front that is not registered this long after a new kubelet is signalled again; "
            "the next steps come after 3, 8 and 20 times that",
        ),
    ] = 1.0
    ping: Annotated[
        float, Meta(ge=0.1, extra=SECONDS, description="pause between questions to each front whether it answers")
    ] = 15.0
    silent: Annotated[
        float, Meta(gt=0, extra=SECONDS, description="a front that has not answered for this long is restarted")
    ] = 60.0
    hold_first: Annotated[
        Seconds,
        Meta(description="first pause before a program that failed, or ends again and again, is started; it doubles"),
    ] = 5.0
    hold_max: Annotated[Seconds, Meta(description="longest such pause")] = 300.0
    stable: Annotated[
        float,
        Meta(gt=0, extra=SECONDS, description="a program that ran this long is no longer held to earlier failures"),
    ] = 120.0


ResourceName = Annotated[
    str, Meta(pattern="^[^/\\s]+/[^/\\s]+$", extra={"form": "a resource with its domain, as example.com/gpu"})
]


class Expected(Struct, frozen=True, forbid_unknown_fields=True):
    """What this node should have of a resource, where a number alone does not say it."""

    count: Annotated[int, Meta(ge=1, description="so many healthy devices")]
    where: Annotated[
        dict[str, str],
        Meta(
            description="only devices with these attributes count (as `devherd devices --json` shows them); "
            "values may have the wildcards `*`, `?` and `[...]`"
        ),
    ] = field(default_factory=dict)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of `devherd.yaml`."""

    paths: Annotated[Paths, Meta(description="where things are")] = field(default_factory=Paths)
    log: Annotated[Log, Meta(description="what processes write about themselves")] = field(default_factory=Log)
    kubelet: Annotated[Kubelet, Meta(description="registration")] = field(default_factory=Kubelet)
    health: Annotated[Health, Meta(description="health policy")] = field(default_factory=Health)
    probe: Annotated[Probe, Meta(description="probe processes")] = field(default_factory=Probe)
    snapshots: Annotated[Snapshots, Meta(description="lists sent to the kubelet")] = field(default_factory=Snapshots)
    watcher: Annotated[Watcher, Meta(description="supervision beyond what supervisord does")] = field(
        default_factory=Watcher
    )
    expect: Annotated[
        dict[ResourceName, Annotated[int, Meta(ge=1)] | Expected],
        Meta(
            description="what this node should have: a resource's name, and how many healthy devices of it; "
            "`devherd wait --boot`, `status` and `verify` go by it, and by what the last run had for the resources "
            "not named"
        ),
    ] = field(default_factory=dict)
    vendors: Annotated[tuple[str, ...], Meta(description="names of third-party plugins that may be loaded")] = ()
