"""`devherd config import`: what users have of another plugin, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from devherd.cli.main import main
from devherd.config.rival import Flags, read

DAEMONSET = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  config.yaml: |
    version: v1
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: plugin}
spec:
  template:
    spec:
      initContainers: [{name: i, image: init}]
      containers:
        - name: plugin
          image: rocm/k8s-device-plugin:1.31
          command: [./k8s-device-plugin]
          args: ["-pulse=10", "-resource_naming_strategy", mixed]
          env:
            - {name: CONFIG_FILE_PATH, value: /x}
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
"""


def test_a_manifest_gives_arguments_variables_and_files() -> None:
    found, problems = read(DAEMONSET, "f")
    assert problems == ()
    assert found.args == ("-pulse=10", "-resource_naming_strategy", "mixed")
    assert found.env == {"CONFIG_FILE_PATH": "/x"}
    assert found.files == {"config.yaml": "version: v1\n"}


def test_a_file_of_its_own_is_taken_as_it_is() -> None:
    found, problems = read("a: 1\n", "f")
    assert (found.files, problems) == ({"": "a: 1\n"}, ())


def test_flags_are_read_as_go_reads_them() -> None:
    flags = Flags(["-a=1", "--b", "2", "-v", "--log", "-c"], switches={"v"})
    assert [flags.get(name) for name in "abvc"] == ["1", "2", "true", "true"]
    assert flags.left() == ["log"]


Capture = pytest.CaptureFixture[str]


def test_amd_keeps_names_and_says_what_changes(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "ds.yaml"
    file.write_text(DAEMONSET)
    assert main(["config", "import", "amd", str(file), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["plugin"] == "gpu-amd"
    assert made["config"] == {"naming": "mixed"}
    assert any("CONFIG_FILE_PATH" in note for note in made["notes"])


def test_the_file_is_printed_ready_to_use_and_notes_apart(capsys: Capture) -> None:
    assert main(["config", "import", "amd", "--arg=-resource_naming_strategy=mixed"]) == 0
    said = capsys.readouterr()
    assert said.out == "# plugins.d/gpu-amd.yaml, imported from amd\nnaming: mixed\n"
    assert "note: " in said.err


def test_an_unknown_name_lists_the_known_ones(capsys: Capture) -> None:
    assert main(["config", "import", "nobody"]) == 2
    assert "amd" in capsys.readouterr().err


def test_a_broken_manifest_is_named_with_its_line(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "ds.yaml"
    file.write_text("a: [1\n")
    assert main(["config", "import", "amd", str(file)]) == 1
    assert f"{file}:" in capsys.readouterr().err
