"""Loading configurations: strict types, every error with its place and a hint, and nothing ever raised."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
import yaml
from devherd.config import (
    ConfigError,
    Loaded,
    changed_keys,
    load_bytes,
    load_plugin_config,
    load_settings,
    load_struct,
    plugin_config_path,
)
from devherd.settings import Kubelet, Paths, Settings
from devherd.sim.nodespec import load as load_node
from devherd.vendor import Manifest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct, field


class Mode(Enum):
    PACKED = "packed"
    SPREAD = "spread"


class Usb(Struct, frozen=True, rename="camel"):
    vendor: str
    product: str
    serial_number: str = ""


class Left(Struct, frozen=True, tag="left"):
    size: int = 0


class Right(Struct, frozen=True, tag="right"):
    name: str = ""


class Range(Struct, frozen=True):
    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not be above high")


class Ranges(Struct, frozen=True):
    ranges: tuple[Range, ...] = ()


class Everything(Struct, frozen=True):
    """A bit of each kind of type."""

    text: str = ""
    number: float = 0.0
    whole: Annotated[int, Meta(ge=1, le=64)] = 1
    flag: bool = False
    mode: Mode = Mode.PACKED
    kind: Literal["Device", "Mount"] = "Device"
    level: Literal[1, 2, "auto"] = "auto"
    maybe: int | None = None
    text_or_list: str | tuple[str, ...] = ()
    number_or_text: int | str = 0
    usb: tuple[Usb, ...] = ()
    names: frozenset[str] = frozenset()
    env: dict[str, str] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    pair: tuple[int, str] | None = None
    side: Left | Right | None = None
    anything: Any = None
    short: Annotated[str, Meta(max_length=3)] = ""
    few: Annotated[tuple[int, ...], Meta(max_length=2)] = ()
    form: Annotated[str, Meta(pattern="^[a-z]+$", extra={"form": "lower-case letters"})] = "a"


def load(text: str, kind: type[Any] = Everything) -> Loaded[Any]:
    return load_bytes(text.encode(), "test.yaml", kind)


def value(text: str, kind: type[Any] = Everything) -> Any:
    return load(text, kind).require()


def only(text: str, kind: type[Any] = Everything) -> str:
    """The one problem of a text, without the file's name."""
    problems = load(text, kind).problems
    assert len(problems) == 1, problems
    return str(problems[0]).removeprefix("test.yaml:")


@pytest.mark.parametrize(
    "written",
    [
        *["2838", "0bda", "0x1f", "1e3", "1.0", "true", "False", "on", "off", "no", "0123", "12:30:45", "2024-01-31"],
        *["0000:03:00.0", "+1", ".5", ".inf", "1_000", "00ff", "9e99", "-0"],
    ],
)
def test_a_text_field_takes_a_bare_scalar_as_written(written: str) -> None:
    assert value(f"text: {written}").text == written
    assert value(f"env: {{A: {written}}}").env == {"A": written}
    assert value(f"usb: [{{vendor: {written}, product: {written}}}]").usb[0] == Usb(written, written)
    assert value(f"env: {{{written}: x}}").env == {written: "x"}


def test_all_pci_buses_arrive_as_written() -> None:
    addresses = tuple(f"0000:{bus:02x}:00.0" for bus in range(256))
    text = "text_or_list:\n" + "".join(f"- {address}\n" for address in addresses)
    assert value(text).text_or_list == addresses


def test_each_kind_of_value() -> None:
    found = value(
        """
        number: 5
        whole: 0x10
        flag: true
        mode: spread
        kind: Mount
        level: 2
        maybe: ~
        text_or_list: one
        number_or_text: 0123
        usb:
        - {vendor: 0bda, product: 2838, serialNumber: "1"}
        names: [a, b]
        by_number: {1: x}
        pair: [1, 2]
        side: {type: right, name: r}
        anything: {a: [1, on, 0x10, 012, null]}
        """
    )
    assert found == Everything(
        number=5.0,
        whole=16,
        flag=True,
        mode=Mode.SPREAD,
        kind="Mount",
        level=2,
        text_or_list="one",
        number_or_text="0123",
        usb=(Usb("0bda", "2838", "1"),),
        names=frozenset({"a", "b"}),
        by_number={1: "x"},
        pair=(1, "2"),
        side=Right("r"),
        anything={"a": [1, "on", 16, "012", None]},
    )
    assert isinstance(found.number, float)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flag: on", '1:7: flag: must be true or false, not the text "on" (write true)'),
        ('flag: "true"', '1:7: flag: must be true or false, not the text "true" (write true without quotes)'),
        ("flag: 0", "1:7: flag: must be true or false, not the number 0 (write false)"),
        ("flag:", "1:6: flag: must be true or false, not empty"),
        ("whole: 0", "1:8: whole: 0 is out of range; must be >= 1, <= 64"),
        ("whole: 1.5", "1:8: whole: must be a whole number, not the number 1.5"),
        ("whole: 2.0", "1:8: whole: must be a whole number, not the number 2.0 (write 2)"),
        ("whole: '2'", '1:8: whole: must be a whole number, not the text "2" (write it without quotes)'),
        ("whole: true", "1:8: whole: must be a whole number, not true"),
        ("whole: [1]", "1:8: whole: must be a whole number, not a list"),
        ("whole: 99999999999999999999", "1:8: whole: the number is too large"),
        ("whole: 08", '1:8: whole: must be a whole number, not the text "08" (write it without leading zeros: 8)'),
        ("whole: 1_0", '1:8: whole: must be a whole number, not the text "1_0" (write digits only: 10)'),
        ("number: .nan", "1:9: number: must be a finite number, not .nan"),
        ("number: 1e999", "1:9: number: must be a finite number, not 1e999"),
        ("number: 12:30:45", '1:9: number: must be a number, not the text "12:30:45"'),
        ("text:", '1:6: text: must be text, not empty (give it a value, or write "" for an empty text)'),
        ("text: null", '1:7: text: must be text, not null (write "null" for the text)'),
        ('text: "a\\0b"', "1:7: text: a text cannot contain a NUL character"),
        ("text: {a: 1}", "1:7: text: must be text, not a mapping"),
        ("mode: sprad", '1:7: mode: must be one of packed, spread, not the text "sprad" (did you mean spread?)'),
        ("kind: device", '1:7: kind: must be one of Device, Mount, not the text "device" (did you mean Device?)'),
        ("level: 3", "1:8: level: must be one of 1, 2, auto, not the number 3"),
        ("maybe: x", '1:8: maybe: must be a whole number, not the text "x"'),
        ("usb: {vendor: a}", "1:6: usb: must be a list, not a mapping (begin each item with `- `)"),
        ("names: a", '1:8: names: must be a list, not the text "a" (write [a])'),
        ("names: [a, b, a]", "1:15: names[2]: is in the list twice (keep one of them)"),
        ("usb:\n- vendor: a\n", "2:3: usb[0].product: is missing"),
        (
            "usb:\n- vendor: a\n  product: b\n  serial: 1\n",
            "4:3: usb[0].serial: unknown key (did you mean serialNumber?)",
        ),
        ("by_number: {x: a}", '1:13: by_number.x: must be a whole number, not the text "x"'),
        ("by_number: {1: a, 0x1: b}", "1:19: by_number.0x1: the same key is here twice, written differently"),
        ("pair: [1]", "1:7: pair: must have 2 items, has 1"),
        ("side: {type: lft}", "1:14: side.type: must be one of left, right (did you mean left?)"),
        ("side: {size: 1}", "1:7: side.type: is missing; one of left, right"),
        ("anything: 99999999999999999999", "1:11: anything: the number is too large (quote it if it is text)"),
        ("short: abcd", "1:8: short: the text has 4 characters; must be at most 3 characters"),
        ("few: [1, 2, 3]", "1:6: few: has 3 items; must have at most 2 items"),
        ("form: A1", '1:7: form: must be lower-case letters, not "A1"'),
        ('form: "a\\n"', '1:7: form: must be lower-case letters, not "a\\n"'),
        ("txet: a", "1:1: txet: unknown key (did you mean text?)"),
        ("flag:true", '1:1: must be a mapping, not the text "flag:true" (write a space after the colon)'),
        ("vendor: a", "1:1: vendor: unknown key (it belongs under usb[])"),
        ("- a", "1:1: must be a mapping, not a list"),
        ("hello", '1:1: must be a mapping, not the text "hello"'),
    ],
)
def test_each_problem_says_where_what_and_what_to_do(text: str, problem: str) -> None:
    assert only(text) == problem


def test_all_problems_at_once_in_the_order_of_the_file() -> None:
    loaded = load("flag: on\nusb:\n- vender: x\n- {vendor: a, product: [b]}\nwhole: 70\n\nnonsense: 1\n")
    assert loaded.value is None
    assert [(problem.line, problem.key) for problem in loaded.problems] == [
        (1, "flag"),
        (3, "usb[0].vender"),
        (3, "usb[0].vendor"),
        (3, "usb[0].product"),
        (4, "usb[1].product"),
        (5, "whole"),
        (7, "nonsense"),
    ]


def test_a_section_with_everything_commented_out_is_empty() -> None:
    assert value("usb:\n# - vendor: a\nenv:\nside: ~\n") == Everything()
    assert value("paths:\n# run: /x\nvendors:\n", Settings) == Settings()
    assert value("", Settings) == value("# nothing\n", Settings) == value("---\n", Settings) == Settings()


def test_a_key_in_the_wrong_section_is_sent_home() -> None:
    assert only("layout: top", Settings) == "1:1: layout: unknown key (it belongs under kubelet)"
    assert only("kubelet: {vendors: []}", Settings).endswith("(it belongs at the top level)")


def test_settings_defaults_and_paths() -> None:
    loaded = load("kubelet: {poll: 2, layout: top}\nvendors: [acme]\npaths: {rdev_table: ''}\n", Settings)
    assert loaded.require() == Settings(kubelet=Kubelet(poll=2.0, layout="top"), vendors=("acme",))
    assert only("paths: {run: run}", Settings) == '1:14: paths.run: must be an absolute path, not "run"'


def test_settings_file_must_exist_and_a_plugins_need_not(tmp_path: Path) -> None:
    missing = load_settings(str(tmp_path / "devherd.yaml"))
    assert missing.value is None
    assert "no such file" in str(missing.problems[0])
    with pytest.raises(ConfigError, match="no such file"):
        missing.require()
    plugin = load_plugin_config(place(tmp_path), manifest())
    assert plugin.value == Everything()
    assert not plugin.found
    assert not plugin.problems


def place(folder: Path) -> Settings:
    return Settings(paths=Paths(etc=str(folder)))


def manifest(validate: Callable[[Any], list[tuple[tuple[str | int, ...], str]]] | None = None) -> Manifest:
    return Manifest(name="acme", title="Acme", config=Everything, vendor="acme:make", validate=validate)


def test_a_plugins_own_rules_point_into_the_file(tmp_path: Path) -> None:
    def rules(config: Everything) -> list[tuple[tuple[str | int, ...], str]]:
        return [(("usb", 1, "serial_number"), "bad serial"), (("usb", 0, "nowhere"), "odd"), (("env",), "not there")]

    settings_ = place(tmp_path)
    path = Path(plugin_config_path(settings_, "acme"))
    path.parent.mkdir()
    path.write_text("usb:\n- {vendor: a, product: b}\n- vendor: a\n  product: b\n  serialNumber: 1\n")
    problems = load_plugin_config(settings_, manifest(rules)).problems
    assert [str(problem) for problem in problems] == [
        f"{path}:1:1: env: not there",
        f"{path}:2:3: usb[0].nowhere: odd",
        f"{path}:5:17: usb[1].serial_number: bad serial",
    ]


def test_a_plugins_rules_that_fail_are_a_problem_and_not_an_end(tmp_path: Path) -> None:
    def rules(config: Everything) -> list[tuple[tuple[str | int, ...], str]]:
        raise KeyError("oops")

    loaded = load_plugin_config(place(tmp_path), manifest(rules))
    assert loaded.value is None
    assert "could not check it: KeyError" in loaded.problems[0].message


def test_a_struct_that_says_no_is_a_problem_at_its_place() -> None:
    assert (
        only("ranges:\n- {low: 1, high: 2}\n- {low: 3, high: 2}\n", Ranges)
        == "3:3: ranges[1]: low must not be above high"
    )


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "big").write_bytes(b"#" * (1024 * 1024 + 1))
    for path, words in [
        (str(tmp_path), "not a regular file"),
        (str(tmp_path / "fifo"), "not a regular file"),
        ("/dev/null", "not a regular file"),
        (str(tmp_path / "loop"), "cannot be read"),
        (str(tmp_path / "big"), "larger than"),
        (str(tmp_path / "big" / "x"), "cannot be read"),
        ("a\0b", "cannot be read"),
    ]:
        assert words in str(load_settings(path).problems[0])


def test_what_changed_between_two_settings() -> None:
    new = Settings(kubelet=Kubelet(poll=1.0), vendors=("x",))
    assert changed_keys(Settings(), new) == ("kubelet.poll", "vendors")
    assert changed_keys(new, new) == ()
    assert changed_keys(Usb("a", "b"), Usb("a", "b", "c")) == ("serialNumber",)
    assert changed_keys(new, None) == ("",)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_settings_or_problems(data: bytes) -> None:
    loaded = load_bytes(data, "f", Settings)
    assert (loaded.value is None) == bool(loaded.problems)
    assert all(json.dumps(msgspec.to_builtins(problem)) for problem in loaded.problems)
    assert all("\n" not in str(problem) and "\0" not in str(problem) for problem in loaded.problems)


keys = (
    st.sampled_from([*Everything.__struct_fields__, "vendor", "product", "type", "<<", "1", "null", "on"]) | st.text()
)
trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["left", "right", "012", "0x1f", "12:30:45", "on", "Device", "packed", "~"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=25,
)


@given(st.dictionaries(keys, trees, max_size=8), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_yaml_gives_a_value_or_problems(tree: Any, flow: bool) -> None:
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True)
    for kind in (Everything, Settings):
        loaded: Loaded[Any] = load_bytes(text.encode("utf-8", "surrogatepass"), "f", kind)
        assert (loaded.value is None) == bool(loaded.problems)
        if loaded.value is not None:
            msgspec.json.encode(loaded.value)


# JSON writes characters beyond U+FFFF as two escapes, which YAML does not know.
encodable = st.text(
    st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"], exclude_characters="\0"), max_size=50
)


@given(
    st.builds(
        Everything,
        text=encodable,
        number=st.floats(allow_nan=False, allow_infinity=False),
        whole=st.integers(1, 64),
        flag=st.booleans(),
        mode=st.sampled_from(Mode),
        maybe=st.none() | st.integers(-(2**63), 2**63 - 1),
        env=st.dictionaries(encodable.filter(bool), encodable, max_size=4),
        names=st.frozensets(encodable, max_size=4),
        usb=st.lists(st.builds(Usb, vendor=encodable, product=encodable), max_size=3).map(tuple),
    )
)
@settings(max_examples=150, deadline=None)
def test_a_value_written_as_json_comes_back_the_same(config: Everything) -> None:
    """Through PyYAML's own writer it would be the same with quotes; JSON is what scripts write."""
    text = json.dumps(msgspec.to_builtins(config))
    assert value(text) == config


def test_a_file_of_rubbish_keys_is_answered_quickly() -> None:
    text = "".join(f"keey{number}: 1\n" for number in range(20000))
    assert "more problems are not shown" in str(load(text).problems[-1])


def test_load_struct_reads_any_struct(tmp_path: Path) -> None:
    (tmp_path / "u.yaml").write_text("vendor: 0bda\nproduct: 2838\n")
    assert load_struct(str(tmp_path / "u.yaml"), Usb).require() == Usb("0bda", "2838")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("kubelet: {poll: 1:30}", "write a plain number of seconds: 90"),
        ("kubelet: {poll: 01:00:05}", "write a plain number of seconds: 3605"),
        ("kubelet: {poll: 1m30s}", "write a plain number of seconds: 90"),
        ("log: info", "write log: {level: info}"),
        ("kubelet: top", "write kubelet: {layout: top}"),
        ("kubelet: 5", "its keys, one a line below it: layout, poll, refused_retry, verify"),
    ],
)
def test_a_value_in_an_everyday_form_gets_a_hint_how_to_write_it(text: str, hint: str) -> None:
    (problem,) = load(text, Settings).problems
    assert problem.hint == hint


def test_a_simulated_node_that_is_not_there_gets_a_hint_about_nodes_not_settings() -> None:
    with pytest.raises(ConfigError) as caught:
        load_node("/nonexistent/node.yaml")
    (problem,) = caught.value.problems
    assert "workshop" in problem.hint
    assert "--config" not in problem.hint
