"""Runs in the machine: takes commands from the virtio port and answers with what they said. One JSON object a line.

Request: id, argv, and optionally input, timeout (seconds). Answer: id, rc, out, err.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from typing import Any

PORT = "/dev/virtio-ports/org.devherd.machine"


def main() -> None:
    """Serve until the machine ends."""
    while not os.path.exists(PORT):
        time.sleep(0.02)
    fd = os.open(PORT, os.O_RDWR)
    lock = threading.Lock()
    buffer = b""
    while True:
        data = os.read(fd, 65536)
        if not data:
            time.sleep(0.05)  # The other side is not connected: a port says so with an empty read, at once.
            continue
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            threading.Thread(target=_serve, args=(fd, lock, json.loads(line)), daemon=True).start()


def _serve(fd: int, lock: threading.Lock, request: dict[str, Any]) -> None:
    answer = json.dumps({"id": request["id"], **_execute(request)}).encode() + b"\n"
    with lock:
        while answer:
            answer = answer[os.write(fd, answer[:32768]) :]


def _execute(request: dict[str, Any]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            request["argv"],
            input=request.get("input", "").encode(),
            capture_output=True,
            timeout=request.get("timeout", 60),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"rc": -1, "out": "", "err": str(error)}
    return {
        "rc": done.returncode,
        "out": done.stdout.decode(errors="replace"),
        "err": done.stderr.decode(errors="replace"),
    }


if __name__ == "__main__":
    main()
