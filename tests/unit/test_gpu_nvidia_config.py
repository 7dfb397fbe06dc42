"""Mistakes in gpu-nvidia.yaml: one clear message each, at the right key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from devherd.config.load import load_struct
from devherd_gpu.common import naming, selectors, sharing
from devherd_gpu.nvidia.config import Config
from devherd_gpu.nvidia.manifest import MANIFEST
from devherd_gpu.nvidia.validate import validate

MIG_UUID = "MIG-00000000-0000-5000-8000-000000000000"


def problems(**config: Any) -> list[tuple[tuple[str | int, ...], str]]:
    return validate(msgspec.convert(config, Config))


@pytest.mark.parametrize(
    ("config", "key", "word"),
    [
        # two strategies that exclude each other
        ({"device_list": ["envvar", "volume-mounts"]}, ("device_list",), "exclude each other"),
        ({"device_list": ["envvar", "envvar"]}, ("device_list", 1), "twice"),
        ({"pass_device_specs": True}, ("pass_device_specs",), "no effect"),
        (
            {"sharing": [{"replicas": 2, "mode": "mps"}, {"replicas": 2, "select": ["0"]}]},
            ("sharing", 0, "mode"),
            "mps and time-slicing exclude each other",
        ),
        # replicas on MIG
        (
            {"mig": "single", "sharing": [{"replicas": 2, "resource": "nvidia.com/mig-1g.10gb"}]},
            ("sharing", 0, "resource"),
            "with mig: single there is no nvidia.com/mig-1g.10gb",
        ),
        (
            {"sharing": [{"replicas": 2, "resource": "mig-1g.10gb"}]},
            ("sharing", 0, "resource"),
            "with mig: none there is no nvidia.com/mig-1g.10gb",
        ),
        ({"mig": "single", "sharing": [{"replicas": 2, "mode": "mps"}]}, ("sharing", 0, "mode"), "MPS does not work"),
        (
            {"mig": "mixed", "sharing": [{"replicas": 2, "mode": "mps"}]},
            ("sharing", 0, "mode"),
            "resource: nvidia.com/gpu",
        ),
        (
            {"sharing": [{"replicas": 2, "mode": "mps", "one_each": False}]},
            ("sharing", 0, "one_each"),
            "one share only",
        ),
        # unknown profiles
        ({"mig": "mixed", "include": ["profile:9g.10gb"]}, ("include", 0), "no MIG profile"),
        ({"mig": "mixed", "include": ["profile:1g10gb"]}, ("include", 0), "no MIG profile"),
        (
            {"mig": "mixed", "sharing": [{"replicas": 2, "resource": "mig-5g.1gb"}]},
            ("sharing", 0, "resource"),
            "no MIG profile",
        ),
        ({"include": ["profile:1g.10gb"]}, ("include", 0), "mig: none"),
        ({"exclude": [MIG_UUID]}, ("exclude", 0), "mig: none"),
        ({"exclude": ["0:1"]}, ("exclude", 0), "mig: none"),
        # selectors and names
        ({"include": ["H100"]}, ("include", 0), "no selector"),
        ({"include": ["pci:zz"]}, ("include", 0), "no PCI address"),
        ({"include": ["model:"]}, ("include", 0), "nothing after the colon"),
        ({"include": ["index:x"]}, ("include", 0), "no index"),
        ({"include": ["0", "0"]}, ("include", 1), "twice"),
        ({"include": ["0"], "exclude": ["0"]}, ("exclude", 0), "in include as well"),
        ({"resources": [{"select": ["0"], "name": "GPU big"}]}, ("resources", 0, "name"), "no resource name"),
        ({"resources": [{"select": ["0"], "name": "kubernetes.io/gpu"}]}, ("resources", 0, "name"), "Kubernetes"),
        (
            {"sharing": [{"replicas": 2, "resource": "gpu-big"}]},
            ("sharing", 0, "resource"),
            "there are: nvidia.com/gpu",
        ),
        ({"sharing": [{"replicas": 2, "rename": True, "name": "x"}]}, ("sharing", 0, "rename"), "already renames"),
        ({"sharing": [{"replicas": 2, "name": "-"}]}, ("sharing", 0, "name"), "no resource name"),
        # the rest
        ({"imex": {"channels": [3]}}, ("imex", "channels"), "[] or [0]"),
        ({"imex": {"required": True}}, ("imex", "required"), "nothing to require"),
        ({"cdi": {"annotation_prefix": "Not OK/"}}, ("cdi", "annotation_prefix"), "prefix"),
        ({"cdi": {"disabled_hooks": ["A B"]}}, ("cdi", "disabled_hooks", 0), "no hook"),
        ({"mig": "mixed", "driver": {"discovery": "tegra"}}, ("mig",), "knows no MIG"),
        ({"ids": "index", "driver": {"discovery": "wsl"}}, ("ids",), "fixed id"),
    ],
)
def test_each_mistake_has_one_message_at_its_key(config: dict[str, Any], key: tuple[str | int, ...], word: str) -> None:
    found = problems(**config)
    assert [where for where, _ in found] == [key]
    assert word in found[0][1]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"mig": "single", "sharing": [{"replicas": 2, "resource": "nvidia.com/gpu"}]},
        {
            "mig": "mixed",
            "sharing": [
                {"replicas": 2, "resource": "mig-1g.10gb.me"},
                {"replicas": 3, "mode": "mps", "resource": "gpu"},
            ],
        },
        {
            "mig": "mixed",
            "include": ["profile:*g.10gb", "profile:1c.2g.20gb", "0:1", MIG_UUID, "0000:1b:00.0", "model:*H100*"],
        },
        {"device_list": ["envvar", "cdi-annotations", "cdi-cri"], "pass_device_specs": True, "ids": "index"},
        {
            "resources": [{"select": ["0"], "name": "big"}],
            "sharing": [{"replicas": 2, "resource": "big", "name": "a.b/c"}],
        },
        {"sharing": [{"replicas": 2, "mode": "mps", "name": "gpu-mps", "select": ["0"]}, {"replicas": 2}]},
        {"imex": {"channels": [0], "required": True}},
    ],
)
def test_what_makes_sense_is_taken(config: dict[str, Any]) -> None:
    assert problems(**config) == []


def test_messages_of_a_file_name_the_line_and_an_unknown_key_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "gpu-nvidia.yaml"
    path.write_text("mig: single\nsharing:\n  - replicas: 2\n    resource: mig-1g.10gb\n")
    (problem,) = load_struct(str(path), Config, MANIFEST.validate).problems
    assert (problem.line, problem.key) == (4, "sharing[0].resource")
    path.write_text("device_lists: [envvar]\nmig: dual\nsharing: [{replicas: 1}]\n")
    texts = [str(problem) for problem in load_struct(str(path), Config, MANIFEST.validate).problems]
    assert len(texts) == 3
    assert "device_list" in texts[0]
    assert "mixed" in texts[1]


@pytest.mark.parametrize(
    ("text", "facts", "fits"),
    [
        ("all", {}, True),
        ("3", {"index": ("3",)}, True),
        ("3", {"index": ("13",)}, False),
        ("index:[0-3]", {"index": ("2",)}, True),
        ("gpu-ABC", {"uuid": ("GPU-abc",)}, True),
        ("uuid:GPU-a*", {"uuid": ("GPU-abc",)}, True),
        ("0000:1B:00.0", {"pci": ("0000:1b:00.0",)}, True),
        ("1b:00.0", {"pci": ("0000:1b:00.0",)}, True),
        ("pci:0000:1*", {"pci": ("0000:1b:00.0",)}, True),
        ("model:*h100*", {"model": ("NVIDIA H100 80GB HBM3",)}, True),
        ("model:H100", {"model": ("NVIDIA H100 80GB HBM3",)}, False),
        ("device:0x74a1", {"device": ("0x74a1",)}, True),
    ],
)
def test_selectors(text: str, facts: selectors.Facts, fits: bool) -> None:
    assert selectors.parse(text).fits(facts) is fits


def test_shares() -> None:
    assert sharing.ids("GPU-a", 3) == ["GPU-a::0", "GPU-a::1", "GPU-a::2"]
    assert sharing.physical("GPU-a::2") == sharing.physical("GPU-a") == "GPU-a"
    assert sharing.ShareRule("", (), 2, rename=True).offered_as("nvidia.com/gpu") == "nvidia.com/gpu.shared"
    assert sharing.ShareRule("", (), 2, name="a/b").offered_as("nvidia.com/gpu") == "a/b"


def test_names() -> None:
    rules = [naming.NameRule("", (selectors.parse("model:*L4"),), "nvidia.com/small")]
    assert naming.chosen(rules, {"model": ("NVIDIA L4",)}, "nvidia.com/gpu") == "nvidia.com/small"
    assert naming.chosen(rules, {"model": ("NVIDIA L40",)}, "nvidia.com/gpu") == "nvidia.com/gpu"
    assert naming.full("gpu", "nvidia.com") == "nvidia.com/gpu"
    assert naming.problem("nvidia.com/gpu") == ""
    assert naming.problem("gpu")
    assert naming.problem("Nvidia.com/gpu")


PAGE = (Path(__file__).parents[2] / "docs/plugins/gpu-nvidia.md").read_text()


def test_the_pages_example_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "gpu-nvidia.yaml"
    path.write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    assert load_struct(str(path), Config, MANIFEST.validate).problems == ()


def test_the_page_speaks_of_every_option() -> None:
    assert [name for name in Config.__struct_fields__ if f"`{name}" not in PAGE] == []


@pytest.mark.parametrize(
    "row",
    [
        *("MIG_STRATEGY", "FAIL_ON_INIT_ERROR", "NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT", "DRIVER_ROOT_CTR_PATH"),
        *("PASS_DEVICE_SPECS", "DEVICE_LIST_STRATEGY", "DEVICE_ID_STRATEGY", "GDRCOPY_ENABLED", "GDS_ENABLED"),
        *("MOFED_ENABLED", "CDI_ANNOTATION_PREFIX", "NVIDIA_CDI_HOOK_PATH", "CDI_FEATURE_FLAGS", "CDI_DISABLE_HOOKS"),
        *("renameByDefault", "failRequestsGreaterThanOne", "MPS_ROOT", "IMEX_CHANNEL_IDS", "IMEX_REQUIRED"),
        *("SHARED_DEVICES_ALLOCATION_POLICY", "DEVICE_DISCOVERY_STRATEGY", "DP_DISABLE_HEALTHCHECKS"),
        *("DP_ENABLE_HEALTHCHECKS", "config-manager", "KUBELET_SOCKET", "no device filter", "no rescan", "metrics"),
    ],
)
def test_the_page_says_of_every_option_of_nvidias_plugin_what_became_of_it(row: str) -> None:
    """The names are those of the feature table (gpu.md, section 1)."""
    table = PAGE.partition("## NVIDIA's plugin, row by row")[2]
    assert any(row in line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
