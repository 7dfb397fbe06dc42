"""Files that a vendor wants on the host: CDI specifications and feature files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from devherd.host.cdi import CdiDevice, CdiEdits, CdiHook, CdiMount, CdiNode, names, spec, spec_file
from devherd.host.nfd import feature_file, label_value
from devherd.probe.files import Files
from devherd.settings import Paths
from devherd.values import HostFile


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(cdi=str(tmp_path / "cdi"), features=str(tmp_path / "features.d"), state=str(tmp_path / "state"))
    os.mkdir(made.state)
    return made


def there(paths: Paths) -> dict[str, str]:
    folder = Path(paths.cdi)
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.is_dir() else {}


def test_a_file_is_written_once_and_again_only_when_it_differs(paths: Paths) -> None:
    files = Files(paths, "gpu-x")
    one = HostFile(f"{paths.cdi}/a.json", "one")
    assert files.publish([one]) == ()
    inode = os.stat(one.path).st_ino
    assert files.publish([one]) == ()
    assert os.stat(one.path).st_ino == inode
    assert os.stat(one.path).st_mode & 0o777 == 0o644
    files.publish([HostFile(one.path, "two")])
    assert there(paths) == {"a.json": "two"}


def test_what_somebody_changed_or_removed_is_put_right(paths: Paths) -> None:
    files = Files(paths, "gpu-x")
    wanted = [HostFile(f"{paths.cdi}/a.json", "one"), HostFile(f"{paths.cdi}/b.json", "two")]
    files.publish(wanted)
    Path(wanted[0].path).write_text("ONE")
    os.unlink(wanted[1].path)
    assert files.publish(wanted) == ()
    assert there(paths) == {"a.json": "one", "b.json": "two"}


def test_what_is_no_longer_wanted_goes_also_after_a_restart_and_only_ours(paths: Paths) -> None:
    Files(paths, "gpu-x").publish([HostFile(f"{paths.cdi}/a.json", "one"), HostFile(f"{paths.cdi}/b.json", "two")])
    (Path(paths.cdi) / "other.json").write_text("theirs")
    again = Files(paths, "gpu-x")
    again.publish([HostFile(f"{paths.cdi}/b.json", "two")])
    assert there(paths) == {"b.json": "two", "other.json": "theirs"}
    Files(paths, "gpu-x").publish([])
    assert there(paths) == {"other.json": "theirs"}


def test_a_probe_that_never_had_files_leaves_no_trace(paths: Paths) -> None:
    Files(paths, "generic").publish([])
    assert os.listdir(paths.state) == []


def test_nothing_is_written_elsewhere(paths: Paths, tmp_path: Path) -> None:
    for path in (f"{tmp_path}/x", f"{paths.cdi}/../x", f"{paths.cdi}/sub/x", "/etc/passwd"):
        (problem,) = Files(paths, "gpu-x").publish([HostFile(path, "no")])
        assert problem.what == path
        assert "not written" in problem.reason
    assert not (tmp_path / "x").exists()


def test_a_file_that_cannot_be_written_is_named_and_costs_no_other(paths: Paths) -> None:
    os.makedirs(f"{paths.cdi}/a.json/full")
    (problem,) = Files(paths, "gpu-x").publish(
        [HostFile(f"{paths.cdi}/a.json", "one"), HostFile(f"{paths.cdi}/b.json", "two")]
    )
    assert problem.what == f"{paths.cdi}/a.json"
    assert "cannot be written: " in problem.reason
    assert Path(paths.cdi, "b.json").read_text() == "two"
    assert sorted(os.listdir(paths.cdi)) == ["a.json", "b.json"]


def test_a_damaged_memory_blocks_nothing(paths: Paths) -> None:
    Path(paths.state, "gpu-x.files.json").write_bytes(b"\xff\x00rubbish")
    assert Files(paths, "gpu-x").publish([HostFile(f"{paths.cdi}/a.json", "one")]) == ()
    assert there(paths) == {"a.json": "one"}


def test_features_are_written_only_where_somebody_reads_them(paths: Paths) -> None:
    wanted = feature_file(paths, "devherd-gpu", {"x.example/count": "8"}, 0.0)
    Files(paths, "gpu-x").publish([wanted])
    assert not os.path.exists(paths.features)
    os.mkdir(paths.features)
    Files(paths, "gpu-x").publish([wanted])
    assert Path(paths.features, "devherd-gpu").read_text() == "# +expiry-time=1970-01-01T04:00:00Z\nx.example/count=8\n"


def test_a_feature_file_changes_once_an_hour() -> None:
    texts = {feature_file(Paths(), "f", {}, float(now)).text for now in range(7200, 10800, 30)}
    assert len(texts) == 1
    assert feature_file(Paths(), "f", {}, 10800.0).text not in texts


@pytest.mark.parametrize(
    ("text", "value"),
    [("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"), (" a/b ", "a-b"), ("x" * 70, "x" * 63), ("-_.", "")],
)
def test_label_values(text: str, value: str) -> None:
    assert label_value(text) == value


def test_a_specification_says_all_it_was_given(paths: Paths) -> None:
    edits = CdiEdits(
        nodes=(CdiNode("/dev/x0", "/driver/dev/x0", "c", 195, 0, "rw", 0o666),),
        mounts=(CdiMount("/usr/lib/libx.so", "/usr/lib/libx.so"),),
        env=("X=1",),
        hooks=(CdiHook("createContainer", "/usr/bin/hook", ("hook", "link")),),
    )
    device = CdiDevice("x0", edits)
    file = spec_file(paths, "vendor.example/gpu", spec("vendor.example/gpu", [device], CdiEdits(env=("ALL=1",))))
    assert file.path == f"{paths.cdi}/vendor.example-gpu.json"
    assert json.loads(file.text) == {
        "cdiVersion": "0.5.0",
        "kind": "vendor.example/gpu",
        "devices": [
            {
                "name": "x0",
                "containerEdits": {
                    "env": ["X=1"],
                    "deviceNodes": [
                        {
                            "path": "/dev/x0",
                            "hostPath": "/driver/dev/x0",
                            "type": "c",
                            "major": 195,
                            "minor": 0,
                            "fileMode": 0o666,
                            "permissions": "rw",
                        }
                    ],
                    "mounts": [
                        {
                            "hostPath": "/usr/lib/libx.so",
                            "containerPath": "/usr/lib/libx.so",
                            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                        }
                    ],
                    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/hook", "args": ["hook", "link"]}],
                },
            }
        ],
        "containerEdits": {"env": ["ALL=1"]},
    }
    assert names("vendor.example/gpu", [device]) == ("vendor.example/gpu=x0",)


@pytest.mark.parametrize(
    ("kind", "name", "edits", "version"),
    [
        ("v.example/gpu", "card0", CdiEdits(), "0.3.0"),
        ("v.example/gpu", "0000:05:00.0", CdiEdits(), "0.5.0"),
        ("v.example/gpu", "a", CdiEdits(nodes=(CdiNode("/dev/a", "/dev/b"),)), "0.5.0"),
        ("v.example/gpu.shared", "a", CdiEdits(), "0.6.0"),
        ("v.example/gpu", "a", CdiEdits(gids=(44,)), "0.7.0"),
    ],
)
def test_a_specification_needs_no_newer_runtime_than_it_must(
    kind: str, name: str, edits: CdiEdits, version: str
) -> None:
    assert json.loads(spec(kind, [CdiDevice(name, edits)]))["cdiVersion"] == version
