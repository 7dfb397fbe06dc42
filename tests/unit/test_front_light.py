"""What a front and a probe leave out of memory: each megabyte is paid for by every plugin of a node."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import time

import pytest
from devherd.front.__main__ import main
from devherd.kubelet.threads import SLACK, start_threads
from devherd.patience import round_pause
from devherd.process import timer_slack
from devherd.sha1 import sha1_hex

FRONT = """
import sys
from devherd.front.__main__ import _without_tls
_without_tls()
import devherd.front.start
"""
PROBE = "import sys, devherd.probe.__main__, devherd.probe.start, devherd_generic.vendor\n"


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", code + "print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("code", [FRONT, PROBE])
def test_what_is_heavy_and_not_needed_stays_out(code: str) -> None:
    assert not loaded(code) & {
        "ssl",
        "_ssl",
        "_hashlib",
        "argparse",
        "difflib",
        "pathlib",
        "urllib.parse",
        "pickletools",
    }


def test_a_front_without_tls_hides_it_from_nobody_else() -> None:
    assert "ssl" in loaded(FRONT + "import ssl\nssl.create_default_context()\n")


def test_digests_are_those_of_sha_1() -> None:
    assert sha1_hex("0/dev/ttyUSB0") == hashlib.sha1(b"0/dev/ttyUSB0").hexdigest()
    with pytest.raises(UnicodeEncodeError):
        sha1_hex("\udcff")


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["--plugin", "x"], ["--plugin", "x", "--manifest", "m:M", "-v", "1"]]
)
def test_a_wrong_command_line_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: devherd.front --plugin NAME" in capsys.readouterr().err


def slack_of(thread: int | str) -> float:
    with open(f"/proc/{thread}/timerslack_ns", encoding="ascii") as file:
        return int(file.read()) / 1e9


def test_grpcs_threads_sleep_well_and_ours_is_punctual() -> None:
    # In a process of its own: gRPC starts its threads once.
    code = f"import sys; sys.path[:0] = {sys.path!r}\nimport test_front_light as t; t.in_a_process_of_its_own()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=os.path.dirname(__file__))


def in_a_process_of_its_own() -> None:
    async def started() -> list[str]:
        await start_threads()
        return [thread for thread in os.listdir("/proc/self/task") if thread != str(os.getpid())]

    ours = slack_of("self")
    threads = asyncio.run(started())
    assert threads
    assert {slack_of(thread) for thread in threads} == {SLACK}
    assert slack_of("self") == ours < SLACK


def test_slack_is_given_back() -> None:
    before = slack_of("self")
    with timer_slack(0.01):
        assert slack_of("self") == 0.01
    assert slack_of("self") == before


@pytest.mark.parametrize("seconds", [0.2, 5.0, 30.0])
def test_loops_of_one_period_wake_together_and_never_twice_for_one_moment(seconds: float) -> None:
    moments = set()
    for _ in range(3):
        pause = round_pause(seconds)
        assert seconds / 20 < pause <= seconds * 1.05
        moments.add(round((time.monotonic() + pause) % seconds, 2) % seconds)
        time.sleep(0.01)
    assert len(moments) == 1
    assert round_pause(0) == 0
