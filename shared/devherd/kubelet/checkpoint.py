"""What the kubelet remembers on disk: which pod holds which id, and the answers it will replay.

`kubelet_internal_checkpoint` is the kubelet's own file, read only and best effort: its shape may change with any
version, so whatever is not understood is left out and said in `problem`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from devherd.kubelet.encode import decode_answer
from devherd.values import Composed

NAME = "kubelet_internal_checkpoint"
_SIZE_MAX = 64 << 20


class HeldAnswer(Struct, frozen=True):
    """One answer the kubelet will replay: to whom, for which ids of a resource, and what it says."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: Composed | None


class Held(Struct, frozen=True):
    """What the checkpoint holds. `owners` maps resource -> id -> "podUID/container".

    `registered` maps each resource the kubelet knew to the ids that were healthy. `problem` is empty when all was read.
    """

    owners: Mapping[str, Mapping[str, str]] = {}
    answers: tuple[HeldAnswer, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = {}
    problem: str = ""


def read_checkpoint(folder: str) -> Held:
    """Read the checkpoint in the device plugin folder. Never raises; a missing file holds nothing and is no problem."""
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            text = file.read(_SIZE_MAX + 1)
    except FileNotFoundError:
        return Held()
    except OSError as error:
        return Held(problem=f"{path}: {error.strerror}")
    if len(text) > _SIZE_MAX:
        return Held(problem=f"{path}: more than {_SIZE_MAX >> 20} MiB")
    try:
        data = json.loads(text)["Data"]
        entries, registered = data.get("PodDeviceEntries") or [], data.get("RegisteredDevices") or {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Held(problem=f"{path}: not understood ({type(error).__name__}: {error})")
    problems: list[str] = []
    answers = tuple(_answers(entries, problems))
    owners: dict[str, dict[str, str]] = {}
    for held in answers:
        owners.setdefault(held.resource, {}).update(dict.fromkeys(held.ids, f"{held.pod_uid}/{held.container}"))
    known = _known(registered, problems)
    return Held(owners, answers, known, f"{path}: {'; '.join(problems[:3])}" if problems else "")


def _answers(entries: Any, problems: list[str]) -> list[HeldAnswer]:
    found = []
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        try:
            ids = entry["DeviceIDs"]
            # By NUMA node; a device on two nodes stands there twice. Kubelets before 1.20 wrote a plain list.
            lists = ids.values() if isinstance(ids, dict) else [ids]
            names = tuple(dict.fromkeys(name for one in lists for name in _texts(one)))
            fields = (entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
            if not all(isinstance(one, str) for one in fields):
                raise TypeError("a name is not text")
            found.append(HeldAnswer(*fields, names, _decoded(entry.get("AllocResp"))))
        except (TypeError, KeyError, AttributeError) as error:  # noqa: PERF203
            problems.append(f"entry {number} not understood ({type(error).__name__}: {error})")
    return found


def _known(registered: Any, problems: list[str]) -> dict[str, tuple[str, ...]]:
    try:
        return {name: tuple(_texts(ids)) for name, ids in registered.items()}
    except (TypeError, AttributeError) as error:
        problems.append(f"RegisteredDevices not understood ({type(error).__name__}: {error})")
        return {}


def _decoded(text: Any) -> Composed | None:
    if not isinstance(text, str):
        return None
    try:
        return decode_answer(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        return None


def _texts(values: Any) -> list[str]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise TypeError("ids are not a list")
    return [value for value in values if isinstance(value, str)]
