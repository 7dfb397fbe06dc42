"""The doctor on the kubelet's side: its folder, its socket, our sockets, other servers, what it says it has."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from devherd.cli.doctor_site import LEFT_OUT, NOTE, OK_, PROBLEM, Check, Site, access_words
from devherd.cli.kubelet_view import compare
from devherd.cli.words import count, listing
from devherd.kubelet.identity import probe_socket
from devherd.process import read_stat

_STUCK = {"T": "is frozen (SIGSTOP)", "t": "is held by a debugger", "D": "hangs in the kernel", "Z": "is a zombie"}


def folder(site: Site) -> Iterator[Check]:
    """The device plugin folder is there, and belongs to whom it should."""
    name, path = "kubelet folder", site.device_plugins
    try:
        status = os.stat(path)
    except FileNotFoundError:
        remedy = "The kubelet makes it when it starts; where it runs with another --root-dir, set paths.device_plugins."
        yield Check(name, PROBLEM, f"{path} is missing", remedy)
        return
    except PermissionError:
        yield Check(name, PROBLEM, f"{path}: permission denied", "Ask as root.")
        return
    if not stat.S_ISDIR(status.st_mode):
        yield Check(name, PROBLEM, f"{path} is no folder", "Move it away and restart the kubelet.")
        return
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        remedy = f"Whoever can write there can pose as the kubelet: chmod go-w {path}"
        yield Check(name, PROBLEM, f"{path} can be written by others ({access_words(path)})", remedy)
    if not site.private and status.st_uid != 0:
        yield Check(name, PROBLEM, f"{path} belongs to user {status.st_uid}", f"chown root {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        yield Check(name, NOTE, f"{path} cannot be written by you", "The plugins run as root; ask as root.")
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        yield Check(name, PROBLEM, f"{path} is mounted read-only", "Sockets cannot be made there: remount it.")
    yield Check(name, OK_, f"{path} ({access_words(path)})")


def socket(site: Site) -> Iterator[Check]:
    """A kubelet listens there, and it is the one the plugins see."""
    name, path = "kubelet socket", site.device_plugins / "kubelet.sock"
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        remedy = "Start the kubelet; the plugins register as soon as it listens."
        yield Check(name, PROBLEM, f"{path} is missing: no kubelet has started here", remedy)
        return
    except OSError as error:
        yield Check(name, PROBLEM, f"{path}: {error.strerror}")
        return
    if stat.S_ISDIR(mode):
        remedy = (
            f"A container with a file mount made it, and no kubelet can start: rmdir {path}, then restart the kubelet."
        )
        yield Check(name, PROBLEM, f"{path} is a folder", remedy)
        return
    try:
        identity = probe_socket(str(path), site.proc)
    except BlockingIOError:
        remedy = "The kubelet does not accept connections: frozen, or stuck. Nothing of devherd restarts because of it."
        yield Check(name, PROBLEM, f"{path}: somebody listens, nobody accepts", remedy)
        return
    except OSError as error:
        remedy = "A kubelet that was killed leaves it behind; start the kubelet."
        yield Check(name, PROBLEM, f"{path} is stale: {error.strerror}", remedy)
        return
    yield from _same_kubelet(site, identity.pid)
    stat_line = read_stat(identity.pid, site.proc)
    if stat_line is not None and stat_line.state in _STUCK:
        remedy = "It accepts connections and answers nothing; nothing of devherd restarts because of it."
        text = f"pid {identity.pid} ({site.command(identity.pid)}) {_STUCK[stat_line.state]}"
        yield Check(name, PROBLEM, text, remedy)
    yield Check(name, OK_, f"{path}: pid {identity.pid} ({site.command(identity.pid)}) listens")


def _same_kubelet(site: Site, pid: int) -> Iterator[Check]:
    for reply in site.statuses.replies:
        seen = (reply.get("kubelet") or {}).get("pid")
        if seen and pid and seen != pid:
            text = f"{reply['plugin']} still holds to kubelet pid {seen}; pid {pid} listens now"
            yield Check("kubelet socket", NOTE, text, "A moment after a kubelet restart this is normal; ask again.")


def own_sockets(site: Site) -> Iterator[Check]:
    """Each resource's socket is there, answers, and is nobody else's."""
    name = "our sockets"
    good = 0
    pids = site.our_pids()
    for resource in site.resources():
        path = os.path.join(site.device_plugins, str(resource.get("socket") or ""))
        if not resource.get("socket") or resource.get("state") == "stopped":
            continue
        try:
            mode, pid = os.stat(path).st_mode, probe_socket(path, site.proc).pid
        except BlockingIOError:
            yield Check(name, PROBLEM, f"{path} accepts no connection", "The plugin is stuck; see its log.")
            continue
        except OSError as error:
            remedy = "The plugin makes it anew by itself within seconds; if not: devherd status"
            yield Check(name, PROBLEM, f"{path} ({resource['name']}): {error.strerror}", remedy)
            continue
        good += 1
        if pid not in pids:
            text = (
                f"{path} ({resource['name']}) is served by pid {pid} ({site.command(pid)}), which is no plugin of ours"
            )
            yield Check(name, PROBLEM, text, "End that process; the plugin takes its socket back.")
        if mode & 0o077:
            yield Check(name, NOTE, f"{path} can be used by others than root ({access_words(Path(path))})")
    if good:
        yield Check(name, OK_, f"{count(good, 'socket')} answer")
    elif not any(True for _ in site.resources()):
        yield Check(name, LEFT_OUT, "no resource is served")


def others(site: Site) -> Iterator[Check]:
    """Device plugins beside ours, which could take our resources."""
    name = "other servers"
    pids, taken = site.our_pids(), [item for item in site.resources() if item.get("state") == "taken"]
    found = []
    for path in _socket_files(site.device_plugins):
        if path.name == "kubelet.sock":
            continue
        try:
            pid = probe_socket(str(path), site.proc).pid
        except BlockingIOError:
            pid = 0
        except OSError:
            continue
        if pid not in pids:
            found.append(f"{path} (pid {pid or 'unknown'}, {site.command(pid) if pid else 'busy'})")
    for item in taken:
        remedy = (
            "Remove the other device plugin (a vendor's DaemonSet?), or rename our resource. Ours comes back alone."
        )
        yield Check(name, PROBLEM, f"{item['name']} is served by another: {item.get('error') or 'unknown'}", remedy)
    for text in found:
        remedy = "Fine, unless it serves one of our resource names: the kubelet keeps whoever registered last."
        yield Check(name, NOTE, text, remedy)
    if not found and not taken:
        yield Check(name, OK_, f"nobody else listens in {site.device_plugins}")


def _socket_files(top: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(top):
        folders[:] = folders if Path(root) == top else []
        for name in sorted(names):
            path = Path(root) / name
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    yield path
            except OSError:
                continue


def pod_resources(site: Site) -> Iterator[Check]:
    """The kubelet's own account agrees with ours."""
    name, view = "PodResources", site.kubelet_view
    if view.error:
        remedy = "Registration works without it, but is then not verified, and who holds a device is not known."
        why = view.error.rpartition(" error: ")[2]  # gRPC quotes itself
        yield Check(name, NOTE, f"{site.paths.pod_resources} cannot be asked: {why}", remedy)
        return
    differences = compare(site.devices, view)
    for item in differences:
        yield Check(name, PROBLEM, f"{item.where}: {item.text}", item.hint)
    if not differences:
        ours = sorted({str(item["name"]) for item in site.resources()})
        yield Check(name, OK_, f"agrees on {listing(ours) or 'nothing, no resource is served'}")
