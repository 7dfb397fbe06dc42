"""What a container receives with an Intel GPU, as Intel's plugin gives it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from devherd.host.cdi import CdiDevice, CdiEdits, CdiMount, CdiNode, spec
from devherd.settings import Paths
from devherd.values import HostFile, Mount, Node, Parts

from devherd_gpu.intel.cards import BY_PATH, Card

KIND = "intel.cdi.k8s.io/gpu"


def answer(card: Card, by_path: str, cdi: bool) -> Parts:
    """The card's nodes, its by-path entries, and its CDI name."""
    return Parts(nodes=card.nodes, mounts=links(card, by_path), cdi=(cdi_name(card),) if cdi else ())


def everything(cards: Iterable[Card]) -> Parts:
    """For a monitor: the nodes of all cards and of their management engines, no mounts, no CDI name."""
    nodes: dict[str, Node] = {}
    for card in cards:
        nodes |= {node.host_path: node for node in (*card.nodes, *card.management)}
    return Parts(nodes=tuple(nodes.values()))


def links(card: Card, by_path: str) -> tuple[Mount, ...]:
    """`single`: each entry of the card by itself; `all`: the folder; `none`: nothing."""
    if by_path == "all":
        return (Mount(BY_PATH, BY_PATH, read_only=True),) if card.links else ()
    return card.links if by_path == "single" else ()


def cdi_name(card: Card) -> str:
    """The qualified CDI name."""
    return f"{KIND}={card.name}"


def specification(paths: Paths, card: Card, by_path: str) -> HostFile:
    """One file for each card, under the name that Intel's plugin uses, so that either replaces the other's.

    JSON is YAML, which is what the name promises.
    """
    nodes = tuple(
        CdiNode(node.container_path, node.host_path, node.kind, node.major, node.minor, "rw") for node in card.nodes
    )
    mounts = tuple(CdiMount(mount.host_path, mount.container_path, ("bind", "ro")) for mount in links(card, by_path))
    text = spec(KIND, [CdiDevice(card.name, CdiEdits(nodes=nodes, mounts=mounts))])
    return HostFile(os.path.join(paths.cdi, f"intel.cdi.k8s.io-gpu-{card.name}.yaml"), text)
