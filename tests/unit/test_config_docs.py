"""The generated page and the JSON Schema say what the decoder does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from devherd.cli.main import main
from devherd.config import docs, load_bytes, schema
from devherd.config.reference import example, sections
from devherd.settings import Kubelet, Settings
from devherd.vendor import Manifest
from msgspec import Meta, Struct, field, inspect


class PathRule(Struct, frozen=True, rename="camel"):
    """One path."""

    host_path: Annotated[str, Meta(description="where it is: a|b, *.c <x>")]
    count: Annotated[int, Meta(ge=1, le=8)] = 1


class Rule(Struct, frozen=True):
    """One rule."""

    paths: tuple[PathRule, ...] = ()
    by_name: dict[str, PathRule] = field(default_factory=dict)
    weight: Annotated[float | None, Meta(extra={"unit": "grams"})] = None


class Acme(Struct, frozen=True):
    """The file."""

    rules: tuple[Rule, ...] = ()


def test_the_example_of_all_defaults_is_the_defaults() -> None:
    text = example(Settings())
    assert load_bytes(text.encode(), "f", Settings).require() == Settings()
    odd = Settings(vendors=("on", "12", "a: b", "0000:03:00.0"), kubelet=Kubelet(poll=0.25))
    assert load_bytes(example(odd).encode(), "f", Settings).require() == odd


def test_every_setting_is_on_the_page_with_its_meaning() -> None:
    page = docs.page()
    for section in inspect.type_info(Settings).fields:  # type: ignore[attr-defined]
        kind = section.type.type if isinstance(section.type, inspect.Metadata) else section.type
        for entry in getattr(kind, "fields", ()):
            row = next(line for line in page.splitlines() if line.startswith(f"| `{entry.encode_name}` |"))
            assert all(cell.strip() for cell in row.strip("|").split(" | ")), row


def test_nested_structs_have_tables_of_their_own_and_links_to_them() -> None:
    page = sections(inspect.type_info(Acme), "acme")
    assert "| `rules` | list: [rules[]](#acme-rules) | `[]` |" in page
    assert '<a id="acme-rules-paths"></a>\n\n### `rules[].paths[]`\n\nOne path.' in page
    assert "| `hostPath` | text | required | where it is: a\\|b, \\*.c &lt;x> |" in page
    assert "| `count` | whole number, >= 1, <= 8 | `1` |" in page
    assert "| `weight` | number of grams, or null | `null` |" in page
    assert page.count("### ") == 2, "a struct used twice is described once"


def test_check_tells_whether_the_page_is_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "docs" / "configuration.md")
    assert docs.main(["--check", path]) == 1
    assert docs.main([path]) == 0
    assert docs.main(["--check", path]) == 0
    with open(path, "a") as file:
        file.write("more\n")
    assert docs.main(["--check", path]) == 1
    assert "out of date; run `make docs`" in capsys.readouterr().err


def test_schemas_forbid_what_the_decoder_forbids() -> None:
    document = schema.settings_schema()
    assert document["$schema"] == schema.DIALECT
    objects = [part for part in document["$defs"].values() if "properties" in part]
    assert len(objects) >= 8
    assert all(part["additionalProperties"] is False for part in objects)
    acme = schema.plugin_schema(Manifest(name="acme", title="Acme", config=Acme, vendor="acme:make"))
    assert acme["title"] == "plugins.d/acme.yaml"
    assert all(part["additionalProperties"] is False for part in acme["$defs"].values())
    assert msgspec.json.decode(msgspec.json.encode(acme)) == acme


def test_installed_plugins_are_found_by_their_entry_points() -> None:
    found: dict[str, Any] = dict(schema.installed_manifests("devherd"))
    assert found["generic"].name == "generic"
    assert schema.installed_manifests("no-such-distribution") == {}


def test_the_page_shows_problems_as_config_check_prints_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "devherd.yaml"
    file.write_text(docs._SAMPLE, encoding="utf-8")
    main(["config", "check", "--config", str(file)])
    printed = capsys.readouterr().out.split("\n\n", 1)[1].rpartition("\n5 errors")[0]
    shown = "\n".join(line.rstrip() for line in printed.splitlines()).replace(str(file), "/etc/devherd/devherd.yaml")
    assert shown in docs.page()
