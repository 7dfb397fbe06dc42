"""`devherd doctor`: every check with its verdict and what to do, and a bundle for whoever helps."""

from __future__ import annotations

import platform
import sys
from typing import Any

import click
from rich.text import Text

from devherd.cli import doctor_host as on_host
from devherd.cli import doctor_kubelet as on_kubelet
from devherd.cli import doctor_service as on_service
from devherd.cli.app import App, common
from devherd.cli.capture import gather, must_be_new, save, show_summary, summary
from devherd.cli.doctor_site import LEFT_OUT, NOTE, OK_, PROBLEM, Check, Examine, Site, examine
from devherd.cli.exits import NOT_READY, OK
from devherd.cli.output import BAD, GOOD, QUIET, WARN
from devherd.cli.words import count

Json = dict[str, Any]
STYLES = {OK_: GOOD, NOTE: WARN, PROBLEM: BAD, LEFT_OUT: QUIET}

CHECKS: tuple[tuple[str, Examine], ...] = (
    ("configuration", on_service.configuration),
    ("programs", on_service.programs),
    ("plugins", on_service.plugins),
    ("watcher", on_service.watcher),
    ("duplicates", on_service.duplicates),
    ("state", on_service.kept),
    ("kubelet folder", on_kubelet.folder),
    ("kubelet socket", on_kubelet.socket),
    ("our sockets", on_kubelet.own_sockets),
    ("other servers", on_kubelet.others),
    ("PodResources", on_kubelet.pod_resources),
    ("SELinux", on_host.selinux),
    ("drivers", on_host.drivers),
    ("CDI", on_host.cdi),
    ("/dev/char links", on_host.dev_char),
    ("disk", on_host.disk),
    ("clock", on_host.clock),
    ("limits", on_host.limits),
)
"""In the order of likelihood: what a person should read first comes first. docs/doctor.md has a line for each."""


@click.command()
@click.option("--bundle", metavar="FILE.tar.gz", type=click.Path(dir_okay=False), help="Also write a support bundle.")
@click.option("--force", is_flag=True, help="Write over the bundle if it exists.")
@common
def doctor(app: App, bundle: str | None, force: bool) -> int:
    """Examine devherd, the kubelet's side and the host; say what is wrong and what to do.

    Works with everything down. Exits 3 when there is a problem. A bundle holds a capture (see `devherd capture`), the
    verdicts, logs and state, without secrets; `devherd simulate --from` replays it.
    """
    if bundle:
        must_be_new(bundle, force)
    with app.out.progress("examining"):
        verdicts = examine(Site.visit(app.place), CHECKS)
    problems = sum(item.verdict == PROBLEM for item in verdicts)
    document: Json = {"ok": not problems, "problems": problems, "checks": [item.as_json() for item in verdicts]}
    if bundle:
        with app.out.progress("writing the bundle"):
            document["bundle"] = write_bundle(app, bundle, document)
    if app.out.as_json:
        app.out.document(document)
    else:
        show(app, verdicts, problems)
        if bundle:
            app.out.say()
            show_summary(app, document["bundle"])
    return NOT_READY if problems else OK


def write_bundle(app: App, file: str, document: Json) -> Json:
    """Gather, redact and write. Raises Fault. Returns the summary."""
    from devherd.capture.redact import Redactor

    source = gather(app.place)
    source.read_logs()
    source.read_state()
    source.more["doctor.json"] = document
    source.more["versions.json"] = versions()
    made = source.capture(Redactor())
    save(made, file)
    return summary(made, file)


def versions() -> Json:
    """What runs here, for whoever reads the bundle."""
    from importlib.metadata import distributions

    wanted = ("devherd", "grpcio", "protobuf", "supervisor", "msgspec", "psutil")
    installed = {item.metadata["Name"]: item.version for item in distributions()}
    found: Json = {"python": sys.version, "kernel": platform.platform(), "executable": sys.executable}
    found |= {package: installed.get(package) for package in wanted}
    try:
        found["os"] = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        found["os"] = ""
    return found


def show(app: App, verdicts: list[Check], problems: int) -> None:
    """A line for each verdict, what to do below it, and the sum."""
    out = app.out
    out.say(app.place.title, QUIET)
    for item in verdicts:
        mark = (f"{item.verdict:<9}", STYLES[item.verdict])
        out.console.print(Text.assemble(mark, (f"{item.name:<18}", "bold"), item.text), soft_wrap=True)
        if item.remedy and item.verdict != OK_:
            out.say(f"{'':<27}{item.remedy}", QUIET)
    out.say()
    notes = sum(item.verdict == NOTE for item in verdicts)
    text = f"{count(problems, 'problem')}, {count(notes, 'note')}" if problems or notes else "All is well."
    out.say(text, BAD if problems else WARN if notes else GOOD)
