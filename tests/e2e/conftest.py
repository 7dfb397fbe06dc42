"""Nodes for the tests. One kubelet at a time; containerd and the control plane are started once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import binaries, sandbox
from e2e.__main__ import KUBELET, LINE
from e2e.node import RealNode
from e2e.rig import Rig

_TIMEOUT = 400


def pytest_configure(config: pytest.Config) -> None:
    """These tests need namespaces of their own."""
    config.addinivalue_line(
        "markers", "grace: waits out the five minutes that a kubelet keeps a lost plugin's capacity"
    )
    config.addinivalue_line("markers", "skew: run on every version of the kubelet")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A loaded machine may take its time; what a test waits for has limits of its own."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT))


@pytest.fixture(scope="session")
def folder() -> Path:
    """Where nodes keep their files."""
    if not sandbox.inside():
        pytest.exit("these tests run in a sandbox: `make e2e` (or `python -m e2e`), as root", 2)
    return Path(os.environ[sandbox.FOLDER])


@pytest.fixture(scope="session")
def line() -> str:
    """The kubelet's line, as 1.37."""
    return os.environ.get(LINE, binaries.NEWEST)


@pytest.fixture(scope="session")
def kubelet(line: str) -> Path:
    """The kubelet under test."""
    return Path(os.environ.get(KUBELET) or binaries.built(binaries.kubernetes(line, "kubelet"))["kubelet"])


@pytest.fixture(scope="session")
def gates(line: str) -> dict[str, Any]:
    """Kubelet configuration that makes the lines alike: devices' health in the pod's status is on from 1.36."""
    return {"featureGates": {"ResourceHealthStatus": True}} if line in ("1.34", "1.35") else {}


@pytest.fixture(scope="session")
def alone(folder: Path, kubelet: Path, gates: dict[str, Any]) -> Iterator[RealNode]:
    """A node without an API server."""
    yield from _node(RealNode(folder / "alone", kubelet, configuration=gates))


@pytest.fixture(scope="module")
def cdi_node(folder: Path, kubelet: Path) -> Iterator[RealNode]:
    """A node whose containerd knows CDI."""
    programs = binaries.built(binaries.containerd())
    yield from _node(RealNode(folder / "cdi", kubelet, containerd=programs["containerd"].parent))


@pytest.fixture(scope="module")
def cluster(folder: Path, kubelet: Path) -> Iterator[RealNode]:
    """A node with an API server."""
    kubernetes = binaries.built(binaries.kubernetes(binaries.NEWEST, "kube-apiserver", "kube-scheduler", "kubectl"))
    yield from _node(RealNode(folder / "cluster", kubelet, cluster={**kubernetes, **binaries.built(binaries.etcd())}))


@pytest.fixture
def rig(alone: RealNode) -> Iterator[Rig]:
    """A fresh node without an API server, and what a test does with it."""
    yield from _rig(alone)


@pytest.fixture
def cluster_rig(cluster: RealNode) -> Iterator[Rig]:
    """The same with an API server."""
    yield from _rig(cluster)


@pytest.fixture
def cdi_rig(cdi_node: RealNode) -> Iterator[Rig]:
    """The same with CDI."""
    yield from _rig(cdi_node)


def _node(node: RealNode) -> Iterator[RealNode]:
    yield node
    node.down()


def _rig(node: RealNode) -> Iterator[Rig]:
    node.fresh()
    with Rig(node) as rig:
        yield rig
    node.kubelet_stop()
    assert not node.panics(), "the kubelet crashed"
