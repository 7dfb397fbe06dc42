"""Runs in the machine, with devherd's Python: how long after a device node is there does the plugin have it?

`hotplug.py NODE RESOURCE HEALTHY` prints seconds from the node's appearance until the plugin has HEALTHY healthy
devices of the resource. With a node that is there already and is awaited to go, put `gone:` before it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from devherd.control import ControlError, ask

READY = "/run/hotplug.ready"


def main(node: str, resource: str, healthy: int, patience: float = 300.0) -> int:
    """Returns the exit status."""
    there = not node.startswith("gone:")
    path = node.removeprefix("gone:")
    end = time.monotonic() + patience
    # Whoever plugs waits for this: what happened before nobody looked would look quick.
    Path(READY).touch()
    while os.path.exists(path) != there:
        if time.monotonic() > end:
            print(f"{path} did not change", file=sys.stderr)
            return 1
        time.sleep(0.002)
    began = time.monotonic()
    while (last := _healthy(resource)) != healthy:
        if time.monotonic() > end:
            print(f"{resource} has {last} healthy devices, not {healthy}", file=sys.stderr)
            return 1
        time.sleep(0.01)
    print(json.dumps({"seconds": time.monotonic() - began}))
    return 0


def _healthy(resource: str) -> int:
    try:
        resources = ask("/run/devherd/generic.control.sock", {"op": "status"})["resources"]
    except ControlError:
        return -1
    return next((int(one["healthy"]) for one in resources if one["name"] == resource), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
