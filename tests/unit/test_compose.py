"""The answer a container gets for several devices."""

from __future__ import annotations

import string

import pytest
from devherd.compose import ComposeError, check_resources, compose
from devherd.values import Composed, Mount, Node, Parts
from hypothesis import given, settings
from hypothesis import strategies as st


def node(host: str = "/dev/a", container: str = "", permissions: str = "rw") -> Node:
    return Node(host, container or host, permissions, "c", 1, 3, "c:1:3")


def refused(*parts: Parts) -> str:
    with pytest.raises(ComposeError) as caught:
        compose(parts)
    text = str(caught.value)
    assert 0 < len(text) < 250
    return text


def test_nothing_makes_an_empty_answer() -> None:
    assert compose([]) == Composed((), (), {}, {}, ())


def test_parts_are_joined_in_order() -> None:
    mount = Mount("/opt/x", "/usr/x", True)
    result = compose(
        [
            Parts((node("/dev/b"),), (mount,), {"A": "1"}, {"vendor.example/a": "x"}, ("vendor.example/gpu=1",)),
            Parts((node("/dev/a"),), (), {"B": "2"}, {}, ("vendor.example/gpu=0",)),
        ]
    )
    assert [n.host_path for n in result.nodes] == ["/dev/b", "/dev/a"]
    assert result.mounts == (mount,)
    assert result.env == {"A": "1", "B": "2"}
    assert result.annotations == {"vendor.example/a": "x"}
    assert result.cdi == ("vendor.example/gpu=1", "vendor.example/gpu=0")


def test_what_several_devices_share_comes_once() -> None:
    part = Parts((node(),), (Mount("/m", "/m"),), {"A": "1"}, {"a": "b"}, ("v/c=d",))
    assert compose([part, part]) == compose([part])


def test_the_same_node_gets_the_union_of_permissions() -> None:
    result = compose([Parts((node(permissions="r"),)), Parts((node(permissions="mw"),))])
    assert [n.permissions for n in result.nodes] == ["rwm"]


def test_the_same_mount_is_writable_if_one_device_needs_it() -> None:
    result = compose([Parts(mounts=(Mount("/m", "/h", True),)), Parts(mounts=(Mount("/m", "/h"),))])
    assert result.mounts == (Mount("/m", "/h", False),)


def test_differing_values_are_joined_in_order_each_once() -> None:
    parts = [Parts(env={"IDS": value}, annotations={"ids": value}) for value in ("2", "0", "2", "1")]
    result = compose(parts)
    assert result.env == {"IDS": "2,0,1"}
    assert result.annotations == {"ids": "2,0,1"}


def test_one_container_path_cannot_be_two_devices() -> None:
    text = refused(Parts((node("/dev/a", "/dev/x"),)), Parts((node("/dev/b", "/dev/x"),)))
    assert "/dev/x" in text
    assert "/dev/a" in text
    assert "/dev/b" in text
    refused(Parts(mounts=(Mount("/m", "/a"),)), Parts(mounts=(Mount("/m", "/b"),)))
    refused(Parts((node("/dev/a"),), (Mount("/dev/a", "/h"),)))


@pytest.mark.parametrize("permissions", ["", "x", "rwx", "rr", "RW", "r w"])
def test_permissions_are_letters_of_rwm(permissions: str) -> None:
    assert "permissions" in refused(Parts((node(permissions=permissions),)))


@pytest.mark.parametrize(
    "path", ["", "dev/a", "/dev/../etc", "/dev//a", "/dev/a/", "/dev/./a", "//dev/a", "/dev/a\0b", "."]
)
def test_paths_are_absolute_and_normalised(path: str) -> None:
    refused(Parts((Node(path, "/dev/a", "rw", "c", 1, 3, ""),)))
    refused(Parts((Node("/dev/a", path, "rw", "c", 1, 3, ""),)))
    refused(Parts(mounts=(Mount(path, "/h"),)))
    refused(Parts(mounts=(Mount("/m", path),)))


def test_nothing_covers_the_containers_root() -> None:
    refused(Parts(mounts=(Mount("/", "/h"),)))


@pytest.mark.parametrize("key", ["", "1A", "A=B", "A B", "Ä", "A\0"])
def test_malformed_environment_keys(key: str) -> None:
    refused(Parts(env={key: "x"}))


def test_environment_values_hold_no_nul() -> None:
    refused(Parts(env={"A": "x\0y"}))


@pytest.mark.parametrize("key", ["PCIDEVICE_VENDOR_COM_NIC", "_x", "with.dot", "with-dash"])
def test_good_environment_keys(key: str) -> None:
    assert compose([Parts(env={key: "x"})]).env == {key: "x"}


@pytest.mark.parametrize(
    "key", ["", "a/b/c", "/a", "a/", "UPPER.example/a", "-a", "a b", "x" * 64, "a..b/c", "a" * 254 + "/c"]
)
def test_malformed_annotation_keys(key: str) -> None:
    assert "malformed" in refused(Parts(annotations={key: "x"}))


@pytest.mark.parametrize("key", ["kubernetes.io/a", "x.kubernetes.io/a", "k8s.io/a", "node.k8s.io/b"])
def test_reserved_annotation_keys(key: str) -> None:
    assert "reserved" in refused(Parts(annotations={key: "x"}))


@pytest.mark.parametrize("key", ["io.vendor.config", "vendor.example/a.b_c-D", "notkubernetes.io/a", "cdi.k8s.io/x"])
def test_good_annotation_keys(key: str) -> None:
    assert compose([Parts(annotations={key: "x"})]).annotations == {key: "x"}


@pytest.mark.parametrize(
    "name", ["", "gpu", "vendor/gpu", "vendor/gpu=", "=0", "vendor=0", "1v/gpu=0", "v/gpu=a b", "v/g/h=0"]
)
def test_malformed_cdi_names(name: str) -> None:
    assert "CDI" in refused(Parts(cdi=(name,)))


@pytest.mark.parametrize("name", ["nvidia.com/gpu=all", "vendor.example/nic=0000:03:00.0", "v/c=0"])
def test_good_cdi_names(name: str) -> None:
    assert compose([Parts(cdi=(name,))]).cdi == (name,)


def test_refusals_stay_short_whatever_the_input() -> None:
    for part in (
        Parts(env={"=" * 10_000: ""}),
        Parts(annotations={"=" * 10_000: ""}),
        Parts(cdi=("=" * 10_000,)),
        Parts((node("x" * 10_000),)),
        Parts((node("/" + "x" * 10_000, permissions="z"),)),
        Parts((node("/a", "/x"), node("/" + "b" * 10_000, "/x"))),
        Parts((node("/" + "x" * 10_000),), (Mount("/" + "x" * 10_000, "/a"),)),
    ):
        refused(part)


def test_two_resources_that_set_a_key_differently_are_named() -> None:
    warnings = check_resources(
        {
            "v/a": [Parts(env={"IDS": "1", "MODE": "x"}), Parts(env={"IDS": "2"})],
            "v/b": [Parts(env={"IDS": "9", "MODE": "x"}, annotations={"k": "1"})],
            "v/c": [Parts(env={"OTHER": "1"}, annotations={"k": "2"})],
        }
    )
    assert len(warnings) == 2
    assert "annotation k" in warnings[0]
    assert "v/b and v/c" in warnings[0]
    assert "environment variable IDS" in warnings[1]
    assert "v/a and v/b" in warnings[1]


def test_two_resources_that_put_different_devices_at_one_path_are_named() -> None:
    warnings = check_resources(
        {"v/a": [Parts((node("/dev/a", "/dev/x"),))], "v/b": [Parts((node("/dev/b", "/dev/x"),))]}
    )
    assert len(warnings) == 1
    assert "/dev/x" in warnings[0]


def test_one_resource_alone_is_never_warned_of() -> None:
    assert check_resources({"v/a": [Parts(env={"IDS": "1"}), Parts(env={"IDS": "2"})]}) == []
    assert check_resources({}) == []


any_text = st.text(string.printable + "\0é", max_size=8)
path = st.one_of(st.sampled_from(["/dev/a", "/dev/b", "/m"]), any_text)
any_parts = st.builds(
    Parts,
    nodes=st.lists(
        st.builds(Node, path, path, st.text("rwmx", max_size=3), st.just("c"), st.just(1), st.just(1), st.just("")),
        max_size=2,
    ).map(tuple),
    mounts=st.lists(st.builds(Mount, path, path, st.booleans()), max_size=2).map(tuple),
    env=st.dictionaries(st.one_of(st.just("A"), any_text), any_text, max_size=2),
    annotations=st.dictionaries(st.one_of(st.just("a"), any_text), any_text, max_size=2),
    cdi=st.lists(st.one_of(st.just("v/c=d"), any_text), max_size=2).map(tuple),
)


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(any_parts, max_size=3))
def test_any_input_is_composed_consistently_or_refused(parts: list[Parts]) -> None:
    check_resources({str(i): [part] for i, part in enumerate(parts)})
    try:
        result = compose(parts)
    except ComposeError:
        refused(*parts)
        return
    places = [n.container_path for n in result.nodes] + [m.container_path for m in result.mounts]
    assert len(places) == len(set(places))
    assert set(result.cdi) == {name for part in parts for name in part.cdi}
    assert result.env.keys() == {key for part in parts for key in part.env}
    for part in parts:
        for wanted in part.nodes:
            (got,) = [n for n in result.nodes if n.container_path == wanted.container_path]
            assert got.host_path == wanted.host_path
            assert set(wanted.permissions) <= set(got.permissions)
    again = Parts(result.nodes, result.mounts, result.env, result.annotations, result.cdi)
    assert compose([again]) == result
