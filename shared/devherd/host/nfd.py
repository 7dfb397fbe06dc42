"""Feature files: node labels by way of Node Feature Discovery's local source.

NFD's worker reads `name=value` lines from files in its features.d folder and publishes them as labels; a file whose
`# +expiry-time=` lies in the past is left out (NFD's documentation, "local feature source"), so the labels of a plugin
that was removed without a word go by themselves.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from devherd.values import HostFile

if TYPE_CHECKING:
    from devherd.settings import Paths

LIFE = 3 * 3600
"""Seconds a file is good for at least. Its expiry moves once an hour, so its text changes once an hour."""
_HOUR = 3600
# Label values as the Kubernetes API accepts them: at most 63 characters, no odd one at either end.
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


def feature_file(paths: Paths, name: str, labels: Mapping[str, str], now: float) -> HostFile:
    """The file `<name>` with these labels (prefix/name -> value); `now` is Unix seconds.

    Written only where the folder exists: without NFD on a node nobody reads it.
    """
    expiry = (int(now) // _HOUR + 1) * _HOUR + LIFE
    lines = [f"# +expiry-time={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(expiry))}"]
    lines += [f"{key}={label_value(value)}" for key, value in sorted(labels.items())]
    return HostFile(os.path.join(paths.features, name), "\n".join(lines) + "\n", optional=True)


def label_value(text: str) -> str:
    """The nearest value that a label may have: other characters become `-`."""
    return _ODD.sub("-", text.strip())[:63].strip("-_.")
