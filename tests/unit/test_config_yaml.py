"""The YAML reader: what arrives, what is refused, and where the errors point."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from devherd.config.problems import Problem, Report
from devherd.config.scalars import resolve
from devherd.config.yaml12 import Broken, Mapping, Node, Scalar, Sequence, decode_utf8, parse
from hypothesis import example, given, settings
from hypothesis import strategies as st

LOADERS = [yaml.BaseLoader, *([yaml.CBaseLoader] if hasattr(yaml, "CBaseLoader") else [])]


def read(text: str, loader: Any = None) -> tuple[Any, tuple[Problem, ...]]:
    report = Report("f")
    node = parse(text, report, loader)
    return (plain(node) if node is not None else None), report.problems()


def plain(node: Node) -> Any:
    if isinstance(node, Scalar):
        return resolve(node.text) if node.plain else node.text
    if isinstance(node, Mapping):
        return {pair.key.text: plain(pair.value) for pair in node.pairs}
    return [plain(item) for item in node.items] if isinstance(node, Sequence) else "<broken>"


@pytest.mark.parametrize(
    "text",
    [
        *["on", "off", "yes", "no", "y", "n", "On", "OFF", "YES"],
        *["12:30:45", "1:20", "0000:03:00.0", "190:20:30.15", "2024-01-31", "2024-01-31T10:00:00Z"],
        *["0123", "00", "-012", "0o89", "0x", "0xfg", "0b101", "1_000", "1e", "e3", "0bda", "010.5", "+", "."],
        *["=", "nulL", "tRue", "Inf", ".infinity", "nan", "1,5", "٣", "1 2"],
    ],
)
def test_text_of_the_core_schema_stays_text(text: str) -> None:
    assert read(f"key: {text}") == ({"key": text}, ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("0", 0), ("-0", 0), ("+5", 5), ("12345678901", 12345678901), ("0x1F", 31), ("0o17", 15)],
        *[("1e3", 1000.0), ("-.5", -0.5), ("3.", 3.0), ("0.1", 0.1), (".inf", float("inf"))],
        *[("true", True), ("FALSE", False), ("null", None), ("~", None), ("", None)],
    ],
)
def test_numbers_booleans_and_null(text: str, value: object) -> None:
    found = read(f"key: {text}")[0]["key"]
    assert (type(found), found) == (type(value), value)


def test_quoted_and_block_text_is_never_a_number() -> None:
    found, problems = read("a: '5'\nb: \"true\"\nc: |\n  5\nd: >-\n  null\n")
    assert found == {"a": "5", "b": "true", "c": "5\n", "d": "null"}
    assert not problems


def test_every_pci_bus_in_every_style() -> None:
    for bus in range(256):
        address = f"0000:{bus:02x}:00.0"
        text = f"block: {address}\nflow: [{address}, {{key: {address}}}]\n{address}: key\n"
        found, problems = read(text)
        assert not problems
        assert found == {"block": address, "flow": [address, {"key": address}], address: "key"}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: 1\nb: &x 2\n", 2, 4, "anchor"),
        ("a: 1\nb: *x\n", 2, 4, "alias"),
        ("a: !!str 1\n", 1, 4, "tags"),
        ("a: ! 1\n", 1, 4, "tags"),
        ("a: !!map {}\n", 1, 4, "tags"),
        ("a: {b: 1}\n<<: {c: 2}\n", 2, 1, "merge"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, 'the key "a" is here twice; first in line 1'),
        ("a: 1\n'a': 3\n", 2, 1, "twice"),
        ("? [a]\n: 1\n", 1, 3, "a key must be"),
        ("a: 1\n~: 1\n", 2, 1, "key is empty"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second document"),
        ("%YAML 1.1\n---\na: 1\n", 1, 1, "YAML 1.2"),
        ("%TAG !x! tag:x.org,2000:\n---\na: 1\n", 1, 1, "tags are not read"),
        ("a:\n\tb: 1\n", 2, 1, "not valid YAML"),
        ("a: b: c\n", 1, 5, "not valid YAML"),
        ("a: [1,\n", 2, 1, "not valid YAML"),
        ('a: "x\n', 2, 1, "not valid YAML"),
        ("a: @x\n", 1, 4, "not valid YAML"),
    ],
)
def test_what_is_refused_and_where(loader: Any, text: str, line: int, column: int, words: str) -> None:
    problem = read(text, loader)[1][0]
    assert (problem.line, problem.column) == (line, column)
    assert words in problem.message


def test_version_1_2_and_one_document_marker_are_fine() -> None:
    assert read("%YAML 1.2\n---\na: 1\n...\n") == ({"a": 1}, ())


def test_several_problems_of_one_file_come_together() -> None:
    problems = read("a: &x 1\nb: *x\nb: 2\nc: !t {d: 1, d: 2}\n")[1]
    assert [(problem.line, problem.key) for problem in problems] == [(1, "a"), (2, "b"), (3, "b"), (4, "c"), (4, "c.d")]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("text", ["[" * 500, "{a: " * 500, "- " * 500, "? " * 500, "a: [" + "[" * 99 + "]" * 100])
def test_hostile_nesting_is_refused(loader: Any, text: str) -> None:
    node, problems = read(text, loader)
    assert node is None
    assert any("nested deeper" in problem.message or "nesting" in problem.message for problem in problems)


@pytest.mark.parametrize(
    ("data", "line", "column", "words"),
    [
        (b"a: 1\nb: \xff\n", 2, 4, "byte 0xff is not UTF-8"),
        (b"a: \xed\xa0\x80", 1, 4, "not UTF-8"),
        ("a: 1\nb: 2".encode("utf-16"), 1, 1, "not UTF-8"),
        (b"a: 1\r\nb: x\0y\n", 2, 5, "U+0000"),
        ("a: x\u2028y\n".encode(), 1, 5, "U+2028"),
        ("a: \u0085y\n".encode(), 1, 4, "U+0085"),
        (b"a: \x1b[31m\n", 1, 4, "U+001B"),
    ],
)
def test_odd_bytes_are_named_with_their_place(data: bytes, line: int, column: int, words: str) -> None:
    report = Report("f")
    assert decode_utf8(data, report) is None
    problem = report.problems()[0]
    assert (problem.line, problem.column) == (line, column)
    assert words in problem.message


def test_all_odd_characters_are_reported_and_a_flood_is_counted() -> None:
    report = Report("f")
    assert decode_utf8(b"a: \x01\nb: \x02\n", report) is None
    assert [problem.line for problem in report.problems()] == [1, 2]
    flood = Report("f")
    assert parse("\n".join("a: 1" for _ in range(1000)), flood) is not None
    assert len(flood.problems()) == 101
    assert "899 more" in flood.problems()[-1].message


def test_byte_order_mark_and_unicode_are_fine() -> None:
    report = Report("f")
    assert decode_utf8("\ufeffä: 😀".encode(), report) == "ä: 😀"
    assert read("ä: 😀\nb: &x 1")[1][0].line == 2


# JSON writes characters beyond U+FFFF as two escapes, which YAML does not know; a key has an end (1024).
texts = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=50)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


@given(values)
@settings(max_examples=150, deadline=None)
def test_json_is_yaml_and_arrives_unchanged(value: Any) -> None:
    """What a script writes as JSON is read as it was meant."""
    assert read(json.dumps({"value": value})) == ({"value": value}, ())


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("a: &b !c *d\n<<: {? [x] : y}\n")
@settings(max_examples=300, deadline=None)
def test_both_parsers_survive_any_text(text: str) -> None:
    for loader in LOADERS:
        read(text, loader)


PIECES = "a|b|: |:|- |\n|\n  |\n    |{|}|[|]|, |'|\"|>|#|&x |*x|!t |---\n|...\n|? |<<|0x1f|\t|\\|~|12:30:45|@|`|\r"
yamlish = st.lists(st.sampled_from([*PIECES.split("|"), "|"]), max_size=30).map("".join)


@given(yamlish)
@settings(max_examples=500, deadline=None)
def test_yaml_like_rubbish_gives_a_tree_or_a_problem_and_never_two_meanings(text: str) -> None:
    clean: list[str] = []
    for loader in LOADERS:
        report = Report("f")
        node = parse(text, report, loader)
        assert node is not None or report.problems()
        assert not isinstance(node, Broken) or report.problems()
        assert all(problem.line >= 1 and problem.column >= 1 for problem in report.problems())
        if node is not None and not report:
            clean.append(repr(plain(node)))
    assert len(set(clean)) <= 1
