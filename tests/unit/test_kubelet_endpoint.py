"""Where the sockets are, what survives a wipe, and whose file is left alone."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
from devherd.kubelet.endpoint import Endpoint, EndpointError, EndpointTaken, sweep
from devherd.kubelet.identity import Identity, accepts, probe_socket, start_time_of

LISTEN = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("up", flush=True)
input()
"""


@pytest.fixture
def folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="dh", dir="/tmp")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


def serve(endpoint: Endpoint, sockets: list[socket.socket]) -> None:
    private = endpoint.private()
    listener = socket.socket(socket.AF_UNIX)
    sockets.append(listener)
    listener.bind(private)
    listener.listen()
    endpoint.adopt(private)


def wipe(folder: str) -> None:
    """What a starting kubelet does: sockets directly in the folder go, subfolders are not entered."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def test_subfolder_layout_survives_the_wipe(folder: str, sockets: list[socket.socket]) -> None:
    endpoint = Endpoint(folder, "generic", "example.com/fuse")
    serve(endpoint, sockets)
    assert endpoint.publish("subfolder") == "devherd/generic.example.com_fuse.sock"
    wipe(folder)
    assert endpoint.intact("subfolder")
    assert accepts(os.path.join(folder, "devherd/generic.example.com_fuse.sock"))


def test_top_layout_is_restored_after_the_wipe_without_a_new_server(folder: str, sockets: list[socket.socket]) -> None:
    endpoint = Endpoint(folder, "generic", "example.com/fuse")
    serve(endpoint, sockets)
    assert endpoint.publish("top") == "devherd-generic.example.com_fuse.sock"
    assert accepts(endpoint.top)
    wipe(folder)
    assert not endpoint.intact("top")
    assert endpoint.anchored()
    endpoint.publish("top")
    assert accepts(endpoint.top)
    assert sorted(os.listdir(folder)) == ["devherd", "devherd-generic.example.com_fuse.sock"]


def test_only_root_reaches_the_sockets(folder: str, sockets: list[socket.socket]) -> None:
    os.mkdir(os.path.join(folder, "devherd"), 0o755)
    endpoint = Endpoint(folder, "generic", "example.com/fuse")
    serve(endpoint, sockets)
    endpoint.publish("top")
    assert stat.S_IMODE(os.stat(endpoint.folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(endpoint.anchor).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(endpoint.top).st_mode) == 0o600


def test_the_kubelets_own_folder_is_never_made(folder: str) -> None:
    missing = os.path.join(folder, "device-plugins")
    with pytest.raises(FileNotFoundError):
        Endpoint(missing, "generic", "example.com/fuse").private()
    assert not os.path.exists(missing)


def test_a_stale_file_is_taken_over_and_leftovers_go(folder: str, sockets: list[socket.socket]) -> None:
    before = Endpoint(folder, "generic", "example.com/fuse")
    serve(before, sockets)
    private = before.private()
    unfinished = socket.socket(socket.AF_UNIX)
    unfinished.bind(private)
    unfinished.close()
    sockets.pop().close()

    after = Endpoint(folder, "generic", "example.com/fuse")
    serve(after, sockets)
    assert after.intact("subfolder")
    assert not before.intact("subfolder")
    assert os.listdir(after.folder) == ["generic.example.com_fuse.sock"]


def test_a_live_process_keeps_its_socket(folder: str) -> None:
    endpoint = Endpoint(folder, "generic", "example.com/fuse")
    os.mkdir(endpoint.folder, 0o700)
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, endpoint.anchor], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(EndpointTaken, match=f"process {other.pid} serves it"):
            endpoint.private()
        assert probe_socket(endpoint.anchor) == Identity(other.pid, start_time_of(other.pid))
        other.communicate(b"\n")
    endpoint.private()


def test_what_is_in_the_way_is_named(folder: str) -> None:
    endpoint = Endpoint(folder, "generic", "example.com/fuse")
    os.mkdir(endpoint.folder, 0o700)
    with open(endpoint.anchor, "w"):
        pass
    with pytest.raises(EndpointError, match="is not a socket"):
        endpoint.private()


def test_a_link_instead_of_our_folder_is_refused(folder: str) -> None:
    os.symlink("/tmp", os.path.join(folder, "devherd"))
    with pytest.raises(EndpointError, match="must be a folder owned by"):
        Endpoint(folder, "generic", "example.com/fuse").private()


def test_long_names_are_shortened_and_stay_apart(folder: str, sockets: list[socket.socket]) -> None:
    long = "example.com/" + "x" * 62
    one, two = Endpoint(folder, "generic", long + "1"), Endpoint(folder, "generic", long + "2")
    for endpoint in (one, two):
        serve(endpoint, sockets)
        endpoint.publish("top")
        assert len(endpoint.anchor) <= 107
        assert len(endpoint.top) <= 107
        assert accepts(endpoint.anchor)
    assert one.anchor != two.anchor
    assert one.top != two.top
    assert os.path.basename(one.anchor).startswith("generic.example.com_xxx")


def test_a_folder_that_leaves_no_room_is_said(folder: str) -> None:
    with pytest.raises(EndpointError, match="too long"):
        Endpoint(os.path.join(folder, "x" * 100), "generic", "example.com/fuse")


def test_only_our_own_files_are_removed(folder: str, sockets: list[socket.socket]) -> None:
    old, new = Endpoint(folder, "generic", "example.com/a"), Endpoint(folder, "generic", "example.com/a")
    serve(old, sockets)
    old.publish("top")
    serve(new, sockets)
    old.remove()
    assert new.intact("subfolder")
    assert not os.path.exists(old.top)
    new.remove()
    assert os.listdir(new.folder) == []


def test_a_start_sweeps_what_an_earlier_life_left(folder: str, sockets: list[socket.socket]) -> None:
    assert sweep(folder) == []
    gone, lives = Endpoint(folder, "generic", "example.com/renamed"), Endpoint(folder, "gpu", "example.com/gpu")
    serve(gone, sockets)
    sockets.pop().close()
    serve(lives, sockets)
    with open(os.path.join(lives.folder, "note.sock"), "w"):
        pass
    assert sweep(folder) == ["generic.example.com_renamed.sock"]
    assert lives.intact("subfolder")
    assert sorted(os.listdir(lives.folder)) == ["gpu.example.com_gpu.sock", "note.sock"]


def test_a_start_sweeps_the_top_level_too(folder: str, sockets: list[socket.socket]) -> None:
    """A resource that left the configuration while its front was dead: nobody else takes its link away."""
    gone, lives = Endpoint(folder, "generic", "example.com/renamed"), Endpoint(folder, "gpu", "example.com/gpu")
    serve(gone, sockets)
    gone.publish("top")
    sockets.pop().close()
    serve(lives, sockets)
    lives.publish("top")
    others = os.path.join(folder, "other-vendor.sock")
    socket.socket(socket.AF_UNIX).bind(others)
    assert sorted(sweep(folder)) == ["devherd-generic.example.com_renamed.sock", "generic.example.com_renamed.sock"]
    assert lives.intact("top")
    assert lives.intact("subfolder")
    assert sorted(os.listdir(folder)) == ["devherd", "devherd-gpu.example.com_gpu.sock", "other-vendor.sock"]


def test_a_start_sweeps_names_that_a_killed_process_was_about_to_change(
    folder: str, sockets: list[socket.socket]
) -> None:
    """Bound and not yet listening, or linked and not yet renamed: only whether its maker lives can tell."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    endpoint = Endpoint(folder, "generic", "example.com/a")
    serve(endpoint, sockets)
    names = {
        os.path.join(endpoint.folder, f".abcd1234.{done.pid}.1"): True,
        os.path.join(folder, f".devherd.abcd1234.{done.pid}"): True,
        os.path.join(endpoint.folder, f".abcd1234.{os.getpid()}.1"): False,
        os.path.join(folder, f".devherd.abcd1234.{os.getpid()}"): False,
        os.path.join(folder, ".12345678"): False,
    }
    for path in names:
        socket.socket(socket.AF_UNIX).bind(path)
    assert sorted(sweep(folder)) == sorted(os.path.basename(path) for path, dead in names.items() if dead)
    assert {path: not os.path.exists(path) for path in names} == names
    assert endpoint.intact("subfolder")
