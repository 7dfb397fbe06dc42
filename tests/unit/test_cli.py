from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cli_stub import Stub, device_of, front, resource_of, status_of, stub
from devherd.cli.main import main

Json = dict[str, Any]
FUSE = "devherd.io/fuse"


def run(capsys: pytest.CaptureFixture[str], stubbed: Stub, *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments, "--config", str(stubbed.config)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def run_json(capsys: pytest.CaptureFixture[str], stubbed: Stub, *arguments: str) -> tuple[int, Json]:
    code, out, _ = run(capsys, stubbed, *arguments, "--json")
    document = json.loads(out)
    assert isinstance(document, dict)
    return code, document


def test_status_shows_each_plugin_and_resource_and_says_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE))))
        code, out, err = run(capsys, made, "status")
    assert code == 0
    assert err == ""
    row = next(line for line in out.splitlines() if line.startswith(FUSE))
    assert row.split()[1:5] == ["registered", "2", "2", "1"]
    assert "3.2 ms" in row
    assert "pid 99" in out
    assert "Everything is registered and healthy." in out


def test_a_dead_plugin_is_named_and_the_others_are_still_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE))))
        (made.run / "gpu.control.sock").touch()
        code, out, _ = run(capsys, made, "status")
        json_code, document = run_json(capsys, made, "status")
    assert code == json_code == 0
    assert FUSE in out
    assert "gpu" in out
    assert "down" in out
    assert not document["ready"]
    assert [item["plugin"] for item in document["down"]] == ["gpu"]
    assert [item["plugin"] for item in document["plugins"]] == ["generic"]


def test_a_plugin_that_does_not_answer_in_time_does_not_hold_up_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()
    with stub() as made, stub() as slow:
        made.serve("generic", front(status_of("generic", resource_of(FUSE))))
        slow.serve("slow", lambda _: {"ok": release.wait(30)})
        (made.run / "slow.control.sock").symlink_to(slow.run / "slow.control.sock")
        began = time.monotonic()
        code, document = run_json(capsys, made, "status")
        release.set()
    assert time.monotonic() - began < 4
    assert code == 0
    assert "no answer within" in document["down"][0]["why"]


def test_nothing_running_is_said_with_what_to_do_and_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        code, out, err = run(capsys, made, "status")
        json_code, document = run_json(capsys, made, "status")
    assert code == json_code == 3
    assert out == ""
    assert str(made.run) in err
    assert "devherd run --simulate" in err
    assert document["error"]["code"] == 3


def test_status_names_every_problem_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    sick = status_of(
        "generic",
        resource_of(FUSE, state="taken", error="served by pid 77 on /x.sock"),
        resource_of("devherd.io/tun", healthy=1, left_out=3),
        node_problems=["8 of 8 links are down"],
        skipped=[{"what": "/dev/mem", "rule": "mem", "reason": "dangerous"}],
    )
    sick["probe"] |= {"state": "hung", "doing": "scan", "doing_seconds": 75.0, "abandoned": [5, 6]}
    sick["config"]["problems"] = [
        {
            "file": "/e/generic.yaml",
            "line": 3,
            "column": 5,
            "key": "devices",
            "message": "unknown key",
            "hint": "devices?",
        }
    ]
    with stub() as made:
        made.serve("generic", front(sick))
        _, out, _ = run(capsys, made, "status")
    for text in (
        "served by pid 77",
        "1 device unhealthy",
        "3 devices left out",
        "8 of 8 links",
        "hangs in scan since 75 s",
    ):
        assert text in out
    assert "/e/generic.yaml:3: unknown key" in out
    assert "devherd devices devherd.io/tun" in out
    assert "/dev/mem" in out
    assert "6 problems" in out


def test_devices_shows_reason_holder_and_what_a_container_gets(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        device_of(FUSE, "a" * 40, held_by="default/train/main"),
        device_of(FUSE, "b" * 40, healthy=False, reason="device node is gone", since=time.time() - 300),
    ]
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), rows))
        code, out, _ = run(capsys, made, "devices")
        _, wide, _ = run(capsys, made, "devices", "--wide")
        _, sick, _ = run(capsys, made, "devices", "--unhealthy")
        _, document = run_json(capsys, made, "devices", FUSE)
    assert code == 0
    assert "default/train/main" in out
    assert "device node is gone (for 5 min)" in out
    assert "a" * 40 not in out
    assert "a" * 40 in wide
    assert "c 10:229" in wide
    assert "train" not in sick
    assert [item["id"] for item in document["devices"]] == ["a" * 40, "b" * 40]


def test_an_unknown_resource_is_an_error_that_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), [device_of(FUSE, "a")]))
        code, _, err = run(capsys, made, "devices", "devherd.io/fuze")
    assert code == 1
    assert FUSE in err


def test_ten_thousand_devices_are_listed_within_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [device_of(FUSE, f"{number:040x}") for number in range(10_000)]
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), rows))
        began = time.monotonic()
        _, out, _ = run(capsys, made, "devices")
    assert time.monotonic() - began < 3
    assert len(out.splitlines()) >= 10_001


def test_explain_prints_what_the_plugins_know_and_fails_for_the_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    found = [{"plugin": "generic", "resource": FUSE, "id": "abc", "text": "/dev/fuse is in it by rule fuse: healthy"}]
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), found=found))
        made.serve("gpu", front(status_of("gpu")))
        code, out, _ = run(capsys, made, "explain", "/dev/fuse")
        json_code, document = run_json(capsys, made, "explain", "/dev/fuse")
    assert code == json_code == 0
    assert "by rule fuse: healthy" in out
    assert document["found"] == found
    with stub() as made:
        made.serve("gpu", front(status_of("gpu")))
        code, out, _ = run(capsys, made, "explain", "/dev/none")
    assert code == 1
    assert "No plugin has seen /dev/none" in out
    assert "gpu" in out


@pytest.mark.parametrize(
    ("change", "code"),
    [({}, 0), ({"state": "waiting"}, 3), ({"healthy": 1}, 3), ({"draining": True, "state": "waiting"}, 0)],
)
def test_verify_exits_3_unless_all_is_registered_and_healthy(
    capsys: pytest.CaptureFixture[str], change: Json, code: int
) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE, **change)), [device_of(FUSE, "a")]))
        got, document = run_json(capsys, made, "verify")
    assert got == code
    assert document["ok"] == (code == 0)
    assert document["compared"] is False
    assert document["resources"][0]["kubelet"] is None


def test_wait_returns_when_the_last_resource_is_registered(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()

    def answer(request: Json) -> Json:
        state = "registered" if time.monotonic() - began > 0.4 else "waiting"
        return status_of("generic", resource_of(FUSE, state=state))

    with stub() as made:
        made.serve("generic", answer)
        code, document = run_json(capsys, made, "wait", "--timeout", "20")
    assert code == 0
    assert document["ready"]
    assert 0.3 < time.monotonic() - began < 5


def test_wait_gives_up_with_5_and_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE, state="refused", error="bad name"))))
        code, out, err = run(capsys, made, "wait", "--timeout", "0.3")
        more, document = run_json(capsys, made, "wait", f"{FUSE}=3", "devherd.io/x", "--timeout", "0")
    assert (code, more) == (5, 5)
    assert out == ""
    assert "refused (bad name)" in err
    assert document["missing"] == [f"{FUSE}: refused (bad name)", "devherd.io/x: no plugin offers it"]


def test_wait_counts_healthy_devices(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE))))
        assert run_json(capsys, made, "wait", f"{FUSE}=2", "--timeout", "0")[0] == 0
        assert run_json(capsys, made, "wait", f"{FUSE}=3", "--timeout", "0")[1]["missing"] == [
            f"{FUSE}: 2 of 3 healthy"
        ]
        assert run(capsys, made, "wait", "x=y")[0] == 2


def test_config_check_names_file_line_and_nearest_key(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.config.write_text(made.config.read_text() + "kubelet:\n  pol: 3\n")
        code, out, _ = run(capsys, made, "config", "check")
        json_code, document = run_json(capsys, made, "config", "check")
    assert code == json_code == 1
    assert f"{made.config}:7:" in out
    assert "  pol: 3" in out
    assert "poll" in out
    assert document["problems"][0]["line"] == 7


def test_config_check_finds_a_file_for_no_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        (made.etc / "plugins.d" / "genric.yaml").write_text("{}\n")
        code, out, _ = run(capsys, made, "config", "check")
    assert code == 1
    assert "did you mean generic.yaml" in out


def test_config_check_is_content_with_good_files(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        (made.etc / "plugins.d" / "generic.yaml").write_text("{}\n")
        code, document = run_json(capsys, made, "config", "check")
    assert (code, document["problems"]) == (0, [])
    assert len(document["files"]) == 2


def test_config_schema_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert "paths" in capsys.readouterr().out
    assert main(["config", "schema", "generic"]) == 0
    assert "devices" in capsys.readouterr().out
    assert main(["config", "schema", "nothing"]) == 2


def test_a_missing_configuration_is_an_error_for_people_and_for_programs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["status", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "no such file" in capsys.readouterr().err
    assert main(["status", "--json", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "no such file" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("arguments", [["nonsense"], ["status", "--nonsense"], ["explain"], ["wait", "--timeout", "x"]])
def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().out == ""


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("run", "status", "devices", "explain", "verify", "wait", "config", "simulate"):
        assert f"\n  {command} " in out
