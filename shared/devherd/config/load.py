"""Loads `devherd.yaml` and `plugins.d/<plugin>.yaml`. Bad input gives problems, never an exception."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from devherd.config.decode import decode, no_value
from devherd.config.locate import locate
from devherd.config.problems import WHOLE_FILE, ConfigError, KeyPath, Problem, Report
from devherd.config.yaml12 import Mapping, Node, decode_utf8, parse
from devherd.settings import Settings

if TYPE_CHECKING:
    from devherd.vendor import Manifest

T = TypeVar("T")
Validate = Callable[[Any], list[tuple[tuple[str | int, ...], str]]]
NODE_SETTINGS = "/etc/devherd/devherd.yaml"
MAX_BYTES = 1024 * 1024


class Loaded(Struct, Generic[T], frozen=True):
    """What a file gave: a value, or problems. `found` is false where a missing file means the defaults."""

    value: T | None
    problems: tuple[Problem, ...]
    path: str
    found: bool = True

    def require(self) -> T:
        """The value. Raises ConfigError with all problems if there is none."""
        if self.value is None:
            raise ConfigError(self.problems)
        return self.value


def load_settings(path: str, validate: Validate | None = None) -> Loaded[Settings]:
    """Read `devherd.yaml`. Keys that are not there have their defaults. `validate`: what the caller knows beyond it.

    So has a node without the file at its usual place. A file that was named must be there: a mistyped name must
    not end in a private instance that works on the real node.
    """
    return load_struct(path, Settings, validate, missing_ok=path == NODE_SETTINGS)


def plugin_config_path(settings: Settings, name: str) -> str:
    """Where a plugin's configuration is: `<paths.etc>/plugins.d/<name>.yaml`."""
    return os.path.join(settings.paths.etc, "plugins.d", f"{name}.yaml")


def load_plugin_config(settings: Settings, manifest: Manifest) -> Loaded[Any]:
    """Read a plugin's configuration against its manifest's schema and rules; no file means the defaults."""
    path = plugin_config_path(settings, manifest.name)
    return load_struct(path, manifest.config, manifest.validate, missing_ok=True)


def load_struct(
    path: str,
    kind: type[T],
    validate: Validate | None = None,
    *,
    missing_ok: bool = False,
    absent_hint: str = "create it, or name another with --config",
) -> Loaded[T]:
    """Read a file as a msgspec struct.

    `absent_hint`: what to do where there is no such file and it had to be there.
    `validate` sees a value that fits the schema and returns (key path, message) pairs; each is given its line.
    """
    report = Report(path)
    try:
        data: bytes | None = _read(path, report)
    except FileNotFoundError:
        if missing_ok:
            return _loaded(path, Mapping(WHOLE_FILE, ()), kind, validate, report, found=False)
        report.add(WHOLE_FILE, (), "no such file", absent_hint)
        data = None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        report.add(WHOLE_FILE, (), f"cannot be read: {reason}")
        data = None
    if data is None:
        return Loaded(value=None, problems=report.problems(), path=path)
    return _from_bytes(data, path, kind, validate, report)


def load_bytes(data: bytes, path: str, kind: type[T], validate: Validate | None = None) -> Loaded[T]:
    """The same for a file's content at hand; `path` is what its problems name."""
    return _from_bytes(data, path, kind, validate, Report(path))


def _from_bytes(data: bytes, path: str, kind: type[T], validate: Validate | None, report: Report) -> Loaded[T]:
    text = decode_utf8(data, report)
    node = parse(text, report) if text is not None else None
    if node is None:
        return Loaded(value=None, problems=report.problems(), path=path)
    return _loaded(path, node, kind, validate, report, found=True)


def _loaded(
    path: str, node: Node, kind: type[T], validate: Validate | None, report: Report, *, found: bool
) -> Loaded[T]:
    value = decode(node, kind, report)
    if not no_value(value) and not report and validate is not None:
        _validate(validate, value, node, report)
    usable = not no_value(value) and not report
    return Loaded(value=value if usable else None, problems=report.problems(), path=path, found=found)


def _validate(validate: Validate, value: Any, node: Node, report: Report) -> None:
    try:
        findings: list[tuple[KeyPath, str]] = [(tuple(path), str(message)) for path, message in validate(value)]
    except Exception as error:  # a plugin's own code; its mistake must not end the process
        report.add(WHOLE_FILE, (), f"the plugin could not check it: {type(error).__name__}: {error}")
        return
    for path, message in findings:
        report.add(locate(node, path), path, message)


def _read(path: str, report: Report) -> bytes | None:
    """The file's bytes; None (reported) if it is no regular file or too large. O_NONBLOCK: a FIFO must not hang us."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            report.add(WHOLE_FILE, (), "is not a regular file")
            return None
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        report.add(WHOLE_FILE, (), f"is larger than {MAX_BYTES // 1024} KiB")
        return None
    return data
