"""Globs, zipping, placeholders, names and the check of a configuration."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
from devherd.config.load import load_plugin_config
from devherd.host import Host
from devherd.settings import Paths, Settings
from devherd_generic import globs, names, templates
from devherd_generic.config import Config
from devherd_generic.manifest import MANIFEST
from devherd_generic.units import device_id, zip_matches
from devherd_generic.validate import validate
from devherd_generic.vendor import make
from hypothesis import assume, given
from hypothesis import strategies as st

names_of_files = st.text(string.ascii_lowercase[:4] + "0.-*?[]\\", min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)
simple_globs = st.text("ab*?", min_size=1, max_size=6).filter(lambda text: "**" not in text)


def quoted(name: str) -> str:
    return "".join("\\" + char if char in "*?[]\\" else char for char in name)


def fits(glob: str, name: str) -> bool:
    (component,) = globs.parse("/" + glob).components
    return component.names.fullmatch(name) is not None


@given(names_of_files)
def test_an_escaped_name_matches_itself_alone(name: str) -> None:
    glob = globs.parse("/" + quoted(name))
    assert glob.is_literal
    assert glob.path == "/" + name
    assert fits(quoted(name), name)
    assert not fits(quoted(name), name + "x")


@given(simple_globs, st.text("ab.", max_size=6))
def test_stars_and_question_marks_are_those_of_the_shell(glob: str, name: str) -> None:
    assert fits(glob, name) == fnmatch.fnmatchcase(name, glob)


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("tty[A-Z]*", ["ttyS0", "ttyUSB1"], ["tty0", "tty"]),
        ("x[^0-9]", ["xa", "x-", "x["], ["x1", "x", "x/"]),
        ("[a\\]b]", ["a", "]", "b"], ["\\", "c"]),
        ("[!a]", ["!", "a"], ["b"]),
        ("*", ["a", ".hidden", "a\nb"], ["a/b"]),
        ("[.-9]", [".", "0"], ["/"]),
    ],
)
def test_brackets(glob: str, yes: list[str], no: list[str]) -> None:
    assert all(fits(glob, name) for name in yes)
    assert not any(fits(glob, name) for name in no)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dev/x", "absolute"),
        ("", "absolute"),
        ("/dev//x", "without //"),
        ("/dev/../x", "without //"),
        ("/dev/x/", "without //"),
        ("/dev/[x", "without its ]"),
        ("/dev/[]", "empty"),
        ("/dev/[z-a]", "backwards"),
        ("/dev/[-a]", "unfinished"),
        ("/dev/x\\", "backslash"),
        ("/dev/**/x", "**"),
    ],
)
def test_bad_globs_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(globs.GlobError) as caught:
        globs.parse(text)
    assert message in str(caught.value)


@given(st.text())
def test_any_text_is_a_glob_or_a_glob_error(text: str) -> None:
    try:
        globs.parse(text)
    except globs.GlobError:
        return


@given(simple_globs, simple_globs)
def test_overlap_is_true_exactly_when_a_name_fits_both(left: str, right: str) -> None:
    (mine,), (other,) = globs.parse("/" + left).components, globs.parse("/" + right).components
    # A name that fits both, if there is one, is made of the globs' letters and not longer than both together.
    longest = len(left.replace("*", "")) + len(right.replace("*", ""))
    assume(longest <= 8)
    candidates = ("".join(chars) for size in range(longest + 1) for chars in itertools.product("abc", repeat=size))
    expected = any(mine.names.fullmatch(name) and other.names.fullmatch(name) for name in candidates)
    assert globs.overlap(mine.tokens, other.tokens) == expected
    assert globs.overlap(other.tokens, mine.tokens) == expected


def test_find_expands_every_level_and_follows_linked_folders(tmp_path: Path) -> None:
    for path in ("a1/x", "a2/x", "a2/y", "b1/x"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "a3").symlink_to("a2")
    (tmp_path / "a4").touch()
    view = Host(Paths(root=str(tmp_path))).view()
    found = globs.find(view, globs.parse("/a*/[xy]"))
    assert [path for path, _ in found] == ["/a1/x", "/a2/x", "/a2/y", "/a3/x", "/a3/y"]
    assert [entry.path for _, entry in found][-1] == "/a2/y"
    assert globs.find(view, globs.parse("/none/*")) == []
    assert [path for path, _ in globs.find(view, globs.parse("/"))] == ["/"]


columns = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=4)


@given(columns)
def test_zip_pairs_by_index_up_to_the_shortest_without_repeats(pairs: list[tuple[int, int]]) -> None:
    counts, limits = [count for count, _ in pairs], [limit for _, limit in pairs]
    units = list(zip_matches(counts, limits))
    assert len(set(units)) == len(units)
    if not pairs:
        assert units == []
        return
    # The plain meaning, without the shortcut: each list repeated limit times, zipped.
    plain = list(zip(*(list(range(count)) * limit for count, limit in pairs), strict=False))
    assert units == list(dict.fromkeys(plain))
    for column, (count, limit) in enumerate(pairs):
        for match in range(count):
            assert sum(unit[column] == match for unit in units) <= limit


def test_zip_of_huge_limits_is_quick() -> None:
    assert len(list(zip_matches([1, 3], [65536, 65536]))) == 3


@given(st.integers(0, 99), st.lists(st.text(string.printable, min_size=1), max_size=3))
def test_id_is_the_sha1_of_copy_and_paths(copy: int, paths: list[str]) -> None:
    assert device_id(copy, paths) == hashlib.sha1((str(copy) + "".join(paths)).encode()).hexdigest()


def test_known_ids_of_fuse() -> None:
    assert device_id(0, ["/dev/fuse"]) == "a68db766f638034740111848aafee2d2dcd6b642"


@given(st.dictionaries(st.sampled_from(templates.NAMES), st.text()), st.text())
def test_templates_fill_in_and_keep_the_rest(values: dict[str, str], text: str) -> None:
    full = dict.fromkeys(templates.NAMES, "") | values
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert templates.parse(escaped).render(full) == text
    assert templates.parse(escaped + "{id}").render(full) == text + full["id"]


@pytest.mark.parametrize("text", ["{", "}", "{path", "{paths}", "{}", "{path.__class__}", "{0}", "{id!r}"])
def test_other_braces_are_errors_that_help(text: str) -> None:
    with pytest.raises(ValueError, match=r"brace|lone"):
        templates.parse(text)


@pytest.mark.parametrize(
    "name", ["devherd.io/x", "a/b", "example.org/A_b.c-1", "x.example.org/" + "n" * 63, "smarter-devices/net_tun"]
)
def test_good_resource_names(name: str) -> None:
    assert names.resource_problem(name) == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x", "no resource name"),
        ("/x", "no domain"),
        ("Example.org/x", "no domain"),
        ("a/b/c", "no resource name"),
        ("example.org/" + "n" * 64, "64 characters"),
        ("kubernetes.io/x", "belongs to Kubernetes"),
        ("node.kubernetes.io/x", "belongs to Kubernetes"),
        ("requests.example.org/x", "requests."),
        ("example.org/-x", "no resource name"),
        ("example.org/x\n", "no resource name"),
        (".".join(["d" * 60] * 5) + "/x", "at most 244"),
    ],
)
def test_bad_resource_names_say_why(name: str, text: str) -> None:
    assert text in names.resource_problem(name)


def problems(*rules: dict[str, Any], **more: Any) -> list[str]:
    config = msgspec.convert({"devices": list(rules), **more}, Config)
    return [f"{'.'.join(map(str, key))}: {text}" for key, text in validate(config)]


def path_rule(**path: Any) -> dict[str, Any]:
    return {"name": "x", "groups": [{"paths": [{"path": "/dev/x", **path}]}]}


@pytest.mark.parametrize(
    ("rule", "key", "text"),
    [
        (path_rule(path="/dev/[x"), "devices.0.groups.0.paths.0.path", "without its ]"),
        (path_rule(path="dev/x"), "devices.0.groups.0.paths.0.path", "absolute"),
        (path_rule(path="/dev/x\0"), "devices.0.groups.0.paths.0.path", "NUL"),
        (path_rule(path="/dev/" + "x" * 5000), "devices.0.groups.0.paths.0.path", "longer than"),
        (path_rule(permissions="zz"), "devices.0.groups.0.paths.0.permissions", "'zz'"),
        (path_rule(permissions="rr"), "devices.0.groups.0.paths.0.permissions", "at most once"),
        (path_rule(readOnly=True), "devices.0.groups.0.paths.0.readOnly", "type: Mount"),
        (path_rule(type="Mount", path="/srv/x", permissions="r"), "devices.0.groups.0.paths.0.permissions", "Device"),
        (path_rule(mountPath="x"), "devices.0.groups.0.paths.0.mountPath", "absolute"),
        (path_rule(mountPath="/x/../y"), "devices.0.groups.0.paths.0.mountPath", "/y"),
        (path_rule(mountPath="/"), "devices.0.groups.0.paths.0.mountPath", "whole file system"),
        (path_rule(mountPath="/proc/x"), "devices.0.groups.0.paths.0.mountPath", "/proc"),
        ({"name": "x", "groups": []}, "devices.0.groups", "at least one"),
        ({"name": "x", "groups": [{}]}, "devices.0.groups.0", "either paths or match"),
        ({"groups": [{"paths": [{"path": "/dev/x"}]}]}, "devices.0.groups.0", "needs a name"),
        ({"groups": [{"match": "("}]}, "devices.0.groups.0.match", "no regular expression"),
        ({"groups": [{"match": "^/dev/x"}]}, "devices.0.groups.0.match", "below /dev"),
        ({"groups": [{"match": ".*"}]}, "devices.0.groups.0.match", "/dev/mem"),
        ({**path_rule(), "name": "n" * 64}, "devices.0.name", "64 characters"),
        ({**path_rule(), "name": "Kubernetes.io/x"}, "devices.0.name", "no domain"),
        ({**path_rule(), "env": {"A=B": "x"}}, "devices.0.env.A=B", "malformed"),
        ({**path_rule(), "env": {"A": "{pth}"}}, "devices.0.env.A", "{path}"),
        ({**path_rule(), "annotations": {"kubernetes.io/x": "y"}}, "devices.0.annotations.kubernetes.io/x", "reserved"),
        ({**path_rule(), "cdi": ["x"]}, "devices.0.cdi.0", "vendor/class=device"),
        ({**path_rule(), "cdi": ["a.b/c={path}"]}, "devices.0.cdi.0", "cannot hold a path"),
        ({**path_rule(), "numa": [0, 64]}, "devices.0.numa.1", "64"),
        ({**path_rule(), "mounts": [{"hostPath": "/srv/*/../x"}]}, "devices.0.mounts.0.hostPath", "/srv/x"),
        ({**path_rule(), "mounts": [{"hostPath": "/etc"}]}, "devices.0.mounts.0.hostPath", "dangerous: true"),
        (path_rule(path="/dev/sd*"), "devices.0.groups.0.paths.0.path", "narrow it"),
    ],
)
def test_case_21_each_mistake_is_told_with_its_key(rule: dict[str, Any], key: str, text: str) -> None:
    (problem,) = problems(rule)
    assert problem.startswith(key + ": ")
    assert text in problem


def test_case_21_duplicates_name_each_other_and_everything_is_told_at_once() -> None:
    found = problems(path_rule(permissions="q"), path_rule(), {**path_rule(), "name": "devherd.io/x"}, domain="Bad")
    assert len([problem for problem in found if problem.startswith("domain: ")]) == 1
    assert any(p.startswith("devices.1.name: ") and "devices[0]" in p for p in found)
    assert any(p.startswith("devices.0.groups.0.paths.0.permissions: ") for p in found)
    assert any("devices[0]" in p for p in problems(path_rule(), {**path_rule(), "name": "devherd.io/x"}))


def test_a_container_folder_may_end_in_a_slash() -> None:
    assert problems(path_rule(mountPath="/dev/serial/")) == []


def load(tmp_path: Path, text: str) -> tuple[Config | None, str]:
    (tmp_path / "plugins.d").mkdir()
    (tmp_path / "plugins.d/generic.yaml").write_text(text)
    loaded = load_plugin_config(Settings(paths=Paths(etc=str(tmp_path))), MANIFEST)
    return loaded.value, "\n".join(str(problem) for problem in loaded.problems)


def test_case_21_the_file_the_key_and_the_nearest_word_are_named(tmp_path: Path) -> None:
    value, text = load(
        tmp_path,
        """\
devices:
  - name: capture
    groups:
      - count: 1
        paths:
          - {path: /dev/x, mountpath: /dev/y, type: device}
          - {path: "/dev/[", permissions: zz}
""",
    )
    assert value is None
    assert "generic.yaml" in text
    assert "mountPath" in text
    assert "Device" in text


def test_case_21_what_only_the_rules_know_has_its_line_too(tmp_path: Path) -> None:
    value, text = load(
        tmp_path,
        """\
devices:
  - name: capture
    groups:
      - paths:
          - path: /dev/[x
            permissions: zz
""",
    )
    assert value is None
    assert "5" in text
    assert "6" in text
    assert "'zz'" in text


def test_a_configuration_written_for_the_well_known_plugin_works_as_it_is(tmp_path: Path) -> None:
    value, text = load(
        tmp_path,
        """\
devices:
- name: capture
  groups:
  - count: 1
    paths:
    - path: /dev/snd/controlC1
      mountPath: /dev/snd/controlC0
      permissions: mrw
      type: Device
      limit: 1
      optional: false
    - {path: /run/pulse, type: Mount, readOnly: true}
- name: "on"
  groups: [{paths: [{path: /dev/null}]}]
  env: {ADDRESS: 0000:03:00.0, ANSWER: yes, OCTAL: 012, AT: 12:30:45}
""",
    )
    assert text == ""
    assert value is not None
    assert value.devices[1].env == {"ADDRESS": "0000:03:00.0", "ANSWER": "yes", "OCTAL": "012", "AT": "12:30:45"}
    assert [resource.name for resource in make(value, Host(Paths())).scan().resources] == [
        "devherd.io/capture",
        "devherd.io/on",
    ]


texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["/dev/x", "/dev/[", "/dev/*", "net/tun", "{path}", "a/b", "("])
)
paths_drawn = st.fixed_dictionaries(
    {"path": texts}, optional={"mountPath": texts, "permissions": texts, "type": st.sampled_from(["Device", "Mount"])}
)
groups_drawn = st.fixed_dictionaries(
    {}, optional={"paths": st.lists(paths_drawn, max_size=2), "match": texts, "count": st.integers(1, 3)}
)
rules_drawn = st.fixed_dictionaries(
    {"groups": st.lists(groups_drawn, max_size=2)},
    optional={
        "name": texts,
        "env": st.dictionaries(texts, texts, max_size=2),
        "annotations": st.dictionaries(texts, texts, max_size=2),
        "cdi": st.lists(texts, max_size=2),
        "mounts": st.lists(st.fixed_dictionaries({"hostPath": texts, "containerPath": texts}), max_size=1),
        "numa": st.one_of(st.none(), st.lists(st.integers(), max_size=2)),
        "dangerous": st.booleans(),
    },
)


@given(st.lists(rules_drawn, max_size=3), texts)
def test_any_configuration_is_judged_and_scanned_without_an_exception(rules: list[dict[str, Any]], domain: str) -> None:
    config = msgspec.convert({"devices": rules, "domain": domain}, Config)
    validate(config)
    inventory = make(config, Host(Paths(root="/nonexistent", dev="/nonexistent/dev", sys="/nonexistent/sys"))).scan()
    msgspec.msgpack.encode(inventory)
    assert not any("internal error" in skipped.reason for skipped in inventory.skipped)


def test_every_example_of_the_manual_is_a_good_configuration(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/plugins/generic.md").read_text()
    examples = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    assert len(examples) >= 4
    for number, example in enumerate(examples):
        folder = tmp_path / str(number)
        folder.mkdir()
        value, text = load(folder, example)
        assert value is not None, text
