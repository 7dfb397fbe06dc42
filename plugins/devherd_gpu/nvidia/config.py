"""Configuration of gpu-nvidia: `plugins.d/gpu-nvidia.yaml`.

Defaults are those of NVIDIA's own plugin, but for `device_list`: there a container that asked for no GPU sees none.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from devherd_gpu.common.sharing import MOST
from devherd_gpu.nvidia.healthconfig import Health

SELECTOR = {"form": "a selector: 0, GPU-..., 0000:1b:00.0, model:*H100*, profile:1g.10gb; see plugins/gpu-nvidia.md"}
Selectors = tuple[str, ...]
Strategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri", "driver-mount"]
Path = Annotated[str, Meta(pattern="^/", extra={"form": "an absolute path"})]
PathOrEmpty = Annotated[str, Meta(pattern="^(/|$)", extra={"form": "an absolute path, or empty"})]


class Driver(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the driver is and how it is asked."""

    root: Annotated[
        PathOrEmpty,
        Meta(description="folder below which the driver's libraries and tools lie; empty: / or /run/nvidia/driver"),
    ] = ""
    dev_root: Annotated[
        PathOrEmpty,
        Meta(description="folder whose dev/ holds the nodes that pods get; empty: the driver's root if it has any"),
    ] = ""
    discovery: Annotated[
        Literal["auto", "nvml", "tegra", "wsl"],
        Meta(description="how GPUs are found: by the driver's library, or as the only one of a Tegra or WSL system"),
    ] = "auto"
    hold: Annotated[
        bool,
        Meta(
            description="keep the driver's library open between looks; false: let go after each, so that the kernel "
            "module can be unloaded at any time (no events then, and without persistence mode each look wakes the GPUs)"
        ),
    ] = True


class Cdi(Struct, frozen=True, forbid_unknown_fields=True):
    """CDI names and specifications, where `device_list` has one of the cdi- strategies."""

    annotation_prefix: Annotated[str, Meta(description="prefix of the annotation's key")] = "cdi.k8s.io/"
    hook: Annotated[Path, Meta(description="nvidia-ctk or nvidia-cdi-hook, for hooks in the specification")] = (
        "/usr/bin/nvidia-ctk"
    )
    disabled_hooks: Annotated[
        tuple[str, ...], Meta(description="hooks that are left out of the specification; all: every one")
    ] = ()


class Imex(Struct, frozen=True, forbid_unknown_fields=True):
    """Channels of memory export between nodes (multi-node NVLink)."""

    channels: Annotated[tuple[int, ...], Meta(description="channels every container with a GPU gets: [] or [0]")] = ()
    required: Annotated[
        bool, Meta(description="without the channel's node GPUs are unhealthy; false: given where it exists")
    ] = False


class NameRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A resource name of its own for some GPUs."""

    select: Annotated[Selectors, Meta(min_length=1, extra=SELECTOR, description="which GPUs or MIG devices")]
    name: Annotated[str, Meta(description="name below nvidia.com, or a full one with a /")]


class Sharing(Struct, frozen=True, forbid_unknown_fields=True):
    """Several containers on one GPU or MIG device."""

    replicas: Annotated[int, Meta(ge=2, le=MOST, description="how many ids each GPU or MIG device gets")]
    mode: Annotated[
        Literal["time-slicing", "mps"],
        Meta(description="time-slicing: they take turns; mps: they run together below NVIDIA's MPS daemon"),
    ] = "time-slicing"
    resource: Annotated[str, Meta(description="only what is offered under this name; empty: any")] = ""
    select: Annotated[
        Selectors, Meta(extra=SELECTOR, description="only these; empty: all that no rule above took")
    ] = ()
    rename: Annotated[bool, Meta(description="offer the shares as <resource>.shared")] = False
    name: Annotated[str, Meta(description="offer the shares under this name")] = ""
    one_each: Annotated[
        bool | None,
        Meta(description="refuse a container that asks for more than one share; null: only with mode mps"),
    ] = None


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA GPUs, whole, partitioned (MIG) or shared."""

    mig: Annotated[
        Literal["none", "single", "mixed"],
        Meta(
            description="none: a GPU is one device, split or not; single: MIG devices are offered as nvidia.com/gpu; "
            "mixed: each profile has its own name, nvidia.com/mig-1g.10gb, beside the whole GPUs"
        ),
    ] = "none"
    device_list: Annotated[
        tuple[Strategy, ...],
        Meta(
            min_length=1,
            description="how a container is given its GPUs. cdi-cri, cdi-annotations: by CDI name; volume-mounts, "
            "envvar: by what NVIDIA's container runtime reads; driver-mount: device nodes and the driver's files, for "
            "which neither CDI nor anything of NVIDIA's beside the driver is needed",
        ),
    ] = ("cdi-cri",)
    ids: Annotated[
        Literal["uuid", "index"], Meta(description="what GPUs are called in answers; an index moves, a uuid does not")
    ] = "uuid"
    pass_device_specs: Annotated[bool, Meta(description="give the device nodes as well; not with cdi- alone")] = False
    gds: Annotated[bool, Meta(description="GPUDirect Storage: tell the runtime to give its devices")] = False
    mofed: Annotated[bool, Meta(description="InfiniBand devices for GPUDirect RDMA: tell the runtime")] = False
    gdrcopy: Annotated[bool, Meta(description="GDRCopy: tell the runtime to give its device")] = False
    include: Annotated[Selectors, Meta(extra=SELECTOR, description="only these GPUs; empty: all")] = ()
    exclude: Annotated[Selectors, Meta(extra=SELECTOR, description="never these")] = ()
    resources: Annotated[tuple[NameRule, ...], Meta(description="names; the first rule that fits counts")] = ()
    sharing: Annotated[tuple[Sharing, ...], Meta(description="shares; the first rule that fits a GPU counts")] = ()
    shares: Annotated[
        Literal["distributed", "packed"],
        Meta(description="shares and MIG devices of one container: on many GPUs, or on few"),
    ] = "distributed"
    features: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="node features for Node Feature Discovery; auto: unless GPU feature discovery runs here"),
    ] = "auto"
    mps_root: Annotated[Path, Meta(description="folder of the MPS daemons' pipes, logs and shared memory")] = (
        "/run/nvidia/mps"
    )
    imex: Annotated[Imex, Meta(description="IMEX channels")] = field(default_factory=Imex)
    cdi: Annotated[Cdi, Meta(description="Container Device Interface")] = field(default_factory=Cdi)
    driver: Annotated[Driver, Meta(description="the driver")] = field(default_factory=Driver)
    health: Annotated[Health, Meta(description="when a GPU counts as unhealthy")] = field(default_factory=Health)
