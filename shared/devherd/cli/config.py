"""`devherd config`: check the files, and print their schema."""

from __future__ import annotations

import difflib
import os

import click
from rich.markup import escape

from devherd.cli.app import App, common, json_option, make_out
from devherd.cli.exits import ERROR, OK, USAGE, Fault
from devherd.cli.output import BAD, GOOD, QUIET
from devherd.cli.place import NODE_CONFIG, find_config
from devherd.cli.plugins import manifests
from devherd.cli.words import count
from devherd.config import Problem, load_plugin_config, load_settings
from devherd.settings import Settings


@click.group()
def config() -> None:
    """Check the configuration files, or print their JSON Schema."""


@config.command()
@common
def check(app: App) -> int:
    """Check devherd.yaml and every file in plugins.d.

    Names all errors at once, each with file, line, key and what was probably meant. Changes nothing, needs
    nothing running. Exits 1 when there is an error.
    """
    path = find_config(app.config, app.instance)
    files, problems = _check(path)
    if app.out.as_json:
        documents = [
            {"file": p.file, "line": p.line, "column": p.column, "key": p.key, "message": p.message, "hint": p.hint}
            for p in problems
        ]
        app.out.document({"ok": not problems, "files": files, "problems": documents})
    else:
        _show(app, files, problems)
    return ERROR if problems else OK


@config.command()
@click.argument("name", required=False)
@json_option
def schema(name: str | None, as_json: bool) -> int:
    """Print the JSON Schema of devherd.yaml, or of the plugin NAME's file.

    Editors with a YAML language server complete and check with it.
    """
    from devherd.config.schema import plugin_schema, settings_schema

    out = make_out(as_json)
    if name in (None, "devherd"):
        out.document(settings_schema())
        return OK
    known = manifests()
    if name not in known:
        raise Fault(f"there is no plugin {name!r}", f"There are: {', '.join(known)}.", code=USAGE)
    out.document(plugin_schema(known[name]))
    return OK


def _check(path: str) -> tuple[list[str], list[Problem]]:
    """The files looked at and what is wrong in them."""
    files: list[str] = []
    problems: list[Problem] = []
    settings = Settings()
    if os.path.exists(path) or path != NODE_CONFIG:
        files.append(path)
        loaded = load_settings(path)
        problems += loaded.problems
        settings = loaded.value or Settings()
        if loaded.value is None:
            return files, problems
    known = manifests()
    folder = os.path.join(settings.paths.etc, "plugins.d")
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        file = os.path.join(folder, entry)
        stem, suffix = os.path.splitext(entry)
        if entry.startswith(".") or suffix != ".yaml":
            continue
        files.append(file)
        if stem in known:
            problems += load_plugin_config(settings, known[stem]).problems
        else:
            near = difflib.get_close_matches(stem, known, 1)
            hint = f"did you mean {near[0]}.yaml?" if near else f"plugins are: {', '.join(known)}"
            problems.append(Problem(file, 0, 0, "", f"there is no plugin {stem!r}", hint))
    return files, problems


def _show(app: App, files: list[str], problems: list[Problem]) -> None:
    for file in files:
        wrong = [problem for problem in problems if problem.file == file]
        app.out.rich(f"[{BAD if wrong else GOOD}]{'wrong' if wrong else 'ok   '}[/]  {escape(file)}")
        for problem in wrong:
            _show_problem(app, problem)
    if not files:
        app.out.say("No configuration file: every setting has its default, and no device is offered.", QUIET)
    elif problems:
        app.out.say(count(len(problems), "error"), BAD)


def _show_problem(app: App, problem: Problem) -> None:
    """The place, the line itself with a mark below the column, the reason, the hint."""
    app.out.say()
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    key = f"  {problem.key}" if problem.key else ""
    app.out.say(f"  {place}{key}", "bold")
    source = _source_line(problem.file, problem.line)
    if source:
        app.out.say(f"    {source}", QUIET)
        app.out.say("    " + " " * max(0, problem.column - 1) + "^", BAD)
    app.out.say(f"  {problem.message}")
    if problem.hint:
        app.out.say(f"  {problem.hint}", QUIET)


def _source_line(file: str, line: int) -> str:
    if line < 1:
        return ""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            text = next((row for number, row in enumerate(stream, 1) if number == line), "")
    except OSError:
        return ""
    shown = "".join(char if char.isprintable() else " " for char in text.rstrip("\r\n"))
    return shown[:160]
