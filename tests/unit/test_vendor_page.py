"""What docs/writing-a-vendor.md tells a newcomer to write works: every file on it is taken and used as it is."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from devherd.cli.main import main
from devherd.cli.plugins import VENDORS
from devherd.launcher import HELP, parse

PAGE = (Path(__file__).parents[2] / "docs/writing-a-vendor.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"```\w+ file={re.escape(name)}\n(.*?)```", PAGE, re.S)
    assert found is not None, name
    return found[1]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's package as pip leaves it: the module, and the entry points of its pyproject."""
    group = re.search(r'^\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"$', block("pyproject.toml"), re.M)
    assert group is not None
    info = tmp_path / "site" / "blinker-1.0.dist-info"
    info.mkdir(parents=True)
    for folder in (tmp_path, info.parent, info):
        os.chmod(folder, 0o755)
    (info.parent / "blinker.py").write_text(block("blinker.py"), encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blinker\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{group[1]}]\n{group[2]} = {group[3]}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.delitem(sys.modules, "blinker", raising=False)
    return tmp_path


def test_the_page_s_files_pass_config_check(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    etc = site / "etc"
    (etc / "plugins.d").mkdir(parents=True)
    settings = etc / "devherd.yaml"
    settings.write_text(f"paths: {{etc: {etc}}}\n{block('devherd.yaml')}", encoding="utf-8")
    own = etc / "plugins.d/blinker.yaml"
    own.write_text(block("plugins.d/blinker.yaml"), encoding="utf-8")
    assert main(["config", "check", "--config", str(settings)]) == 0
    assert str(own) in capsys.readouterr().out
    own.write_text("resorce: x\n", encoding="utf-8")
    assert main(["config", "check", "--config", str(settings)]) == 1
    assert "did you mean resource?" in capsys.readouterr().out
    assert main(["config", "schema", "blinker", "--config", str(settings)]) == 0


def test_the_page_s_program_is_ours_but_for_its_name() -> None:
    mine, ours = configparser.RawConfigParser(), configparser.RawConfigParser()
    mine.read_string(block("blinker.conf"))
    ours.read(Path(__file__).parents[2] / "supervisorconf/conf.d/generic.conf")
    theirs = dict(ours["program:generic"])
    for key, value in mine["program:blinker"].items():
        wanted = theirs[key].replace("devherd_generic.manifest", "blinker").replace("generic", "blinker")
        assert _bare(value) == _bare(wanted), key
    assert set(theirs) - set(mine["program:blinker"]) <= {"autostart"}


def _bare(value: str) -> str:
    """Without what a vendor may choose, or leave out."""
    return re.sub(r" (-X pycache_prefix=\S+|--memory \d+)", "", value)


def test_the_page_s_command_is_understood_and_each_option_explained() -> None:
    conf = configparser.RawConfigParser()
    conf.read_string(block("blinker.conf"))
    words = shlex.split(conf["program:blinker"]["command"])
    options = parse(words[words.index("devherd.launcher") + 1 :])
    assert (options.name, options.lock) == ("blinker", "/run/devherd/blinker.lock")
    for option in set(re.findall(r"--\w+", HELP)) - {"--supervisor"}:
        assert f"| `{option} " in PAGE, option


def test_the_group_on_the_page_is_the_one_that_is_read() -> None:
    assert f'[project.entry-points."{VENDORS}"]' in block("pyproject.toml")
