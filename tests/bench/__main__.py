"""`make bench`: measure, then one table, or with `--json` one document. Progress goes to stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace

from bench.cases import CASES, Case
from bench.figure import Figure
from bench.quiet import CALM, Quiet


@dataclass(frozen=True)
class Run:
    """One case: its figures, how long it took, and what share of the machine others used in its worst round."""

    case: str
    figures: tuple[Figure, ...]
    seconds: float
    others: float


def main(arguments: list[str]) -> int:
    """Parse, measure, print. Exit status 1 when a case could not be measured; a missed budget is no error."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="how long a case waits for a calm machine"
    )
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args(arguments)
    failed: list[str] = []
    runs: list[Run] = []
    for name, case in CASES.items():
        if options.only and name not in options.only:
            continue
        try:
            runs.append(_measured(name, case, Quiet(options.patience)))
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
            print(f"  could not be measured: {failed[-1]}", file=sys.stderr)
    if options.json:
        print(json.dumps(_document(runs, failed), indent=2))
    else:
        _print_table(runs, failed)
    return 1 if failed else 0


def _measured(name: str, case: Case, quiet: Quiet) -> Run:
    print(f"{name} ...", file=sys.stderr, flush=True)
    start = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):
        figures = tuple(replace(figure, case=name) for figure in case(quiet))
    seconds = time.monotonic() - start
    for figure in figures:
        print(f"  {figure.what}: {figure.text} {_verdict(figure)}", file=sys.stderr, flush=True)
    print(f"  {seconds:.0f} s, others used up to {quiet.share:.0%} of the machine", file=sys.stderr, flush=True)
    return Run(name, figures, seconds, quiet.share)


def _verdict(figure: Figure) -> str:
    return {True: "met", False: "MISSED", None: ""}[figure.met]


def _machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def _document(runs: list[Run], failed: list[str]) -> dict[str, object]:
    figures = [asdict(figure) for run in runs for figure in run.figures]
    cases = {run.case: {"seconds": round(run.seconds, 1), "others_busy": round(run.others, 3)} for run in runs}
    return {"machine": _machine(), "figures": figures, "cases": cases, "failed": failed}


def _print_table(runs: list[Run], failed: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console() if sys.stdout.isatty() else Console(width=170)
    table = Table("What", "Figure", "Budget", "Met", "Method", show_lines=False)
    for run in runs:
        for figure in run.figures:
            colour = {True: "green", False: "red", None: ""}[figure.met]
            table.add_row(
                figure.what,
                figure.text,
                figure.budget,
                f"[{colour}]{_verdict(figure)}[/]" if colour else "",
                figure.method,
            )
        table.add_section()
    console.print(table)
    machine = _machine()
    busy = max((run.others for run in runs), default=0.0)
    console.print(
        f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}; load {machine['load']}; "
        f"others used up to {busy:.0%} of the machine (rounds above {CALM:.0%} are repeated for a while). "
        "A row without budget is there to be compared."
    )
    for text in failed:
        console.print(f"[red]not measured:[/] {text}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
