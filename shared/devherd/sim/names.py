"""Which resource names the kubelet accepts (IsExtendedResourceName), and where an endpoint name leads."""

from __future__ import annotations

import os.path
import re

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def qualified(name: str) -> bool:
    """Whether a name is `[domain/]name`: domain up to 253, name up to 63 characters."""
    parts = name.split("/")
    if len(parts) > 2:
        return False
    if len(parts) == 2 and not (len(parts[0]) <= 253 and _DOMAIN.fullmatch(parts[0])):
        return False
    return len(parts[-1]) <= 63 and _NAME.fullmatch(parts[-1]) is not None


def extended_resource(name: str) -> bool:
    """Whether the kubelet takes this name from a device plugin.

    The check is made on `requests.` + name because a quota must be able to name it: 9 characters less of domain.
    """
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return qualified("requests." + name)


def endpoint_path(folder: str, endpoint: str) -> str:
    """Join and clean, nothing else: subfolders work, `../x` escapes, an absolute path is nested, "" is the folder."""
    return os.path.normpath(folder + "/" + endpoint)
