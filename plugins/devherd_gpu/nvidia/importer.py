"""From NVIDIA's device plugin: command line, environment and configuration file, in that order of weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devherd.config import yaml12
from devherd.config.problems import Report
from devherd.config.rival import Flags, Imported, Rival, plain, truth

# The plugin's flag, its environment variable, its place in the file (below flags, or flags.plugin).
_NAMES: dict[str, tuple[str, str]] = {
    "mig-strategy": ("MIG_STRATEGY", "migStrategy"),
    "fail-on-init-error": ("FAIL_ON_INIT_ERROR", "failOnInitError"),
    "driver-root": ("NVIDIA_DRIVER_ROOT", "nvidiaDriverRoot"),
    "dev-root": ("NVIDIA_DEV_ROOT", "nvidiaDevRoot"),
    "gds-enabled": ("GDS_ENABLED", "gdsEnabled"),
    "mofed-enabled": ("MOFED_ENABLED", "mofedEnabled"),
    "gdrcopy-enabled": ("GDRCOPY_ENABLED", "gdrcopyEnabled"),
    "device-discovery-strategy": ("DEVICE_DISCOVERY_STRATEGY", "deviceDiscoveryStrategy"),
    "pass-device-specs": ("PASS_DEVICE_SPECS", "plugin.passDeviceSpecs"),
    "device-list-strategy": ("DEVICE_LIST_STRATEGY", "plugin.deviceListStrategy"),
    "device-id-strategy": ("DEVICE_ID_STRATEGY", "plugin.deviceIDStrategy"),
    "cdi-annotation-prefix": ("CDI_ANNOTATION_PREFIX", "plugin.cdiAnnotationPrefix"),
    "nvidia-cdi-hook-path": ("NVIDIA_CDI_HOOK_PATH", "plugin.nvidiaCTKPath"),
    "driver-root-ctr-path": ("DRIVER_ROOT_CTR_PATH", "plugin.containerDriverRoot"),
    "imex-channel-ids": ("IMEX_CHANNEL_IDS", ""),
    "imex-required": ("IMEX_REQUIRED", ""),
    "shared-devices-allocation-policy": ("SHARED_DEVICES_ALLOCATION_POLICY", "plugin.sharedDevicesAllocationPolicy"),
    "mps-root": ("MPS_ROOT", "mpsRoot"),
    "config-file": ("CONFIG_FILE", ""),
    "cdi-enabled": ("CDI_ENABLED", ""),
    "kubelet-socket": ("KUBELET_SOCKET", ""),
}
_ALIASES = {
    "nvidia-driver-root": "driver-root",
    "container-driver-root": "driver-root-ctr-path",
    "nvidia-ctk-path": "nvidia-cdi-hook-path",
}
_SWITCHES = frozenset(
    ("fail-on-init-error", "pass-device-specs", "gds-enabled", "mofed-enabled", "gdrcopy-enabled", "imex-required")
)
_HEALTH = ("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS")


def load(rival: Rival) -> Imported:
    """`config import nvidia`."""
    given = _Given(rival)
    config: dict[str, Any] = {}
    notes: list[str] = list(given.notes)
    _plain(given, config)
    _answers(given, config, notes)
    _driver(given, config, notes)
    _sharing(given.file, config, notes)
    _renamed(given.file, config, notes)
    _imex(given, config)
    _health(rival.env, config, notes)
    if given.get("fail-on-init-error") not in ("", "true"):
        notes.append("fail-on-init-error: nothing ends for want of a driver here; status says what is missing")
    notes += [f"{name} has no meaning here" for name in given.left()]
    notes.append("resource names, device ids and CDI names stay as they are: running pods keep their GPUs")
    return Imported(config, tuple(notes))


class _Given:
    """What was said, wherever it was said."""

    def __init__(self, rival: Rival) -> None:
        renamed = [f"--{_ALIASES.get(word.lstrip('-').partition('=')[0], '')}" for word in rival.args]
        args = [
            f"{new}={word.partition('=')[2]}" if new != "--" and "=" in word else new if new != "--" else word
            for new, word in zip(renamed, rival.args, strict=True)
        ]
        self._flags = Flags(args, _SWITCHES)
        self._env = rival.env
        self.file, self.notes = _file(rival)

    def get(self, name: str) -> str:
        """The value as a text; empty when nobody said anything."""
        variable, place = _NAMES[name]
        if self._flags.has(name):
            return self._flags.get(name)
        if self._env.get(variable):
            return self._env[variable]
        return _text(_below(self.file.get("flags"), place)) if place else ""

    def left(self) -> list[str]:
        """Flags that mean nothing here."""
        for name in _NAMES:
            self._flags.has(name)
        return [f"--{name}" for name in self._flags.left()]


def _file(rival: Rival) -> tuple[Mapping[str, Any], list[str]]:
    """The configuration file, given by itself or in a ConfigMap; the first where there are several."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, text in rival.files.items():
        node = yaml12.parse(text, Report(name or "file"))
        value = plain(node) if node is not None else None
        if isinstance(value, dict) and ("flags" in value or "sharing" in value or "version" in value):
            found.append((name, value))
    if not found:
        return {}, []
    notes = []
    if len(found) > 1:
        others = ", ".join(name for name, _ in found[1:])
        notes.append(f"{found[0][0]} was taken; import the others for their nodes: {others}")
    return found[0][1], notes


def _below(value: Any, place: str) -> Any:
    for part in place.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_text(item) for item in value)
    return "" if value is None else str(value)


def _plain(given: _Given, config: dict[str, Any]) -> None:
    for name, key, default in (
        ("mig-strategy", "mig", "none"),
        ("device-id-strategy", "ids", "uuid"),
        ("shared-devices-allocation-policy", "shares", "distributed"),
        ("mps-root", "mps_root", ""),
    ):
        value = given.get(name)
        if value and value != default:
            config[key] = value
    for name, key in (("gds-enabled", "gds"), ("mofed-enabled", "mofed"), ("gdrcopy-enabled", "gdrcopy")):
        if truth(given.get(name)):
            config[key] = True


def _answers(given: _Given, config: dict[str, Any], notes: list[str]) -> None:
    strategies = [word.strip() for word in given.get("device-list-strategy").split(",") if word.strip()]
    # Their default, written out: running pods were answered so, and new ones shall be.
    config["device_list"] = strategies or ["envvar"]
    if "envvar" in config["device_list"]:
        notes.append(
            "device_list: envvar is kept; with it a container that asks for no GPU may set NVIDIA_VISIBLE_DEVICES "
            "itself and see them all: write cdi-cri where containerd is 1.7 or newer"
        )
    if truth(given.get("pass-device-specs")):
        config["pass_device_specs"] = True
    prefix, hook = given.get("cdi-annotation-prefix"), given.get("nvidia-cdi-hook-path")
    cdi = {"annotation_prefix": prefix} if prefix and prefix != "cdi.k8s.io/" else {}
    cdi |= {"hook": hook} if hook and hook != "/usr/bin/nvidia-ctk" else {}
    if cdi:
        config["cdi"] = cdi


def _driver(given: _Given, config: dict[str, Any], notes: list[str]) -> None:
    driver: dict[str, Any] = {}
    root, dev = given.get("driver-root"), given.get("dev-root")
    if root and root != "/":
        driver["root"] = root
    if dev and dev != (root or "/"):
        driver["dev_root"] = dev
    found = given.get("device-discovery-strategy")
    if found and found != "auto":
        driver["discovery"] = found
    if given.get("driver-root-ctr-path"):
        notes.append(
            "the driver's root in the plugin's container: there is no container here; driver.root is the host's"
        )
    if driver:
        config["driver"] = driver


def _sharing(file: Mapping[str, Any], config: dict[str, Any], notes: list[str]) -> None:
    rules: list[dict[str, Any]] = []
    sharing = file.get("sharing") or {}
    for key, mode in (("timeSlicing", "time-slicing"), ("mps", "mps")):
        section = sharing.get(key) or {}
        rules += [_share(section, one, mode, notes) for one in section.get("resources") or []]
    if rules:
        config["sharing"] = rules


def _share(section: Mapping[str, Any], one: Mapping[str, Any], mode: str, notes: list[str]) -> dict[str, Any]:
    rule: dict[str, Any] = {"replicas": one.get("replicas", 2)}
    if mode != "time-slicing":
        rule["mode"] = mode
    name = str(one.get("name") or "")
    if name:
        rule["resource"] = name
    if one.get("rename"):
        rule["name"] = str(one["rename"])
    elif section.get("renameByDefault"):
        rule["rename"] = True
    one_each = section.get("failRequestsGreaterThanOne")
    if one_each is not None and bool(one_each) != (mode == "mps"):
        rule["one_each"] = bool(one_each)
    devices = one.get("devices")
    if isinstance(devices, list):
        rule["select"] = [str(device) for device in devices]
        notes.append(f"sharing of {name}: `devices` was ignored by NVIDIA's plugin and counts here")
    return rule


def _renamed(file: Mapping[str, Any], config: dict[str, Any], notes: list[str]) -> None:
    """`resources`: patterns of models and profiles, which NVIDIA's plugin reads and then ignores."""
    section = file.get("resources") or {}
    rules = [
        {"select": [f"{kind}:{one.get('pattern', '')}"], "name": str(one.get("name", ""))}
        for key, kind in (("gpus", "model"), ("mig", "profile"))
        for one in section.get(key) or []
        if one.get("pattern") not in (None, "", "*")
    ]
    if rules:
        config["resources"] = rules
        notes.append("resources: names by pattern were ignored by NVIDIA's plugin and count here: check them")


def _imex(given: _Given, config: dict[str, Any]) -> None:
    section = given.file.get("imex") or {}
    channels = given.get("imex-channel-ids") or _text(section.get("channelIDs"))
    numbers = [int(word) for word in channels.split(",") if word.strip().isdecimal()]
    required = truth(given.get("imex-required") or _text(section.get("required")))
    if numbers or required:
        config["imex"] = {"channels": numbers, **({"required": True} if required else {})}


def _health(env: Mapping[str, str], config: dict[str, Any], notes: list[str]) -> None:
    off, on = (_numbers(env.get(name, "")) for name in _HEALTH)
    health: dict[str, Any] = {}
    words = {word.strip().lower() for word in env.get(_HEALTH[0], "").split(",")}
    if words & {"all", "xids"}:
        health["xids"] = False
        notes.append(
            f"{_HEALTH[0]}={env[_HEALTH[0]]}: Xids do not count; ECC, lost GPUs and the like do (health.evidence)"
        )
    if off:
        health["ignore_xids"] = off
    if on:
        health["count_xids"] = on
    if health:
        config["health"] = health


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(" ", ",").split(",") if word.isdecimal()]
