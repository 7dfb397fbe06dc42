"""`devherd config`: check the files, and print their schema."""

from __future__ import annotations

import os

import click
from rich.markup import escape

from devherd.cli.app import App, common
from devherd.cli.exits import ERROR, OK, USAGE, Fault
from devherd.cli.importing import file_text, import_rival
from devherd.cli.output import BAD, GOOD, QUIET, WARN
from devherd.cli.place import NODE_CONFIG, find_config, source_of
from devherd.cli.plugins import manifests, vendor_manifests, vendors_installed
from devherd.cli.words import count
from devherd.config import Problem, check_plugins, load_settings
from devherd.config.show import problem_lines
from devherd.settings import Settings

_STYLES = {"head": "bold", "source": QUIET, "mark": BAD, "text": "", "hint": QUIET}


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
    # A foreground run has a copy of the file it was given; the file is what people edit.
    path = source_of(path) or path
    files, problems, ignored = _check(path)
    if app.out.as_json:
        documents = [
            {"file": p.file, "line": p.line, "column": p.column, "key": p.key, "message": p.message, "hint": p.hint}
            for p in problems
        ]
        app.out.document({"ok": not problems, "files": files, "problems": documents, "ignored": ignored})
    else:
        _show(app, files, problems, ignored)
    return ERROR if problems else OK


@config.command()
@click.argument("name", required=False)
@common
def schema(app: App, name: str | None) -> int:
    """Print the JSON Schema of devherd.yaml, or of the plugin NAME's file.

    Editors with a YAML language server complete and check with it. A third-party vendor is known when
    `vendors` in devherd.yaml lists it.
    """
    from devherd.config.schema import plugin_schema, settings_schema

    if name in (None, "devherd"):
        app.out.document(settings_schema())
        return OK
    known = manifests()
    if name not in known:
        path = find_config(app.config, app.instance)
        found, wrong = vendor_manifests(load_settings(path).value or Settings())
        known |= found
        if name in wrong:
            raise Fault(wrong[name])
    if name not in known:
        allowed = f"There are: {', '.join(known)}."
        if name in vendors_installed():
            allowed = f"It is installed, but not allowed: write `vendors: [{name}]` into devherd.yaml."
        raise Fault(f"there is no plugin {name!r}", allowed, code=USAGE)
    app.out.document(plugin_schema(known[name]))
    return OK


@config.command("import")
@click.argument("name")
@click.argument("file", required=False)
@click.option("--arg", "args", multiple=True, metavar="FLAG", help="A flag of its command line, as --arg=-pulse=10.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable of its environment.")
@common
def import_(app: App, name: str, file: str | None, args: tuple[str, ...], env: tuple[str, ...]) -> int:
    """Turn another plugin's configuration into ours.

    NAME is whose it is; FILE a manifest of its DaemonSet (with its ConfigMaps), or its own file; - is standard input.
    Prints our file on standard output, and what becomes different on standard error. Nothing is written or started.
    """
    imported, plugin, problems = import_rival(name, file, args, env)
    if app.out.as_json:
        app.out.document(
            {"plugin": plugin, "config": imported.config, "notes": list(imported.notes), "problems": problems}
        )
    else:
        for note in imported.notes:
            app.out.note(f"note: {note}", "")
        for problem in problems:
            app.out.note(f"wrong: {problem}", BAD)
        click.echo(file_text(plugin, name, imported), nl=False)
    return ERROR if problems else OK


def _check(path: str) -> tuple[list[str], list[Problem], list[str]]:
    """The files looked at, what is wrong in them, and files that no plugin reads."""
    files: list[str] = []
    problems: list[Problem] = []
    settings = Settings()
    known = manifests()
    if os.path.exists(path) or path != NODE_CONFIG:
        files.append(path)
        problems += load_settings(path, _vendor_problems).problems
        loaded = load_settings(path)
        if loaded.value is None:
            return files, problems, []
        settings = loaded.value
        known |= vendor_manifests(settings)[0]
    checked = check_plugins(settings, known)
    return [*files, *checked.files], [*problems, *checked.problems], list(checked.ignored)


def _vendor_problems(settings: Settings) -> list[tuple[tuple[str | int, ...], str]]:
    wrong = vendor_manifests(settings)[1]
    return [(("vendors", index), wrong[name]) for index, name in enumerate(settings.vendors) if name in wrong]


def _show(app: App, files: list[str], problems: list[Problem], ignored: list[str]) -> None:
    for file in dict.fromkeys([*files, *(problem.file for problem in problems)]):
        wrong = [problem for problem in problems if problem.file == file]
        app.out.rich(f"[{BAD if wrong else GOOD}]{'wrong' if wrong else 'ok   '}[/]  {escape(file)}")
        for problem in wrong:
            app.out.say()
            for kind, text in problem_lines(problem, _source_line(problem.file, problem.line)):
                app.out.say(text, _STYLES[kind])
    for file in ignored:
        app.out.rich(f"[{WARN}]note [/]  {escape(file)}: read by no plugin, each reads plugins.d/NAME.yaml")
    if not files:
        app.out.say("No configuration file: every setting has its default, and no device is offered.", QUIET)
    elif problems:
        app.out.say(count(len(problems), "error"), BAD)


def _source_line(file: str, line: int) -> str:
    if line < 1:
        return ""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return next((row for number, row in enumerate(stream, 1) if number == line), "")
    except OSError:
        return ""
