"""Every check of the doctor on a node that has just that fault, and on one that has not."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_stub import Stub, device_of, front, resource_of, status_of, stub
from devherd.cli import doctor_host, doctor_kubelet, doctor_service
from devherd.cli.asking import Answers
from devherd.cli.doctor import CHECKS
from devherd.cli.doctor_site import LEFT_OUT, NOTE, OK_, PROBLEM, Check, Examine, Site, examine
from devherd.cli.main import main
from devherd.cli.place import Place
from devherd.inotify import INotify
from devherd.settings import Paths, Settings

Json = dict[str, Any]


@pytest.fixture
def made() -> Iterator[Stub]:
    with stub() as stubbed:
        yield stubbed


def site_of(made: Stub, *statuses: Json, devices: list[Json] | None = None, **paths: str) -> Site:
    """A site whose node is in the stub's folder; `paths` move something elsewhere."""
    root = made.folder / "root"
    for name in ("dev", "sys", "proc", "etc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    defaults = {name: str(root / name) for name in ("dev", "sys", "proc")} | {"root": str(root)}
    defaults |= {"etc": str(made.etc), "run": str(made.run), "device_plugins": str(made.folder / "kubelet")}
    defaults |= {"pod_resources": str(made.folder / "kubelet" / "pods.sock"), "cdi": str(root / "cdi")}
    defaults |= {name: str(made.folder / name) for name in ("state", "log", "cache")}
    place = Place(Settings(paths=msgspec.convert(defaults | paths, Paths)), str(made.config), made.folder)
    replies = ({"plugin": "generic", "devices": devices or []},)
    return Site(place, Answers(statuses, ()), Answers(replies, ()))


def only(check: Examine, site: Site) -> Check:
    """The one verdict of a check."""
    found = examine(site, [("it", check)])
    assert len(found) == 1, found
    return found[0]


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(5)
        yield server


# devherd itself


def test_configuration_mistakes_are_named_with_line_and_stray_files_noted(made: Stub) -> None:
    (made.etc / "plugins.d" / "generic.yaml").write_text("devices:\n  - nam: x\n")
    (made.etc / "plugins.d" / "generik.yaml").write_text("{}")
    found = list(doctor_service.configuration(site_of(made)))
    wrong = next(item for item in found if item.verdict == PROBLEM)
    assert "generic.yaml:2:" in wrong.text
    assert any(item.verdict == NOTE and "generik.yaml" in item.text for item in found)


def test_a_vendor_that_is_listed_and_not_installed_is_a_problem(made: Stub) -> None:
    made.config.write_text(made.config.read_text() + "vendors: [foo]\n")
    site = site_of(made)
    place = Place(msgspec.structs.replace(site.place.settings, vendors=("foo",)), site.place.config, made.folder)
    found = list(doctor_service.configuration(Site(place, site.statuses, site.devices)))
    assert [check.verdict for check in found] == [PROBLEM]
    assert "no vendor foo is installed" in found[0].text


def test_good_configuration_is_fine(made: Stub) -> None:
    assert only(doctor_service.configuration, site_of(made)).verdict == OK_


def test_supervisord_that_is_away_is_said(made: Stub) -> None:
    assert "does not run" in only(doctor_service.programs, site_of(made)).text


def test_what_plugins_say_is_told_with_their_hints(made: Stub) -> None:
    sick = status_of("generic", resource_of("a/b", healthy=1))
    found = only(doctor_service.plugins, site_of(made, sick))
    assert (found.verdict, "1 device unhealthy" in found.text) == (PROBLEM, True)
    assert "devherd devices" in found.remedy
    assert only(doctor_service.plugins, site_of(made, status_of("generic", resource_of("a/b")))).verdict == OK_
    assert "no plugin answers" in only(doctor_service.plugins, site_of(made)).text


def test_two_fronts_of_one_plugin_are_found(made: Stub) -> None:
    argv = [sys.executable, "-c", "input()", "devherd.front", "--plugin", "generic", "--config", str(made.config)]
    with contextlib.ExitStack() as stack:
        for count in (1, 2):
            process = stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE))
            stack.callback(process.communicate)
            until_exec(process.pid)
            found = only(doctor_service.duplicates, site_of(made))
            assert found.verdict == (OK_ if count == 1 else PROBLEM)
        assert f"pid {process.pid}" in found.text


def until_exec(pid: int) -> None:
    deadline = time.monotonic() + 10
    while b"devherd.front" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_watcher_that_sees_another_kubelet_is_noted(made: Stub) -> None:
    site = site_of(made, status_of("generic"))
    assert only(doctor_service.watcher, site).verdict == LEFT_OUT
    made.serve("watcher", lambda _: {"kubelet": {"pid": 77}})
    assert (only(doctor_service.watcher, site).verdict, only(doctor_service.watcher, site).text[:18]) == (
        NOTE,
        "sees kubelet pid 7",
    )


def test_state_that_was_damaged_is_noted(made: Stub) -> None:
    (made.folder / "state").mkdir()
    assert only(doctor_service.kept, site_of(made)).verdict == OK_
    (made.folder / "state" / "generic.ledger.json.bad").touch()
    assert "generic.ledger.json.bad" in next(iter(doctor_service.kept(site_of(made)))).text


# the kubelet's side


def test_the_kubelets_folder(made: Stub) -> None:
    folder = made.folder / "kubelet"
    assert only(doctor_kubelet.folder, site_of(made)).verdict == OK_
    folder.chmod(0o777)
    assert "can be written by others" in only(doctor_kubelet.folder, site_of(made)).text
    missing = only(doctor_kubelet.folder, site_of(made, device_plugins=str(folder / "x")))
    assert (missing.verdict, "is missing" in missing.text) == (PROBLEM, True)
    (folder / "file").touch()
    assert "is no folder" in only(doctor_kubelet.folder, site_of(made, device_plugins=str(folder / "file"))).text


def test_the_kubelets_socket(made: Stub) -> None:
    path = made.folder / "kubelet" / "kubelet.sock"
    assert "no kubelet has started here" in only(doctor_kubelet.socket, site_of(made)).text
    path.mkdir()
    found = only(doctor_kubelet.socket, site_of(made))
    assert (f"{path} is a folder" in found.text, f"rmdir {path}" in found.remedy) == (True, True)
    path.rmdir()
    with listening(path):
        found = only(doctor_kubelet.socket, site_of(made))
        assert (found.verdict, f"pid {os.getpid()}" in found.text) == (OK_, True)
        other = list(doctor_kubelet.socket(site_of(made, status_of("generic"))))
        assert any(item.verdict == NOTE and "still holds to kubelet pid 99" in item.text for item in other)
    assert "is stale" in only(doctor_kubelet.socket, site_of(made)).text


def test_a_frozen_kubelet_is_recognised(made: Stub) -> None:
    path = made.folder / "kubelet" / "kubelet.sock"
    code = """
import os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen(9)
print("up", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    argv = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert "frozen" in only(doctor_kubelet.socket, site_of(made)).text
        process.kill()


def test_a_listener_that_accepts_nothing_is_recognised(made: Stub) -> None:
    path = made.folder / "kubelet" / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as stack:
        server.bind(str(path))
        server.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        assert "nobody accepts" in only(doctor_kubelet.socket, site_of(made)).text


def test_our_own_sockets(made: Stub) -> None:
    folder = made.folder / "kubelet" / "devherd"
    folder.mkdir()
    status = status_of("generic", resource_of("a/b", socket="devherd/b.sock"), pid=os.getpid())
    assert "No such file" in only(doctor_kubelet.own_sockets, site_of(made, status)).text
    with listening(folder / "b.sock"):
        (folder / "b.sock").chmod(0o600)
        assert only(doctor_kubelet.own_sockets, site_of(made, status)).verdict == OK_
        foreign = only(doctor_kubelet.own_sockets, site_of(made, status | {"pid": 1}))
        assert (foreign.verdict, "no plugin of ours" in foreign.text) == (PROBLEM, True)
        (folder / "b.sock").chmod(0o666)
        assert any("by others" in item.text for item in doctor_kubelet.own_sockets(site_of(made, status)))


def test_other_servers_are_named_with_socket_and_pid(made: Stub) -> None:
    assert only(doctor_kubelet.others, site_of(made)).verdict == OK_
    (made.folder / "kubelet" / "nvidia").mkdir()
    path = made.folder / "kubelet" / "nvidia" / "gpu.sock"
    with listening(path):
        found = only(doctor_kubelet.others, site_of(made))
        assert found.verdict == NOTE
        assert f"{path} (pid {os.getpid()}" in found.text
        taken = status_of("generic", resource_of("a/b", state="taken", error="pid 7"))
        verdicts = [item.verdict for item in doctor_kubelet.others(site_of(made, taken))]
        assert verdicts == [PROBLEM, NOTE]
    assert only(doctor_kubelet.others, site_of(made)).verdict == OK_


def test_a_kubelet_that_cannot_be_asked_is_a_note(made: Stub) -> None:
    assert only(doctor_kubelet.pod_resources, site_of(made)).verdict == NOTE


# the host


def test_selinux_labels_are_compared_with_the_folders(made: Stub) -> None:
    assert only(doctor_host.selinux, site_of(made)).text == "is not active"
    site = site_of(made)
    enforce = Path(site.paths.sys) / "fs/selinux/enforce"
    enforce.parent.mkdir(parents=True)
    enforce.write_text("1")
    ours = made.folder / "kubelet" / "devherd"
    ours.mkdir()
    try:
        os.setxattr(made.folder / "kubelet", "security.selinux", b"system_u:object_r:container_file_t:s0\0")
        os.setxattr(ours, "security.selinux", b"system_u:object_r:tmp_t:s0\0")
    except OSError:
        pytest.skip("this file system, or this user, sets no security labels")
    found = only(doctor_host.selinux, site)
    assert (found.verdict, "is tmp_t" in found.text, "restorecon" in found.remedy) == (PROBLEM, True, True)
    enforce.write_text("0")
    assert only(doctor_host.selinux, site).verdict == NOTE
    os.setxattr(ours, "security.selinux", b"system_u:object_r:container_file_t:s0\0")
    assert only(doctor_host.selinux, site).verdict == OK_


def test_a_driver_whose_library_was_updated_under_it(made: Stub) -> None:
    site = site_of(made)
    assert only(doctor_host.drivers, site).verdict == OK_
    version = Path(site.paths.proc) / "driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: 12\n")
    library = Path(site.paths.root) / "usr/lib64"
    library.mkdir(parents=True)
    (library / "libnvidia-ml.so.550.90.07").touch()
    found = only(doctor_host.drivers, site)
    assert (found.verdict, "550.54.15 is loaded" in found.text, "550.90.07" in found.text) == (PROBLEM, True, True)
    (library / "libnvidia-ml.so.550.54.15").touch()
    found = only(doctor_host.drivers, site)
    assert (found.verdict, found.text) == (OK_, "nvidia 550.54.15")


def test_cdi_names_need_a_specification_and_a_runtime_that_resolves_them(made: Stub) -> None:
    assert only(doctor_host.cdi, site_of(made)).verdict == LEFT_OUT
    site = site_of(made, devices=[device_of("a/b", "1", cdi=["nvidia.com/gpu=0", "nvidia.com/gpu=1"])])
    assert "gpu=0" in only(doctor_host.cdi, site).text
    (made.folder / "root" / "cdi").mkdir()
    (made.folder / "root" / "etc" / "cdi").mkdir()
    (made.folder / "root" / "cdi" / "broken.json").write_text("{")
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}
    (made.folder / "root" / "cdi" / "nvidia.json").write_text(json.dumps(spec))
    (made.folder / "root" / "etc" / "cdi" / "more.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{name: '1'}]\n")
    assert only(doctor_host.cdi, site).verdict == OK_
    config = made.folder / "root" / "etc" / "containerd" / "config.toml"
    config.parent.mkdir()
    for text, verdict in (
        ("version = 3\n", OK_),
        ("version = 2\n", PROBLEM),
        ("version = 2\n[plugins]\n  enable_cdi = true\n", OK_),
        ("version = 3\n  enable_cdi = false\n", PROBLEM),
    ):
        config.write_text(text)
        assert only(doctor_host.cdi, site).verdict == verdict, text


def test_dev_char_links_are_looked_up(made: Stub) -> None:
    device = device_of("a/b", "1")
    assert only(doctor_host.dev_char, site_of(made, devices=[device])).verdict == LEFT_OUT
    site = site_of(made, devices=[device], root="/")
    found = only(doctor_host.dev_char, site)
    assert (found.verdict, "/dev/fuse (10:229)" in found.text) == (NOTE, True)
    link = Path(site.paths.dev) / "char" / "10:229"
    link.parent.mkdir()
    link.symlink_to("../fuse")
    assert only(doctor_host.dev_char, site).verdict == OK_


def test_a_full_disk_is_a_problem(made: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(doctor_host.disk, site_of(made)).verdict == OK_
    real = os.statvfs
    (made.folder / "state").mkdir()

    def tight(path: Any) -> os.statvfs_result:
        found = list(real(path))
        if str(path).endswith("/state"):
            found[4] = 10
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", tight)
    found = only(doctor_host.disk, site_of(made))
    assert (found.verdict, "(state) is full" in found.text) == (PROBLEM, True)


def test_a_clock_that_is_wrong_is_noticed(made: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.folder / "state").mkdir()
    path = made.folder / "state" / "x.json"
    path.touch()
    os.utime(path, (time.time() + 7200, time.time() + 7200))
    found = list(doctor_host.clock(site_of(made)))
    assert any(item.verdict == NOTE and "the clock went back" in item.text for item in found)
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert "1970-01-02" in only(doctor_host.clock, site_of(made)).text


def test_limits_are_near_or_far(made: Stub) -> None:
    site = site_of(made)
    assert only(doctor_host.limits, site).verdict == OK_
    most = Path(site.paths.proc) / "sys/fs/inotify/max_user_instances"
    most.parent.mkdir(parents=True)
    watching = INotify()
    try:
        most.write_text("1\n")
        found = only(doctor_host.limits, site)
        assert (found.verdict, "sysctl" in found.remedy) == (PROBLEM, True)
    finally:
        watching.close()


# all of it


def test_a_check_that_hangs_or_fails_hides_no_other(made: Stub) -> None:
    release = threading.Event()

    def hangs(_: Site) -> list[Check]:
        release.wait(30)
        return []

    def fails(_: Site) -> list[Check]:
        raise RuntimeError("a node no one thought of")

    began = time.monotonic()
    found = examine(site_of(made), [("a", hangs), ("b", fails), ("c", lambda _: [Check("c", OK_, "")])], patience=0.3)
    release.set()
    assert time.monotonic() - began < 5
    assert [(item.name, item.verdict) for item in found] == [("a", PROBLEM), ("b", NOTE), ("c", OK_)]
    assert "no one thought of" in found[1].text


def test_every_check_survives_a_node_without_anything(tmp_path: Path) -> None:
    paths = {name: str(tmp_path / "none" / name) for name in msgspec.structs.asdict(Paths()) if name != "rdev_table"}
    place = Place(Settings(paths=msgspec.convert(paths, Paths)), str(tmp_path / "none.yaml"))
    found = examine(Site.visit(place), CHECKS)
    assert not [item for item in found if "could not be looked at" in item.text]
    assert {item.name for item in found} == {name for name, _ in CHECKS}


def test_every_check_has_a_line_in_the_manual() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    for name, _ in CHECKS:
        assert f"| {name} |" in text


def test_the_command_says_verdicts_remedies_and_exits_3(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    made.serve("generic", front(status_of("generic", resource_of("a/b", healthy=1))))
    code = main(["doctor", "--config", str(made.config)])
    out = capsys.readouterr().out
    assert code == 3
    assert "1 device unhealthy" in out
    assert "devherd devices a/b" in out
    code = main(["doctor", "--json", "--config", str(made.config)])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["ok"]) == (3, False)
    assert document["problems"] == sum(item["verdict"] == PROBLEM for item in document["checks"]) > 0


def test_a_bundle_holds_the_verdicts_and_no_secret(made: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    made.serve(
        "generic",
        front(status_of("generic", resource_of("a/b")), [device_of("a/b", "1", env={"API_TOKEN": "hunter2"})]),
    )
    log, state = made.folder / "log", made.folder / "state"
    root = made.folder / "root"
    for folder in (log, state, root / "sys", root / "dev", root / "proc"):
        folder.mkdir(parents=True)
    with made.config.open("a") as file:
        file.write(f"  log: {log}\n  sys: {root}/sys\n  dev: {root}/dev\n  proc: {root}/proc\n")
    (log / "generic.log").write_text("told hunter2\n" + "x" * 400_000 + "\ntold hunter2 again\n")
    (state / "generic.ledger.json").write_text('{"API_TOKEN": "hunter2"}')
    bundle = made.folder / "b.tar.gz"
    main(["doctor", "--bundle", str(bundle), "--json", "--config", str(made.config)])
    document = json.loads(capsys.readouterr().out)
    assert document["bundle"]["replaced"]["secret"] >= 3
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    from devherd.capture.archive import Capture

    held = Capture.load(str(bundle))
    assert not [name for name, text in held.texts.items() if "hunter2" in text]
    assert held.texts["more/logs/generic.log"].endswith("again\n")
    assert len(held.texts["more/logs/generic.log"]) < 300_000
    assert held.document("more/doctor.json")["checks"] == document["checks"]
    assert held.document("more/versions.json")["devherd"]
    assert main(["doctor", "--bundle", str(bundle), "--config", str(made.config)]) == 2
