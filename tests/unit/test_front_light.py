"""What a front and a probe leave out of memory: each megabyte is paid for by every plugin of a node."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time

import pytest
from devherd.front.__main__ import main
from devherd.patience import round_pause
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
