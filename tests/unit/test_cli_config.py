"""`devherd config`: no file and no vendor name is passed over in silence; a listed vendor's file is checked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from devherd.cli.main import main

MODULE = '''
from msgspec import Struct
from devherd.vendor import Manifest

class Config(Struct, frozen=True):
    """Blinking."""
    speed: int = 1

MANIFEST = Manifest(name="blinkr", title="x", config=Config, vendor="blinkr:make")
'''


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    (folder / "plugins.d").mkdir(parents=True)
    (folder / "devherd.yaml").write_text(f"paths: {{etc: {folder}}}\n", encoding="utf-8")
    return folder


@pytest.fixture
def blinkr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vendor's package, installed as pip would leave it."""
    site = tmp_path / "site"
    info = site / "blinkr-1.0.dist-info"
    info.mkdir(parents=True)
    for folder in (tmp_path, site, info):
        os.chmod(folder, 0o755)
    (site / "blinkr.py").write_text(MODULE, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blinkr\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[devherd.vendors]\nblinkr = blinkr:MANIFEST\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "blinkr", raising=False)
    return site


def allow(etc: Path, *names: str) -> None:
    file = etc / "devherd.yaml"
    file.write_text(f"{file.read_text(encoding='utf-8')}vendors: [{', '.join(names)}]\n", encoding="utf-8")


def check(etc: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["config", "check", "--json", "--config", str(etc / "devherd.yaml")])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "name", ["generic.yml", "generic.json", "generic", "generic.YAML", "Generic.yaml", "genric.yaml"]
)
def test_a_file_that_looks_meant_and_is_read_by_nobody_is_an_error(
    etc: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (etc / "plugins.d" / name).write_text("devices: []\n", encoding="utf-8")
    code, document = check(etc, capsys)
    assert code == 1
    assert [problem["file"] for problem in document["problems"]] == [str(etc / "plugins.d" / name)]
    assert "did you mean generic.yaml?" in document["problems"][0]["hint"]


@pytest.mark.parametrize("name", ["README", "README.md", "generic.yaml.bak", "generic.yaml~", "notes.txt"])
def test_any_other_file_is_named_and_is_no_error(etc: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (etc / "plugins.d" / name).write_text("hello\n", encoding="utf-8")
    code, document = check(etc, capsys)
    assert (code, document["ignored"]) == (0, [str(etc / "plugins.d" / name)])
    assert main(["config", "check", "--config", str(etc / "devherd.yaml")]) == 0
    assert f"{name}: read by no plugin" in capsys.readouterr().out


def test_a_vendor_that_is_not_installed_is_an_error_where_it_stands(
    etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(etc, "foo")
    code, document = check(etc, capsys)
    (problem,) = document["problems"]
    assert (code, problem["line"], problem["key"]) == (1, 2, "vendors[0]")
    assert "no vendor foo is installed" in problem["message"]


def test_a_plugin_of_our_own_in_the_list_is_said_to_be_no_vendor(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allow(etc, "generic")
    _, document = check(etc, capsys)
    assert "devherd's own" in document["problems"][0]["message"]


def test_a_listed_vendor_s_file_is_checked_against_its_schema(
    etc: Path, blinkr: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allow(etc, "blinkr")
    (etc / "plugins.d" / "blinkr.yaml").write_text("speed: 2\n", encoding="utf-8")
    assert check(etc, capsys)[0] == 0
    (etc / "plugins.d" / "blinkr.yaml").write_text("sped: 2\n", encoding="utf-8")
    code, document = check(etc, capsys)
    assert code == 1
    assert document["problems"][0]["hint"] == "did you mean speed?"
    assert main(["config", "schema", "blinkr", "--config", str(etc / "devherd.yaml")]) == 0
    assert "speed" in capsys.readouterr().out


def test_a_vendor_that_is_not_listed_is_not_run(etc: Path, blinkr: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (etc / "plugins.d" / "blinkr.yaml").write_text("speed: 2\n", encoding="utf-8")
    code, document = check(etc, capsys)
    assert code == 1
    assert "vendors: [blinkr]" in document["problems"][0]["hint"]
    assert main(["config", "schema", "blinkr", "--config", str(etc / "devherd.yaml")]) == 2
    assert "vendors: [blinkr]" in capsys.readouterr().err
    assert "blinkr" not in sys.modules


def test_a_vendor_that_cannot_be_loaded_is_an_error_and_costs_no_other_check(
    etc: Path, blinkr: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (blinkr / "blinkr.py").write_text("raise RuntimeError('no driver')\n", encoding="utf-8")
    allow(etc, "blinkr")
    (etc / "plugins.d" / "generic.yaml").write_text("devcies: []\n", encoding="utf-8")
    _, document = check(etc, capsys)
    messages = [problem["message"] for problem in document["problems"]]
    assert any("no driver" in message for message in messages)
    assert "unknown key" in messages
