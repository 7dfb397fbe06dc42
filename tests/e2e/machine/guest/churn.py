"""Runs in the machine until it is cut off: device nodes come and go, so that plugins write their state all the time."""

from __future__ import annotations

import os
import random
import stat
import time


def main() -> None:
    """Never returns."""
    while True:
        path = f"/dev/made{random.randrange(8)}"
        if os.path.exists(path):
            os.unlink(path)
        else:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(240, int(path[-1])))
        time.sleep(0.05)


if __name__ == "__main__":
    main()
