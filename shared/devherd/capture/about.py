"""What a capture says about itself, for whoever replays it."""

from __future__ import annotations

from typing import Any

import msgspec

from devherd.capture.archive import Capture, CaptureError
from devherd.config.load import load_bytes
from devherd.settings import Settings


def describe(capture: Capture) -> str:
    """One line about a capture."""
    plugins = ", ".join(str(name) for name in capture.about.get("plugins", ())) or "no plugin"
    return f"a captured node with {len(capture.nodes)} device nodes, served by {plugins}"


def settings_of(capture: Capture) -> dict[str, Any]:
    """The captured settings but for its paths, to be laid over a private instance's. Raises CaptureError."""
    text = capture.texts.get("etc/devherd.yaml", "")
    loaded = load_bytes(text.encode(), "etc/devherd.yaml", Settings)
    if loaded.value is None:
        problem = loaded.problems[0]
        raise CaptureError(f"the captured etc/devherd.yaml cannot be used: line {problem.line}: {problem.message}")
    raw: dict[str, Any] = msgspec.to_builtins(loaded.value)
    return {key: value for key, value in raw.items() if key not in ("paths", "log")}
