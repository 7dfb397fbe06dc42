"""Who awaits a kubelet goes first, with all threads, and only for so long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from devherd.kubelet.urgency import Urgency


def policies() -> set[int]:
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


@pytest.fixture
def another_thread() -> threading.Event:
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    return done


def allowed() -> bool:
    code = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_every_thread_goes_first_while_a_kubelet_is_awaited(another_thread: threading.Event) -> None:
    before = policies()
    urgency = Urgency()
    urgency.begin()
    try:
        during = policies()
    finally:
        urgency.end()
        another_thread.set()
    assert during == ({os.SCHED_RR} if allowed() else before)
    assert policies() == {os.SCHED_OTHER}
