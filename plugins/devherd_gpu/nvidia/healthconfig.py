"""Options of `health:` in `plugins.d/gpu-nvidia.yaml`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from devherd_gpu.nvidia.xids import SKIPPED, Policy

KINDS = {
    "ecc": "uncorrectable memory errors since the last reset",
    "remap-pending": "a bad memory row waits for a reset to be replaced",
    "remap-failure": "a bad memory row could not be replaced",
    "page-retirement": "a bad memory page waits for a reset to be retired",
    "recovery-action": "the driver asks for a reset or a reboot",
    "gpu-lost": "the driver cannot reach the GPU",
    "reset-required": "the driver refuses to work with the GPU until it is reset",
    "no-answer": "a simple question about the GPU fails",
    "heat": "the hardware slows the GPU down because of its temperature",
    "power": "the hardware slows the GPU down because of its power supply",
    "fabric": "the NVSwitch fabric is not ready for the GPU, or works with less bandwidth",
    "imex-domain": "the IMEX domain (memory of other nodes) is not ready, where its channels are given",
    "pcie": "the PCIe link is narrower or slower than card and slot can do",
    "unmonitored": "the driver takes no order for events of the GPU",
}
"""Kinds of evidence other than Xids, in words for people. Those of an Xid are `xid-N`."""

Say = Annotated[str, Meta(pattern="^(hard|soft|off)$")]


class Health(Struct, frozen=True, forbid_unknown_fields=True):
    """When a GPU counts as unhealthy."""

    events: Annotated[
        bool, Meta(description="watch the driver's events (Xid errors and others); without, GPUs are only asked")
    ] = True
    xids: Annotated[
        bool,
        Meta(
            description="Xid errors count; without, only those in `count_xids` do "
            "(`DP_DISABLE_HEALTHCHECKS=all` of the vendor's plugin)"
        ),
    ] = True
    ignore_xids: Annotated[
        tuple[Annotated[int, Meta(gt=0)], ...],
        Meta(description="Xid numbers that do not count, besides 13, 31, 43, 45, 68 and 109"),
    ] = ()
    count_xids: Annotated[
        tuple[Annotated[int, Meta(gt=0)], ...],
        Meta(description="Xid numbers that count, whatever else is said (`DP_ENABLE_HEALTHCHECKS`)"),
    ] = ()
    evidence: Annotated[
        dict[str, Say],
        Meta(
            description="how much a kind of evidence counts: at once (hard), after a while (soft) or not at all (off); "
            "kinds: " + ", ".join(KINDS)
        ),
    ] = {}
    reset: Annotated[
        bool,
        Meta(
            description="a GPU that needs a reset is reset by `nvidia-smi --gpu-reset`, when no pod and no process "
            "holds it; how often: health.resets_per_day in devherd.yaml"
        ),
    ] = False

    def policy(self) -> Policy:
        """Which Xids count."""
        return Policy(SKIPPED | frozenset(self.ignore_xids), frozenset(self.count_xids), not self.xids)


def unknown_kinds(health: Health) -> list[str]:
    """Names in `evidence` that no evidence has."""
    return [kind for kind in health.evidence if kind not in KINDS]
