"""Python imports this at its start if its folder is on PYTHONPATH: `time.time` is off by what $TEST_CLOCK's file says.

For the product's own code only: gRPC compares with the kernel's clock, which no test may move.
"""

import os
import sys
import time

_file, _time, _ns = os.environ.get("TEST_CLOCK", ""), time.time, time.time_ns


def _offset() -> float:
    if not str(sys._getframe(2).f_globals.get("__name__")).startswith(("devherd", "logging")):
        return 0.0
    try:
        with open(_file) as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0


time.time = lambda: _time() + _offset()
time.time_ns = lambda: _ns() + int(_offset() * 1e9)
