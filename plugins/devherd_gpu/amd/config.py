"""Configuration of gpu-amd: `plugins.d/gpu-amd.yaml`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

EXPORTER = "/var/lib/amd-metrics-exporter/amdgpu_device_metrics_exporter_grpc.socket"
SELECTOR = {"form": "0 (an index), 0000:05:00.0, model:*MI300*, device:0x74a1, profile:cpx_*, uuid:amdgpu_xcp_3"}


class Sharing(Struct, frozen=True, forbid_unknown_fields=True):
    """Several containers on one GPU, each at its own risk: nothing divides memory or time between them."""

    replicas: Annotated[int, Meta(ge=2, le=1024, description="how many devices stand for each GPU or partition")]
    select: Annotated[
        tuple[str, ...],
        Meta(extra=SELECTOR, description="which GPUs are shared so; empty: all that no rule above took"),
    ] = ()
    rename: Annotated[bool, Meta(description="offer them as <resource>.shared")] = False
    one_each: Annotated[
        bool, Meta(description="refuse a container that asks for more than one: two shares may be of one GPU")
    ] = True


class Named(Struct, frozen=True, forbid_unknown_fields=True):
    """A resource name of their own for some GPUs."""

    name: Annotated[str, Meta(description="name below the domain, or a full one with a /")]
    select: Annotated[tuple[str, ...], Meta(extra=SELECTOR, min_length=1, description="which GPUs")]


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """What counts against a GPU, beyond its being gone."""

    exporter: Annotated[
        str, Meta(pattern="^(/|$)", description="socket of AMD's metrics exporter, asked where it exists; empty: never")
    ] = EXPORTER
    uncorrectable_max: Annotated[
        int,
        Meta(ge=0, description="more uncorrectable errors than this since the driver was loaded: until reboot; 0: off"),
    ] = 0
    temperature_max: Annotated[
        int, Meta(ge=0, extra={"unit": "°C"}, description="instead of each sensor's own critical value; 0: its own")
    ] = 0


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """AMD GPUs, whole or partitioned."""

    naming: Annotated[
        Literal["single", "mixed"],
        Meta(description="single: every GPU or partition is `gpu`; mixed: named by how it is split, `cpx_nps4`"),
    ] = "single"
    domain: Annotated[str, Meta(description="what resource names begin with")] = "amd.com"
    resources: Annotated[tuple[Named, ...], Meta(description="names by model and the like; the first that fits")] = ()
    include: Annotated[tuple[str, ...], Meta(extra=SELECTOR, description="only these GPUs; empty: all")] = ()
    exclude: Annotated[tuple[str, ...], Meta(extra=SELECTOR, description="never these")] = ()
    sharing: Annotated[tuple[Sharing, ...], Meta(description="rules, the first that selects a GPU counts")] = ()
    strategy: Annotated[
        Literal["nodes", "cdi"],
        Meta(description="how a container gets its GPU: device nodes, or the name of one in our CDI specification"),
    ] = "nodes"
    cdi_spec: Annotated[
        bool, Meta(description="keep a CDI specification even where the strategy is nodes, for other users of it")
    ] = False
    policy: Annotated[
        Literal["near", "packed", "spread"],
        Meta(description="which devices go together: best connected; few GPUs; as many GPUs as possible"),
    ] = "near"
    features: Annotated[bool, Meta(description="write node features where Node Feature Discovery reads them")] = True
    health: Annotated[Health, Meta(description="health")] = field(default_factory=Health)
