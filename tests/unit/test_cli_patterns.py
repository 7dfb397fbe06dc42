"""A path that is not there is explained by the rule that waits for it, and waiting is no trouble."""

from __future__ import annotations

import pytest
from cli_stub import front, resource_of, status_of, stub
from devherd.cli.main import main
from devherd.cli.patterns import would_match
from devherd_generic import globs
from hypothesis import given
from hypothesis import strategies as st

WAITING = [
    {"what": "/dev/ttyUSB*", "rule": "devices[0] serial", "reason": "nothing matches now"},
    {"what": "video[0-9]+", "rule": "devices[1]", "reason": "nothing matches now: an expression"},
]


def test_explain_names_the_rule_that_would_take_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of("devherd.io/serial"), skipped=WAITING)))
        for path, rule in (("/dev/ttyUSB0", "devices[0] serial"), ("/dev/video3", "devices[1]")):
            assert main(["explain", path, "--config", str(made.config)]) == 0
            assert f"rule {rule} would take it" in capsys.readouterr().out
        assert main(["explain", "/dev/ttyACM0", "--config", str(made.config)]) == 1


def test_a_rule_that_waits_is_no_finding_of_status(capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"what": "/dev/data", "rule": "devices[2] data", "reason": "/dev/sda is a raw disk"}
    with stub() as made:
        made.serve("generic", front(status_of("generic", skipped=[*WAITING, refused])))
        main(["status", "--config", str(made.config)])
    out = capsys.readouterr().out
    assert "did not offer /dev/data" in out
    assert "ttyUSB" not in out


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/dev/ttyUSB*", "/dev/ttyUSB0", True),
        ("/dev/ttyUSB*", "/dev/ttyUSB0/x", False),
        ("/dev/*/a", "/dev/x/a", True),
        ("/dev/[^a]", "/dev/b", True),
        ("/dev/[^a]", "/dev//", False),
        (r"/dev/\*", "/dev/*", True),
        (r"/dev/\*", "/dev/x", False),
        ("video[0-9]+", "/dev/video10", True),
        ("video[0-9]+", "/srv/video1", False),
        ("(", "/dev/x", False),
    ],
)
def test_patterns_fit_as_the_rules_do(pattern: str, path: str, fits: bool) -> None:
    assert would_match(pattern, path) == fits


@given(st.text("ab*?[^]-", min_size=1, max_size=6), st.text("ab^-*", min_size=1, max_size=4))
def test_a_glob_means_what_it_means_to_the_scan(pattern: str, name: str) -> None:
    try:
        component = globs.parse(f"/{pattern}").components[0]
    except globs.GlobError:
        return
    assert would_match(f"/{pattern}", f"/{name}") == bool(component.names.fullmatch(name))
