"""`devherd config import`: finds the importer, reads what it is given, checks what it made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from devherd.cli.exits import USAGE, Fault
from devherd.cli.plugins import manifests
from devherd.config import rival
from devherd.config.load import load_bytes
from devherd.config.rival import Imported, Rival
from devherd.vendor import Manifest, load_object


def importers() -> dict[str, tuple[Manifest, str]]:
    """Whose configuration can be imported: name -> our plugin and the importing function."""
    return {name: (manifest, where) for manifest in manifests().values() for name, where in manifest.importers.items()}


def import_rival(
    name: str, file: str | None, args: tuple[str, ...], env: tuple[str, ...]
) -> tuple[Imported, str, list[str]]:
    """What was imported, for which plugin, and what our own check has against it. Raises Fault."""
    known = importers()
    if name not in known:
        raise Fault(f"nothing is known of {name!r}", f"There are: {', '.join(sorted(known))}.", code=USAGE)
    manifest, where = known[name]
    given = _given(file, args, env)
    imported: Imported = load_object(where)(given)
    text = file_text(manifest.name, name, imported).encode()
    loaded = load_bytes(text, f"{manifest.name}.yaml", manifest.config, manifest.validate)
    return imported, manifest.name, [f"{problem.key}: {problem.message}" for problem in loaded.problems]


def file_text(plugin: str, name: str, imported: Imported) -> str:
    """Our file, with a line that says where it comes from."""
    body = yaml.safe_dump(imported.config, sort_keys=False, allow_unicode=True, width=100) if imported.config else ""
    return f"# plugins.d/{plugin}.yaml, imported from {name}\n{body}"


def _given(file: str | None, args: tuple[str, ...], env: tuple[str, ...]) -> Rival:
    found = _read(file) if file else Rival()
    variables: dict[str, Any] = dict(found.env)
    for word in env:
        key, equals, value = word.partition("=")
        if not equals:
            raise Fault(f"--env {word}: no =", "Write NAME=VALUE.", code=USAGE)
        variables[key] = value
    return msgspec.structs.replace(found, args=(*found.args, *args), env=variables)


def _read(file: str) -> Rival:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise Fault(f"{file}: cannot be read: {error}") from None
    found, problems = rival.read(text, file)
    if problems:
        first = problems[0]
        raise Fault(f"{first.file}:{first.line}: {first.message}", first.hint)
    return found
