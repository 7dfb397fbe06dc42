"""From Intel's GPU plugin: its flags, and what becomes different."""

from __future__ import annotations

from typing import Any

from devherd.config.rival import Flags, Imported, Rival, truth

_SWITCHES = frozenset({"enable-monitoring", "health-management", "wsl", "resource-manager", "logtostderr"})
_CHOICES = {
    "allocation-policy": ("policy", ("none", "balanced", "packed")),
    "bypath": ("by_path", ("single", "none", "all")),
}


def load(rival: Rival) -> Imported:
    """`config import intel`."""
    flags = Flags(rival.args, switches=_SWITCHES)
    config: dict[str, Any] = {}
    notes: list[str] = []
    _shares(flags, config, notes)
    for flag, (key, known) in _CHOICES.items():
        value = flags.get(flag)
        if value in known:
            config[key] = value
        elif value:
            notes.append(f"-{flag}={value} is none of {', '.join(known)}; left at the default")
    if truth(flags.get("enable-monitoring", "false")):
        config["monitoring"] = flags.get("monitoring-mode", "single")
    for flag, key in (("allow-ids", "allow"), ("deny-ids", "deny")):
        ids = [text.strip() for text in flags.get(flag).split(",") if text.strip()]
        if ids:
            config[key] = ids
    _health(flags, config, notes)
    if truth(flags.get("wsl", "false")):
        notes.append("-wsl: GPUs of the Windows Subsystem for Linux are not offered")
    if truth(flags.get("resource-manager", "false")):
        notes.append("-resource-manager: fractional resources are not built; use shared and policy")
    if flags.has("prefix"):
        notes.append("-prefix: use paths.root, paths.sys and paths.dev in devherd.yaml")
    notes += [f"-{name} has no meaning here" for name in flags.left() if name not in ("v", "logtostderr")]
    notes.append(
        "resource names, device ids, device nodes, mounts and CDI names stay as they are: running pods keep theirs"
    )
    return Imported(config, tuple(notes))


def _shares(flags: Flags, config: dict[str, Any], notes: list[str]) -> None:
    text = flags.get("shared-dev-num", "1")
    if text.isdecimal() and int(text) >= 1:
        if int(text) > 1:
            config["shared"] = int(text)
    else:
        notes.append(f"-shared-dev-num={text} is no number of containers; left at 1")


def _health(flags: Flags, config: dict[str, Any], notes: list[str]) -> None:
    managed = truth(flags.get("health-management", "false"))
    limits = [flags.get(name) for name in ("temp-limit", "gpu-temp-limit", "memory-temp-limit")]
    numbers = sorted({int(text) for text in limits if text.isdecimal()})
    if numbers:
        config["health"] = {"temperature_max": numbers[0]}
        if len(numbers) > 1:
            notes.append(f"one limit for every sensor, the lowest of yours: {numbers[0]} °C")
    if not managed:
        notes.append("health was off (-health-management); here it is always looked at")
    if flags.has("xpumd-endpoint"):
        notes.append(f"-xpumd-endpoint={flags.get('xpumd-endpoint')}: not asked; sensors and the driver's word count")
