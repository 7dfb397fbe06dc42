"""Configuration of gpu-intel: `plugins.d/gpu-intel.yaml`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

LEVEL_ZERO = "/var/lib/levelzero/server.sock"
SELECTOR = {"form": "0 (an index), 0000:03:00.0, device:0x56c0, profile:xe"}


class Named(Struct, frozen=True, forbid_unknown_fields=True):
    """A resource name of their own for some GPUs."""

    name: Annotated[str, Meta(description="name below the domain, or a full one with a /")]
    select: Annotated[tuple[str, ...], Meta(extra=SELECTOR, min_length=1, description="which GPUs")]


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """What counts against a GPU, beyond its being gone or wedged."""

    level_zero: Annotated[
        str,
        Meta(pattern="^(/|$)", description="socket of Intel's Level Zero sidecar, asked where it exists; empty: never"),
    ] = LEVEL_ZERO
    temperature_max: Annotated[
        int, Meta(ge=0, extra={"unit": "°C"}, description="limit for every sensor; 0: each sensor's own critical value")
    ] = 100


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Intel GPUs under i915 and xe."""

    domain: Annotated[str, Meta(description="what resource names begin with")] = "gpu.intel.com"
    shared: Annotated[int, Meta(ge=1, le=1024, description="how many containers may share a GPU")] = 1
    policy: Annotated[
        Literal["none", "balanced", "packed"],
        Meta(description="which shares a container gets: of different GPUs; of the GPUs least in use; of few GPUs"),
    ] = "none"
    monitoring: Annotated[
        Literal["off", "single", "split"],
        Meta(description="a resource that gives all GPUs to a monitor: one for all, or one for each driver"),
    ] = "off"
    by_path: Annotated[
        Literal["single", "none", "all"],
        Meta(description="/dev/dri/by-path in the container: this GPU's entries, nothing, or the whole folder"),
    ] = "single"
    allow: Annotated[tuple[str, ...], Meta(description="only these PCI device ids, 0x56c0; empty: all")] = ()
    deny: Annotated[tuple[str, ...], Meta(description="never these PCI device ids; not together with allow")] = ()
    include: Annotated[tuple[str, ...], Meta(extra=SELECTOR, description="only these GPUs; empty: all")] = ()
    exclude: Annotated[tuple[str, ...], Meta(extra=SELECTOR, description="never these")] = ()
    resources: Annotated[tuple[Named, ...], Meta(description="names by model and the like; the first that fits")] = ()
    cdi: Annotated[bool, Meta(description="name the GPU in our CDI specification too, as Intel's plugin does")] = True
    features: Annotated[bool, Meta(description="write node features where Node Feature Discovery reads them")] = True
    health: Annotated[Health, Meta(description="health")] = field(default_factory=Health)
