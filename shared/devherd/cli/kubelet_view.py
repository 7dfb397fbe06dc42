"""What the kubelet itself says it can allocate, and how that differs from what the fronts serve."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devherd.cli.asking import Answers
from devherd.cli.judge import Finding
from devherd.cli.place import Place
from devherd.cli.words import count, listing, short


@dataclass(frozen=True)
class KubeletView:
    """Allocatable ids of each resource; `error` says why there is none, `failed` that there should be."""

    allocatable: Mapping[str, frozenset[str]]
    error: str = ""
    failed: bool = False


def kubelet_view(place: Place, timeout: float = 5.0) -> KubeletView:
    """Ask PodResources.GetAllocatableResources. Never raises."""
    path = place.settings.paths.pod_resources
    if reason := _unreachable(path):
        return KubeletView({}, reason)
    try:
        return KubeletView(asyncio.run(asyncio.wait_for(_allocatable(path), timeout)))
    except asyncio.TimeoutError:
        return KubeletView({}, f"{path}: no answer within {timeout:g} s", True)
    except Exception as error:  # whatever a socket of somebody else's process may do
        return KubeletView({}, str(error) or type(error).__name__, True)


def _unreachable(path: str) -> str:
    """Why nobody can be asked at a socket, in words; empty: somebody accepts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(path)
        except FileNotFoundError:
            return f"there is no socket {path}"
        except ConnectionRefusedError:
            return f"nobody listens on {path}"
        except OSError as error:
            return f"{path}: {error.strerror or error}"
    return ""


async def _allocatable(path: str) -> Mapping[str, frozenset[str]]:
    from devherd.kubelet.podresources import PodResources

    return await PodResources(path).allocatable()


def compare(devices: Answers, view: KubeletView) -> list[Finding]:
    """Where the kubelet's list differs from the healthy devices the fronts serve."""
    found = []
    for resource, healthy in sorted(healthy_ids(devices).items()):
        theirs = view.allocatable.get(resource, frozenset())
        lost, extra = healthy - theirs, theirs - healthy
        if lost:
            text = f"the kubelet does not offer {count(len(lost), 'device')} that we serve: {_ids(lost)}"
            found.append(Finding(True, resource, text, "Another plugin may have taken the resource over."))
        if extra:
            text = f"the kubelet offers {count(len(extra), 'device')} that we do not serve: {_ids(extra)}"
            found.append(Finding(True, resource, text, "Another plugin may have taken the resource over."))
    return found


def healthy_ids(devices: Answers) -> dict[str, set[str]]:
    """Resource -> ids the fronts call healthy; a resource without any healthy device is listed too."""
    ids: dict[str, set[str]] = {}
    for reply in devices.replies:
        for item in reply.get("devices", ()):
            mine = ids.setdefault(str(item["resource"]), set())
            if item.get("healthy"):
                mine.add(str(item["id"]))
    return ids


def resource_document(reply: Mapping[str, Any], healthy: set[str], view: KubeletView) -> dict[str, Any]:
    """One resource's line in the verify document; `kubelet` is null where the kubelet could not be asked."""
    theirs = None if view.error else sorted(view.allocatable.get(str(reply["name"]), frozenset()))
    return {
        "name": reply["name"],
        "state": reply.get("state"),
        "devices": reply.get("devices", 0),
        "healthy": len(healthy),
        "kubelet": None if theirs is None else len(theirs),
        "agrees": None if theirs is None else set(theirs) == healthy,
    }


def _ids(ids: set[str] | frozenset[str]) -> str:
    return listing(short(identity) for identity in sorted(ids))
