"""What people type: half a name, a name that cannot be, options that do not go together, and a closed terminal."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_stub import Stub, device_of, front, resource_of, status_of, stub
from devherd.cli import output
from devherd.cli.exits import Fault
from devherd.cli.main import main
from devherd.cli.names import check_pod_name, full_name, nearest
from devherd.cli.pulse import frozen
from devherd.cli.simset import parse

Json = dict[str, Any]
FUSE = "devherd.io/fuse"
COMMAND = [sys.executable, "-m", "devherd.cli.main"]


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder in which there could be private instances."""
    folder = Path(tempfile.mkdtemp(prefix="dh", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def run(capsys: pytest.CaptureFixture[str], stubbed: Stub, *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments, "--config", str(stubbed.config)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--simulate", "--name", "../x"],
        ["run", "--simulate", "--name", "x" * 200],
        ["run", "--simulate", "--name", ""],
        ["simulate", "--name", "x"],
        ["simulate", "--name", "x", "pods"],
        ["run", "--simulate", "--once", "--keep"],
        ["run", "--simulate", "--instance", "foo"],
        ["run", "--simulate", "--config", "/etc/x.yaml"],
        ["run", "--simulate", "gpu", "--from", "x.tar.gz"],
        ["status", "--config", ""],
        ["status", "--instance", ""],
        ["status", "--instance", "../x"],
        ["wait", "--timeout", "nan"],
        ["wait", "--timeout", "inf"],
        ["simulate", "set", "foo=1"],
        ["simulate", "set", "admit_gap_ms=soon"],
        ["simulate", "pod", "add", "No_Pod"],
    ],
)
def test_what_cannot_be_meant_is_wrong_usage_and_nothing_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "mistake in devherd" not in printed.err
    assert not list(tmp_path.iterdir())


def test_an_empty_environment_variable_is_no_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DEVHERD_CONFIG", "")
    assert main(["config", "check"]) in (0, 1)
    assert "is empty" not in capsys.readouterr().err


def test_a_place_where_no_instance_can_be_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    assert main(["run", "--simulate"]) == 1
    err = capsys.readouterr().err
    assert "/proc/devherd-" in err
    assert "XDG_RUNTIME_DIR" in err
    assert "mistake in devherd" not in err


def test_resources_may_be_named_without_their_domain(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), [device_of(FUSE, "a")]))
        assert run(capsys, made, "devices", "fuse")[0] == 0
        assert run(capsys, made, "wait", "fuse=2", "--timeout", "0")[0] == 0
        code, _, err = run(capsys, made, "devices", "fuze")
        assert code == 1
        assert f"Did you mean {FUSE}?" in err
        code, _, err = run(capsys, made, "wait", "fuze", "--timeout", "0")
        assert code == 5
        assert f"Did you mean {FUSE}" in err
    assert full_name("x", ["a.io/x", "b.io/x"]) == ""
    assert nearest("devherd.io/x", [FUSE]) == ""


def test_that_no_device_is_unhealthy_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), [device_of(FUSE, "a")]))
        assert "all healthy: 1 device" in run(capsys, made, "devices", "--unhealthy")[1]


def test_without_a_kubelet_there_is_one_problem_that_names_what_waits(capsys: pytest.CaptureFixture[str]) -> None:
    away = {"state": "away", "pid": None, "socket": "/kubelet/kubelet.sock"}
    names = [f"devherd.io/r{number}" for number in range(6)]
    reply = status_of("generic", *(resource_of(name, state="waiting") for name in names), kubelet=away)
    with stub() as made:
        made.serve("generic", front(reply))
        _, out, _ = run(capsys, made, "status")
    assert "1 problem" in out
    assert "kubelet is away, nobody listens on /kubelet/kubelet.sock; 6 resources not registered" in out


def test_a_hint_names_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = [{"what": "/dev/mem", "rule": "mem", "reason": "dangerous"}]
    with stub() as made:
        made.serve("generic", front(status_of("generic", skipped=skipped)))
        assert "devherd explain /dev/mem" in run(capsys, made, "status")[1]


def test_a_frozen_kubelet_is_a_problem_and_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with stub() as made, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        path = str(made.folder / "kubelet" / "kubelet.sock")
        listening.bind(path)
        listening.listen()
        kubelet = {"state": "up", "pid": 99, "start_time": 7, "socket": path}
        made.serve("generic", front(status_of("generic", resource_of(FUSE), kubelet=kubelet), [device_of(FUSE, "a")]))
        _, out, _ = run(capsys, made, "status")
        assert "accepts and answers nothing" in out
        assert run(capsys, made, "wait", "--timeout", "0")[0] == 5
        assert run(capsys, made, "verify")[0] == 3


def test_a_kubelet_that_speaks_or_is_gone_is_not_frozen(tmp_path: Path) -> None:
    assert not frozen(str(tmp_path / "none"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()

        def speak() -> None:
            with listening.accept()[0] as peer:
                peer.sendall(b"\0\0\0\4\0\0\0\0\0")
                peer.recv(100)

        thread = threading.Thread(target=speak)
        thread.start()
        assert not frozen(str(tmp_path / "s"))
        thread.join(10)


def test_wait_waits_for_an_instance_that_is_not_there_yet(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    began = time.monotonic()
    assert main(["wait", "--instance", "late", "--timeout", "0.5"]) == 5
    assert time.monotonic() - began >= 0.5
    assert "no instance 'late'" in capsys.readouterr().err


def test_a_dead_private_instance_is_no_matter_for_systemctl(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    folder = base / f"devherd-{os.getuid()}" / "kk"
    (folder / "etc").mkdir(parents=True)
    (folder / "run").mkdir()
    (folder / "run" / "run.control.sock").touch()
    (folder / "etc" / "devherd.yaml").write_text(f"paths:\n  run: {folder}/run\n")
    assert main(["status", "--instance", "kk"]) == 3
    err = capsys.readouterr().err
    assert "has ended" in err
    assert "--name kk" in err
    assert "systemctl" not in err


def test_simulator_options_are_explained_in_words() -> None:
    assert parse(["admit_gap_ms=5", "disk_full=true"]) == {"admit_gap_ms": 5, "disk_full": True}
    with pytest.raises(Fault, match="admit_gap_ms: '-1' is not a number from 0"):
        parse(["admit_gap_ms=-1"])
    with pytest.raises(Fault, match="no option 'admit_gap'") as wrong:
        parse(["admit_gap=1"])
    assert "Did you mean admit_gap_ms?" in wrong.value.hint
    with pytest.raises(Fault, match="one of none, best-effort"):
        parse(["topology_policy=odd"])


def test_pod_names_are_those_of_the_api_server() -> None:
    check_pod_name("my-pod.1", "default")
    for name in ("", "A", "-a", "a_b", "a" * 64, "a..b", "x/y"):
        with pytest.raises(Fault, match="no pod name"):
            check_pod_name(name, "default")
    with pytest.raises(Fault, match="no namespace"):
        check_pod_name("a", "a.b")


def test_help_shows_whole_descriptions_and_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    out = capsys.readouterr().out
    assert "..." not in out.partition("Commands:")[2]
    assert "130" in out
    assert main(["help", "wait"]) == 0
    assert "only has to be registered" in " ".join(capsys.readouterr().out.split())


def test_hints_name_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "program", lambda: ".venv/bin/devherd")
    assert output.told("See it: devherd devices") == "See it: .venv/bin/devherd devices"
    assert output.told("`devherd run --simulate`") == "`.venv/bin/devherd run --simulate`"
    for text in ("systemctl start devherd", "devherd runs on this node already", "/usr/bin/devherd status"):
        assert output.told(text) == text


def test_a_closed_stdout_is_an_error_without_a_traceback() -> None:
    shell = ["sh", "-c", 'exec "$0" "$@" >&-', *COMMAND, "config", "schema", "--json"]
    closed = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert closed.returncode == 1
    assert closed.stderr.startswith("error: stdout is closed")
    assert "Traceback" not in closed.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_a_reader_that_leaves_early_does_not_change_the_exit_code(as_json: bool) -> None:
    rows = [device_of(FUSE, f"{number:040x}") for number in range(3000)]
    with stub() as made:
        made.serve("generic", front(status_of("generic", resource_of(FUSE)), rows))
        read, write = os.pipe()
        command = [*COMMAND, "devices", "--config", str(made.config), *(["--json"] if as_json else [])]
        with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True) as process:
            os.close(write)
            os.close(read)
            assert process.stderr is not None
            assert process.stderr.read() == ""
            assert process.wait(60) == 0


def test_an_error_as_json_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--once", "--keep", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == 2
