"""From AMD's device plugin: its two flags, and what becomes different."""

from __future__ import annotations

from typing import Any

from devherd.config.rival import Flags, Imported, Rival

_LOGGING = frozenset(
    {"logtostderr", "stderrthreshold", "v", "vmodule", "alsologtostderr", "log_dir", "log_backtrace_at"}
)
_NEVER_EXISTED = ("AMD_GPU_DEVICE_COUNT", "CONFIG_FILE_PATH")


def load(rival: Rival) -> Imported:
    """`config import amd`."""
    flags = Flags(rival.args, switches=_LOGGING)
    config: dict[str, Any] = {}
    notes: list[str] = []
    naming = flags.get("resource_naming_strategy", "single")
    if naming in ("single", "mixed"):
        config["naming"] = naming
    else:
        notes.append(f"-resource_naming_strategy={naming} is none of single and mixed; left at single")
    pulse = flags.get("pulse", "0")
    if pulse not in ("", "0"):
        notes.append(
            f"-pulse={pulse}: health is looked at every probe.check_interval (devherd.yaml, 10 s), each GPU by itself"
        )
    else:
        notes.append("health was off (-pulse=0); here it is always looked at, for each GPU by itself")
    driver = flags.get("driver_type")
    if driver not in ("", "container"):
        notes.append(
            f"-driver_type={driver}: only GPUs that amdgpu serves are offered; give others to the generic plugin"
        )
    unread = [name for name in _NEVER_EXISTED if name in rival.env]
    notes += [f"{name} is in AMD's documents but was never read; it is left out" for name in unread]
    notes += [f"-{name} has no meaning here" for name in flags.left() if name not in _LOGGING]
    notes.append("resource names, device ids and device nodes stay as they are: running pods keep their GPUs")
    return Imported(config, tuple(notes))
