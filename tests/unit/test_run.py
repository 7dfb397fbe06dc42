"""The pieces of a private instance: its place, its rendered files, and what is left of it."""

from __future__ import annotations

import configparser
import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from devherd.config import load_settings
from devherd.run import leftovers
from devherd.run.instance import example_configs, sweep
from devherd.run.layout import LONGEST_FOLDER, InUse, Layout, claim_folder, instances_folder
from devherd.run.render import INTERPRETER, MissingFiles, programs, render, shipped, write_settings
from devherd.sim.nodespec import load as load_node
from devherd.sim.nodespec import names


@pytest.fixture
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    yield path
    shutil.rmtree(path)


def test_a_users_instances_have_a_known_place(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    assert instances_folder() == f"{folder}/devherd-{os.getuid()}"
    assert Layout.named("default").config == f"{folder}/devherd-{os.getuid()}/default/etc/devherd.yaml"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", folder)
    assert instances_folder() == f"{folder}/devherd-{os.getuid()}"
    monkeypatch.delenv("TMPDIR")
    assert instances_folder() == f"/tmp/devherd-{os.getuid()}"
    for name in ("", "a/b", "..", "a b"):
        with pytest.raises(ValueError, match="no instance name"):
            Layout.named(name)


def test_the_place_of_instances_does_not_depend_on_room_for_files(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", f"{folder}/none")
    assert instances_folder() == f"{folder}/none/devherd-{os.getuid()}"


def test_a_name_too_long_for_sockets_is_no_instance_name(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with pytest.raises(ValueError, match="too long for the sockets"):
        Layout.named("x" * 200)
    most = 200 - (len(f"{folder}/devherd-{os.getuid()}/") + 200 - LONGEST_FOLDER)
    assert Layout.named("x" * most).name == "x" * most


def test_what_a_killed_runner_left_is_swept_and_what_is_kept_or_lives_stays(folder: str) -> None:
    for name in ("dead", "alive", "kept"):
        os.makedirs(f"{folder}/{name}/run")
    for name in ("dead", "alive"):
        Path(f"{folder}/{name}.lock").write_text("1\n")
    with open(f"{folder}/alive.lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sweep(folder) == ["dead"]
    assert sorted(os.listdir(folder)) == ["alive", "alive.lock", "kept"]


def test_programs_of_a_configuration_are_rendered_beside_ours(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    layout = Layout.named("x")
    layout.make()
    own = Path(folder, "supervisord.d")
    own.mkdir()
    command = f"{INTERPRETER} -I -m devherd.front --plugin blinker --config /etc/devherd/devherd.yaml"
    (own / "blinker.conf").write_text(f"[program:blinker]\ncommand = {command}\n")
    render(layout, ["generic"], str(own))
    assert sorted(os.listdir(layout.at("etc", "supervisord.d"))) == ["blinker.conf", "generic.conf"]
    words = shlex.split(read(Path(layout.at("etc", "supervisord.d", "blinker.conf")))["program:blinker"]["command"])
    assert (words[0], words[-1]) == (sys.executable, layout.config)


def test_a_folder_that_others_could_have_prepared_is_refused(folder: str) -> None:
    claim_folder(f"{folder}/mine")
    claim_folder(f"{folder}/mine")
    assert os.stat(f"{folder}/mine").st_mode & 0o777 == 0o700
    os.mkdir(f"{folder}/open")
    os.chmod(f"{folder}/open", 0o777)
    os.symlink(f"{folder}/mine", f"{folder}/link")
    Path(f"{folder}/file").touch()
    for name in ("open", "link", "file"):
        with pytest.raises(InUse, match="not a folder of yours alone"):
            claim_folder(f"{folder}/{name}")


def test_every_program_is_supervised_by_the_same_rules() -> None:
    """What supervision_packaging found out about supervisord, kept for every program that comes."""
    main = read(shipped() / "supervisord.conf")
    assert not [section for section in main.sections() if section.startswith("group:")]
    assert main["unix_http_server"]["chmod"] == "0700"
    assert "inet_http_server" not in main.sections()
    for name in programs():
        parser = read(shipped() / "conf.d" / f"{name}.conf")
        (section,) = parser.sections()
        options = parser[section]
        assert section.split(":")[1] == name
        words = shlex.split(options["command"])
        assert words[words.index("-m") + 1] == "devherd.launcher"
        assert words[words.index("--name") + 1] == name
        assert words[words.index("--lock") + 1] == f"/run/devherd/{name}.lock"
        assert options["stopasgroup"] == options["killasgroup"] == "true"
        assert options["stopsignal"] == "TERM"
        assert int(options["startretries"]) >= 1000
        if section.startswith("program:"):
            assert (options["autorestart"], options["exitcodes"]) == ("unexpected", "69")
            assert int(options["startsecs"]) == 10
            assert options["environment"] == 'NOTIFY_SOCKET=""'
            assert options["redirect_stderr"] == "true"
        else:
            assert options["redirect_stderr"] == "false"
            assert options["stdout_logfile"] == "NONE"


def read(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=(";",))
    assert parser.read(path)
    return parser


def test_an_instance_is_rendered_from_the_shipped_files_with_no_path_of_the_node_left(folder: str) -> None:
    layout = Layout(f"{folder}/in")
    layout.make()
    render(layout)
    rendered = [
        Path(layout.supervisor_config),
        *sorted(Path(layout.etc, "supervisord.d").iterdir(), key=lambda path: path.stem),
    ]
    assert [path.stem for path in rendered[1:]] == programs()
    for path in rendered:
        text = path.read_text().replace(layout.folder, "")
        for production in ("/usr/lib/devherd", "/etc/devherd/", "/run/devherd/", "/var/", "--oom", "--nice"):
            assert production not in text, path
    generic = read(rendered[1 + programs().index("generic")])["program:generic"]
    shipped_generic = read(shipped() / "conf.d" / "generic.conf")["program:generic"]
    assert shlex.split(generic["command"])[0] == sys.executable
    same = set(shipped_generic) - {"command", "stdout_logfile"}
    assert {key: generic[key] for key in same} == {key: shipped_generic[key] for key in same}


def test_an_instance_below_run_keeps_its_own_path(folder: str) -> None:
    layout = Layout(f"{folder}/run/devherd-0/in")
    os.makedirs(os.path.dirname(layout.folder))
    layout.make()
    render(layout, ["watcher"])
    assert read(Path(layout.supervisor_config))["unix_http_server"]["file"] == layout.supervisor_socket


def test_blanks_and_percent_signs_in_paths_survive_supervisords_expansion(folder: str) -> None:
    layout = Layout(f"{folder}/100%s of it")
    layout.make()
    render(layout)
    command = read(Path(layout.etc, "supervisord.d", "generic.conf"))["program:generic"]["command"]
    words = shlex.split(command % {})
    assert words[words.index("--lock") + 1] == f"{folder}/100%s of it/run/generic.lock"
    assert words[words.index("--config") + 1] == f"{folder}/100%s of it/etc/devherd.yaml"


def test_only_the_programs_asked_for_are_rendered(folder: str) -> None:
    layout = Layout(f"{folder}/in")
    layout.make()
    render(layout, ["watcher"])
    assert os.listdir(f"{layout.etc}/supervisord.d") == ["watcher.conf"]
    with pytest.raises(MissingFiles, match=r"generic, .*watcher"):
        render(layout, ["toaster"])


def test_written_settings_are_read_back_as_meant(folder: str) -> None:
    layout = Layout(f"{folder}/in")
    layout.make()
    write_settings(
        layout, {"paths": {"run": "/tmp/ü: #x", "dev": "/on"}, "probe": {"scan_interval": 1.5}, "vendors": ["a"]}
    )
    loaded = load_settings(layout.config)
    assert loaded.problems == ()
    assert loaded.value is not None
    assert (loaded.value.paths.run, loaded.value.paths.dev) == ("/tmp/ü: #x", "/on")
    assert loaded.value.probe.scan_interval == 1.5
    assert loaded.value.vendors == ("a",)


def test_every_node_that_ships_has_a_configuration_to_go_with_it() -> None:
    for node in names():
        spec = load_node(node)
        # Hardware that a plugin of its own serves needs none.
        assert spec.hardware or "generic" in example_configs(node), node
        assert not spec.devices or "generic" in example_configs(node), node


def marked_sleeper(mark: str, *command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, leftovers.MARK: mark}
    process = subprocess.Popen(
        command or (sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_leftovers_are_found_by_their_mark_and_ended(folder: str) -> None:
    one = marked_sleeper(folder)
    deaf = marked_sleeper(folder, "sh", "-c", 'trap "" TERM; echo up; sleep 600 & wait; sleep 600')
    other = marked_sleeper(folder + "-other")
    spared = marked_sleeper(folder)
    try:
        left = leftovers.find(folder)
        pids = {pid for pid, _ in left.processes}
        assert {one.pid, deaf.pid, spared.pid} < pids
        assert other.pid not in pids
        assert any("time.sleep" in command for _, command in left.processes)
        assert leftovers.end(folder, spare=(spared.pid,), grace=0.3) == []
        assert one.wait(5) == -signal.SIGTERM
        assert deaf.wait(5) == -signal.SIGKILL
        assert leftovers.marked(folder) == [spared.pid]
        assert other.poll() is None
    finally:
        for process in (one, deaf, other, spared):
            process.kill()
            process.communicate()


def test_leftover_sockets_are_found_bound_or_as_files(folder: str) -> None:
    assert len(leftovers.find(folder)) == 0
    os.mkdir(f"{folder}/run")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{folder}/run/a.sock")
        os.rename(f"{folder}/run/a.sock", f"{folder}/run/b.sock")
        assert leftovers.find(folder).sockets == (f"{folder}/run/a.sock", f"{folder}/run/b.sock")
        os.unlink(f"{folder}/run/b.sock")
        assert leftovers.find(folder).sockets == (f"{folder}/run/a.sock",)
    assert len(leftovers.find(folder)) == 0


def test_a_simulated_node_runs_no_program_whose_hardware_it_lacks(folder: str) -> None:
    layout = Layout(f"{folder}/in")
    layout.make()
    function = Path(layout.node, "sys/bus/pci/devices/0000:01:00.0")
    function.mkdir(parents=True)
    render(layout)
    there = {path.stem for path in Path(layout.etc, "supervisord.d").iterdir()}
    assert "generic" in there
    assert "gpu-amd" not in there
    (function / "vendor").write_text("0x1002\n")
    (function / "class").write_text("0x120000\n")
    render(layout)
    assert Path(layout.etc, "supervisord.d", "gpu-amd.conf").exists()
