"""Runs in the machine, with devherd's Python: one JSON object of what kubelet, containers and devherd say."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import urllib.request
import zlib
from pathlib import Path
from typing import Any

from devherd.control import ControlError, ask

PAGE = "http://127.0.0.1:10255/pods"
EVERYBODYS = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
PLAIN = "watcher.json"
"""It is one line of JSON, forgotten with the boot, and has no checksum."""
STATE = Path("/var/lib/devherd")


def main() -> None:
    """Print the report."""
    print(
        json.dumps({"boot": _text("/proc/sys/kernel/random/boot_id"), "pods": _pods(), **_devherd(), "state": _state()})
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _pods() -> dict[str, Any]:
    try:
        with urllib.request.urlopen(PAGE, timeout=5) as answer:
            items = json.load(answer).get("items") or []
    except (OSError, ValueError):
        return {}
    tasks = _tasks()
    return {item["metadata"]["name"]: _pod(item, tasks) for item in items}


def _pod(item: dict[str, Any], tasks: dict[str, int]) -> dict[str, Any]:
    status = item.get("status", {})
    containers = status.get("containerStatuses") or []
    ids = [one.get("containerID", "").rpartition("/")[2] for one in containers if "running" in one.get("state", {})]
    pids = [tasks[one] for one in ids if one in tasks]
    return {
        "phase": status.get("phase", ""),
        "reason": status.get("reason", ""),
        "message": status.get("message", ""),
        "restarts": sum(one.get("restartCount", 0) for one in containers),
        "running": bool(containers) and len(pids) == len(containers),
        "pids": pids,
        "nodes": {path: number for pid in pids for path, number in _nodes(pid).items()},
        "opened": [line for pid in pids for line in _text(f"/proc/{pid}/root/tmp/opened").splitlines()],
    }


def _tasks() -> dict[str, int]:
    command = ["ctr", "-n", "k8s.io", "tasks", "ls"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[1:]
    return {row[0]: int(row[1]) for row in map(str.split, lines) if len(row) == 3 and row[2] == "RUNNING"}


def _nodes(pid: int) -> dict[str, str]:
    found = {}
    root = f"/proc/{pid}/root"
    for folder, _, names in os.walk(f"{root}/dev"):
        for name in names:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            inside = path[len(root) :]
            if stat.S_ISCHR(status.st_mode) and name not in EVERYBODYS and not inside.startswith("/dev/pts/"):
                found[inside] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return found


def _devherd() -> dict[str, Any]:
    try:
        front = ask("/run/devherd/generic.control.sock", {"op": "status"})
        return {"front": front.get("pid"), "resources": {one["name"]: one for one in front.get("resources", [])}}
    except (ControlError, OSError) as error:
        return {"front": None, "resources": {}, "problem": str(error)}


def _state() -> dict[str, str]:
    """File -> ok, or what is wrong with it: its checksum is calculated here, not asked for."""
    return {str(path.relative_to(STATE)): _judged(path) for path in sorted(STATE.rglob("*")) if path.is_file()}


def _judged(path: Path) -> str:
    head, _, payload = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(head)
        if path.name == PLAIN:
            return "ok"
        whole = zlib.crc32(payload[: header["size"]]) == header["checksum"] and len(payload) == header["size"] + 1
    except (ValueError, KeyError, TypeError):
        return "no header"
    return "ok" if whole else "damaged"


if __name__ == "__main__":
    main()
