"""The doctor on the host: labels, drivers, the container runtime, device links, disk, clock, limits."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devherd.cli.doctor_site import LEFT_OUT, NOTE, OK_, PROBLEM, Check, Site
from devherd.cli.words import count, listing

LOW_SPACE, LOW_SHARE = 64 * 1024 * 1024, 0.02
"""Free bytes and free share of inodes below which a file system counts as full."""
TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""
OLDEST = 1_735_689_600.0
"""2025-01-01: no node that runs this software is older than it."""


def selinux(site: Site) -> Iterator[Check]:
    """Our sockets have the label the kubelet's folder gives, so that it may connect to them."""
    name = "SELinux"
    enforce = site.read("/sys/fs/selinux/enforce")
    if enforce is None:
        yield Check(name, OK_, "is not active")
        return
    wanted = _label(site.device_plugins)
    paths = [site.device_plugins / "devherd", *(Path(str(item.get("socket"))) for item in site.resources())]
    labels = {path: label for path in paths if (label := _label(path))}
    wrong = {path: label for path, label in labels.items() if wanted and _type(label) != _type(wanted)}
    strict = enforce.strip() == "1"
    for path, label in wrong.items():
        text = f"{path} is {_type(label)}, its folder {_type(wanted)}"
        yield Check(name, PROBLEM if strict else NOTE, text, f"restorecon -R {site.device_plugins}")
    if not wrong:
        mode = "enforcing" if strict else "permissive"
        yield Check(name, OK_, f"{mode}; labels agree ({_type(wanted) or 'none'})")


def _label(path: Path) -> str:
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode("ascii", "replace")
    except OSError:
        return ""


def _type(label: str) -> str:
    parts = label.split(":")
    return parts[2] if len(parts) > 2 else label


def drivers(site: Site) -> Iterator[Check]:
    """Each driver's version, and whether the libraries on disk belong to the one that is loaded."""
    name = "drivers"
    versions = {}
    for module in ("nvidia", "amdgpu", "i915", "xe", "mlx5_core", "sfc", "xocl"):
        if site.real(f"/sys/module/{module}").is_dir():
            versions[module] = (site.read(f"/sys/module/{module}/version") or "in kernel").strip()
    loaded = re.search(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)\s", site.read("/proc/driver/nvidia/version") or "")
    if loaded:
        versions["nvidia"] = loaded[1]
        libraries = _nvml_versions(site)
        if libraries and loaded[1] not in libraries:
            text = f"nvidia driver {loaded[1]} is loaded, libnvidia-ml on disk is {listing(sorted(libraries))}"
            remedy = "An update changed the library under the driver: no NVML call works. Drain, then reload or reboot."
            yield Check(name, PROBLEM, text, remedy)
    release = platform.release()
    if not site.simulated:
        modules = Path("/lib/modules")
        if modules.is_dir() and any(modules.iterdir()) and not (modules / release).is_dir():
            text = f"the running kernel {release} has no modules on disk: no driver can be loaded"
            yield Check(name, PROBLEM, text, "An update removed them; drain and reboot.")
        if os.path.exists("/run/reboot-required"):
            yield Check(name, NOTE, "a reboot is pending (/run/reboot-required)", "Drain first, then reboot.")
    shown = ", ".join(f"{module} {version}" for module, version in versions.items())
    yield Check(name, OK_, shown or "none that devherd knows is loaded")


def _nvml_versions(site: Site) -> set[str]:
    found = set()
    for folder in ("/usr/lib64", "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"):
        for path in site.real(folder).glob("libnvidia-ml.so.*.*"):
            found.add(path.name.partition(".so.")[2])
    return found


def cdi(site: Site) -> Iterator[Check]:
    """Where answers name CDI devices: the runtime resolves them, and the specifications hold them."""
    name = "CDI"
    wanted = {str(one) for device in site.all_devices() for one in device.get("cdi", ())}
    if not wanted:
        yield Check(name, LEFT_OUT, "no plugin answers with CDI names")
        return
    known = _cdi_devices(site)
    missing = sorted(wanted - known)
    if missing:
        text = f"no specification in {site.paths.cdi} or /etc/cdi holds {listing(missing)}"
        yield Check(name, PROBLEM, text, "A container with it cannot start; the plugin writes them: devherd status")
    off = _cdi_off(site)
    if off:
        yield Check(name, PROBLEM, off, "Set enable_cdi = true there (containerd < 2.0), then restart containerd.")
    if not missing and not off:
        yield Check(name, OK_, f"{count(len(wanted), 'name')} found in the specifications")


def _cdi_devices(site: Site) -> set[str]:
    found = set()
    for folder in (Path(site.paths.cdi), site.real("/etc/cdi")):
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            found |= _cdi_names(path)
    return found


def _cdi_names(path: Path) -> set[str]:
    """Names in one specification; none in a file that is no such thing."""
    try:
        text = path.read_text(encoding="utf-8")
        spec: Any = json.loads(text) if path.suffix == ".json" else _yaml(text)
        return {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _cdi_off(site: Site) -> str:
    """Why containerd does not resolve CDI names; empty when it does or nothing is known of it. CRI-O always does."""
    for place in ("/etc/containerd/config.toml", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"):
        text = site.read(place)
        if text is None:
            continue
        said = re.search(r"(?m)^\s*enable_cdi\s*=\s*(true|false)", text)
        version = re.search(r"(?m)^\s*version\s*=\s*(\d+)", text)
        if said and said[1] == "false":
            return f"{place} has enable_cdi = false"
        if not said and version and int(version[1]) < 3:
            return f"{place} (version {version[1]}) does not enable CDI, and containerd 1.x does not by itself"
    return ""


def dev_char(site: Site) -> Iterator[Check]:
    """Links /dev/char/M:m: with the systemd cgroup driver, runc finds a container's devices by them."""
    name = "/dev/char links"
    if site.simulated or site.paths.rdev_table:
        yield Check(name, LEFT_OUT, "the device nodes are simulated")
        return
    numbers = {
        str(node.get("number", "")): str(node["host_path"]) for d in site.all_devices() for node in d.get("nodes", ())
    }
    missing = []
    for number, path in sorted(numbers.items()):
        kind, _, digits = number.partition(" ")
        link = Path(site.paths.dev) / ("char" if kind == "c" else "block") / digits
        if digits and not os.path.lexists(link):
            missing.append(f"{path} ({digits})")
    if missing:
        remedy = (
            "A `systemctl daemon-reload` would take these devices from running containers. "
            "Make the links: udevadm trigger; for NVIDIA: nvidia-ctk system create-dev-char-symlinks --create-all"
        )
        yield Check(name, NOTE, f"there is none for {listing(missing)}", remedy)
    else:
        yield Check(name, OK_, f"{count(len(numbers), 'device number')} looked up")


def disk(site: Site) -> Iterator[Check]:
    """Room for what is kept, and nothing read-only."""
    name, tight = "disk", 0
    uses = (("state", site.paths.state), ("log", site.paths.log), ("run", site.paths.run), ("cache", site.paths.cache))
    for what, path in (*uses, ("kubelet's folder", site.paths.device_plugins)):
        nearest = next(parent for parent in (Path(path), *Path(path).parents) if parent.exists())
        room = os.statvfs(nearest)
        free = room.f_bavail * room.f_frsize
        low = free < LOW_SPACE or (room.f_files and room.f_favail < room.f_files * LOW_SHARE)
        if room.f_flag & os.ST_RDONLY:
            tight += 1
            yield Check(name, PROBLEM, f"{nearest} ({what}) is mounted read-only", "See dmesg; remount it.")
        elif low:
            tight += 1
            left = f"{free / 1048576:,.0f} MiB and {room.f_favail:,} inodes are left"
            remedy = "Devices stay allocatable, but nothing is remembered over a restart. Make room."
            yield Check(name, PROBLEM, f"{nearest} ({what}) is full: {left}", remedy)
    if not tight:
        yield Check(name, OK_, "room everywhere")


def clock(site: Site) -> Iterator[Check]:
    """The clock is plausible and synchronised. Timers do not depend on it, but records and holders' times do."""
    name, now = "clock", time.time()
    if now < OLDEST:
        yield Check(name, PROBLEM, f"it is {time.strftime('%Y-%m-%d', time.gmtime(now))} here", "Set the clock (NTP).")
        return
    newest = _newest(Path(site.paths.state))
    if newest > now + 60:
        text = f"files in {site.paths.state} are from the future by {newest - now:,.0f} s: the clock went back"
        yield Check(name, NOTE, text, "Times in the records before that are wrong.")
    state = _clock_state()
    if state == TIME_ERROR:
        remedy = "Start chronyd or systemd-timesyncd; certificates and logs depend on it, registration does not."
        yield Check(name, NOTE, "it is not synchronised", remedy)
    elif state >= 0:
        yield Check(name, OK_, "synchronised")
    else:
        yield Check(name, LEFT_OUT, "the kernel does not say whether it is synchronised")


def _newest(folder: Path) -> float:
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0


def _clock_state() -> int:
    """What adjtimex(2) returns when asked nothing but that; -1 when it cannot be asked."""
    try:
        # struct timex has 208 bytes; all zero means: change nothing.
        return int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512)))
    except (OSError, AttributeError):
        return -1


def limits(site: Site) -> Iterator[Check]:
    """Open files and inotify instances: near their limits, events and sockets are lost."""
    name, tight = "limits", 0
    for pid, plugin in site.our_pids().items():
        try:
            used = len(os.listdir(f"{site.proc}/{pid}/fd"))
            with open(f"{site.proc}/{pid}/limits", encoding="ascii", errors="replace") as file:
                found = re.search(r"Max open files\s+(\d+)", file.read())
        except OSError:
            continue
        if found and used > int(found[1]) * 0.8:
            tight += 1
            yield Check(
                name, PROBLEM, f"{plugin} has {used} of {found[1]} files open", "Raise --nofile in its conf.d file."
            )
    instances, watches = _inotify(site)
    most = _number(site, "/proc/sys/fs/inotify/max_user_instances")
    if most and instances >= most * 0.9:
        tight += 1
        remedy = "sysctl fs.inotify.max_user_instances=8192; until then changes are found by polling, seconds later."
        yield Check(name, PROBLEM, f"{instances} of {most} inotify instances of this user are in use", remedy)
    if not tight:
        yield Check(
            name,
            OK_,
            f"{instances} inotify instances with {watches:,} watches in use" + (f" of {most}" if most else ""),
        )


def _inotify(site: Site) -> tuple[int, int]:
    """Inotify instances and watches of our user's processes."""
    instances = watches = 0
    for entry in os.scandir(site.proc):
        try:
            if not entry.name.isdigit() or entry.stat().st_uid != os.getuid():
                continue
            for fd in os.scandir(f"{entry.path}/fd"):
                if os.readlink(fd.path) == "anon_inode:inotify":
                    instances += 1
                    with open(f"{entry.path}/fdinfo/{fd.name}", encoding="ascii", errors="replace") as file:
                        watches += sum(line.startswith("inotify ") for line in file)
        except OSError:
            continue
    return instances, watches


def _number(site: Site, logical: str) -> int:
    text = site.read(logical) or _plain("/proc" + logical[5:])
    return int(text) if text.strip().isdecimal() else 0


def _plain(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
