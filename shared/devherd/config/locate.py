"""Finds the place in a file that a key path means."""

from __future__ import annotations

from devherd.config.nearest import plain_form
from devherd.config.problems import WHOLE_FILE, KeyPath, Mark
from devherd.config.yaml12 import Mapping, Node, Pair, Scalar, Sequence


def locate(root: Node, path: KeyPath) -> Mark:
    """Where the value of `path` is, or the nearest thing around it that the file has."""
    node, mark = root, root.mark
    for part in path:
        if isinstance(node, Sequence) and isinstance(part, int) and 0 <= part < len(node.items):
            node = node.items[part]
            mark = node.mark
        elif isinstance(node, Mapping) and (pair := _pair(node, str(part))) is not None:
            node = pair.value
            mark = node.mark if isinstance(node, Scalar) and node.text else pair.key.mark
        else:
            break
    return mark if mark.line else WHOLE_FILE


def _pair(node: Mapping, key: str) -> Pair | None:
    exact = next((pair for pair in node.pairs if pair.key.text == key), None)
    if exact is not None:
        return exact
    # A rule may name a struct's field (`mount_path`) where the file has its written form (`mountPath`).
    return next((pair for pair in node.pairs if plain_form(pair.key.text) == plain_form(key)), None)
