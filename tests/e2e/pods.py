"""Pods as documents, and as the kubelet shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e.images import BUSYBOX

SLEEP = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done"
"""Ends at once on SIGTERM, so that pods go quickly."""


def container(
    name: str,
    requests: Mapping[str, int] | None = None,
    command: str = SLEEP,
    image: str = BUSYBOX,
    mounts: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One container: `requests` maps resource -> count, `mounts` a volume's name -> path inside."""
    limits = {resource: str(count) for resource, count in (requests or {}).items()}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": {"limits": limits},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in (mounts or {}).items()],
        **more,
    }


def manifest(
    name: str,
    containers: Sequence[Mapping[str, Any]],
    init: Sequence[Mapping[str, Any]] = (),
    namespace: str = "default",
    **spec: Any,
) -> dict[str, Any]:
    """A pod on the host's network, which needs no CNI."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "initContainers": list(init),
            "containers": list(containers),
            **spec,
        },
    }


@dataclass(frozen=True)
class ContainerView:
    """One container's state. `waiting` is why it does not run (`CrashLoopBackOff`), empty otherwise.

    `health` maps resource -> device id -> `Healthy`, `Unhealthy` or `Unknown` (allocatedResourcesStatus). `init`: a
    plain init container, not a sidecar.
    """

    id: str
    running: bool
    restarts: int
    waiting: str
    message: str
    exit_code: int | None
    health: Mapping[str, Mapping[str, str]]
    init: bool = False


@dataclass(frozen=True)
class PodView:
    """One pod as the kubelet's status says."""

    name: str
    uid: str
    phase: str
    reason: str
    message: str
    containers: Mapping[str, ContainerView]
    raw: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def running(self) -> bool:
        """Every container runs, those apart whose turn is over before the others start."""
        return self.phase == "Running" and all(one.running for one in self.containers.values() if not one.init)

    @property
    def failed(self) -> bool:
        """It is lost: a kubelet never tries a failed pod again."""
        return self.phase == "Failed"


def view(pod: Mapping[str, Any]) -> PodView:
    """From the API's document."""
    status = pod.get("status", {})
    states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    specs = pod.get("spec", {}).get("initContainers", [])
    init = {one["name"] for one in specs if one.get("restartPolicy") != "Always"}
    return PodView(
        name=pod["metadata"]["name"],
        uid=pod["metadata"].get("uid", ""),
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        containers={one["name"]: _container(one, one["name"] in init) for one in states},
        raw=pod,
    )


def _container(state: Mapping[str, Any], init: bool) -> ContainerView:
    now = state.get("state", {})
    waiting, ended = now.get("waiting", {}), now.get("terminated", {})
    return ContainerView(
        id=state.get("containerID", "").rpartition("/")[2],
        running="running" in now,
        restarts=state.get("restartCount", 0),
        waiting=waiting.get("reason", ""),
        message=waiting.get("message", "") or ended.get("message", ""),
        exit_code=ended.get("exitCode"),
        health={
            one["name"]: {each["resourceID"]: each.get("health", "") for each in one.get("resources", [])}
            for one in state.get("allocatedResourcesStatus", [])
        },
        init=init,
    )
